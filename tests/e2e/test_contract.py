"""Promises of the outside contract that no other file holds: one server each, of the least that shows them."""
import asyncio
import base64
import hashlib
import json
import os
import signal
import socket
import struct
import subprocess
import time

import pytest
import websockets

from conftest import HANG, PROGRAM, ROOT, SIM, Server
from frames import connect, finish, receive, send, text
from test_hostile import GENERATE, UPGRADE, masked, open_socket, read_to_end, reset
from test_http import CHAT, HELLO, call, events


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, HANG))


def upgraded(server):
    """A raw socket whose handshake is answered."""
    connection = open_socket(server)
    connection.sendall(UPGRADE)
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += connection.recv(1)
    assert head.startswith(b"HTTP/1.1 101")
    return connection


def read_until(connection, mark):
    seen = b""
    while mark not in seen:
        piece = connection.recv(65536)
        assert piece, seen
        seen += piece
    return seen


def close_code(server, *frames):
    """What the server closes a socket with after these bytes."""
    with upgraded(server) as connection:
        connection.sendall(b"".join(frames))
        seen = read_to_end(connection)
    at = seen.rfind(b"\x88\x02")
    return struct.unpack(">H", seen[at + 2:at + 4])[0] if at >= 0 else None


def test_text_that_is_no_utf8_closes_with_1007(sim):
    assert close_code(sim, b"\x81\x82\0\0\0\0\xff\xfe") == 1007
    assert close_code(sim, b"\x01\x81\0\0\0\0\xc3", b"\x80\x81\0\0\0\0\x28") == 1007      # across a fragment's border


@pytest.mark.parametrize("frame", [
    b"\x81\x02{}", b"\x83\x80\0\0\0\0", b"\xc1\x80\0\0\0\0", b"\x09\x80\0\0\0\0",
    b"\x89\xfe\0\x7e\0\0\0\0" + b"x" * 126, b"\x80\x80\0\0\0\0",
    b"\x01\x80\0\0\0\0\x81\x80\0\0\0\0"],
    ids=["unmasked", "reserved opcode", "a bit of an extension", "fragmented ping", "long ping", "nothing to continue",
         "a message in another"])
def test_a_protocol_violation_closes_with_1002(sim, frame):
    assert close_code(sim, frame) == 1002


def test_compression_is_declined_and_control_frames_come_between_fragments(sim):
    async def body():
        async with connect(sim, compression="deflate") as stream:
            assert "sec-websocket-extensions" not in stream.response.headers
            await send(stream, **{**GENERATE, "max_tokens": 3})
            return await finish(stream, "a")
    assert run(body())[-1]["reason"] == "length"
    request = json.dumps({**GENERATE, "max_tokens": 2}).encode()
    with upgraded(sim) as connection:
        connection.sendall(b"\x01\x8a\0\0\0\0" + request[:10] + b"\x89\x81\0\0\0\0p" + bytes([0x80, 0x80 | len(request) - 10])
                           + b"\0\0\0\0" + request[10:])
        seen = read_until(connection, b'"done"')
    assert b"\x8a\x01p" in seen


def test_frames_of_a_client_that_did_not_wait_for_its_handshake_are_kept(sim):
    with open_socket(sim) as connection:
        connection.sendall(UPGRADE + masked(json.dumps({**GENERATE, "max_tokens": 2})))
        read_until(connection, b'"done"')


@pytest.fixture(scope="module")
def one_long_forward():
    """A prompt is one forward of seconds; pings are due several times in it, and a busy client has a second for each answer."""
    server = Server("--set", "device.kind=sim", "--set", "sim.scale=40", "--set", "sim.noise=0", "--set", "scheduler.policy=fixed-chunk",
                    "--set", "scheduler.fixed_chunk_tokens=8192", "--set", "server.ping_seconds=0.6", "--set", "server.drain_seconds=1")
    # Its guess of a step's time knows nothing of the scale: the first forward teaches it what to expect.
    assert call(server, "/v1/completions", {"prompt": [9] * 4000, "max_tokens": 1})[0] == 200
    yield server
    assert server.stop() == 0


def at_least_three(attempt):
    """A machine that stands still for seconds breaks promises in time: not three times in a row."""
    counts = []
    while not counts or (counts[-1] < 3 and len(counts) < 3):
        counts.append(attempt(len(counts)))
    assert counts[-1] >= 3, counts


def test_pings_flow_and_the_server_stays_ready_while_a_prompt_is_one_long_forward(one_long_forward):
    def num_pings(attempt):
        with upgraded(one_long_forward) as connection:
            request = json.dumps({"type": "generate", "id": "a", "tokens": [1 + attempt] * 4000, "max_tokens": 1, "ignore_eos": True})
            connection.sendall(masked(request))
            seen = b""
            while b'"delta"' not in seen:
                piece = connection.recv(65536)
                if not piece:
                    return 0      # its answer to a ping came too late
                seen += piece
                if piece.startswith(b"\x89\x00"):
                    connection.sendall(b"\x8a\x80\0\0\0\0")
                    if call(one_long_forward, "/health/ready")[0] != 200:
                        return 0
            return seen[:seen.index(b'"delta"')].count(b"\x89\x00")
    at_least_three(num_pings)


def test_a_stream_has_its_head_at_once_and_comment_lines_while_nothing_comes(one_long_forward):
    def num_comments(attempt):
        body = json.dumps({"prompt": [101 + attempt] * 4000, "max_tokens": 1, "ignore_eos": True, "stream": True}).encode()
        with open_socket(one_long_forward) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            seen = read_until(connection, b"data: ")
            assert seen.startswith(b"HTTP/1.1 200")
            return seen[:seen.index(b"data: ")].count(b": ping\n\n")
    at_least_three(num_comments)


def test_a_cancel_in_prefill_ends_the_request_with_no_token(one_long_forward):
    async def body():
        async with connect(one_long_forward) as stream:
            await send(stream, type="generate", id="a", tokens=[201] * 4000, max_tokens=5, ignore_eos=True)
            assert (await receive(stream))["type"] == "accepted"
            await asyncio.sleep(0.3)
            await send(stream, type="cancel", id="a")
            return await finish(stream, "a")
    frames = run(body())
    assert [frame["type"] for frame in frames] == ["done"] and frames[0]["reason"] == "cancelled"
    assert frames[0]["usage"]["completion_tokens"] == 0
    one_long_forward.wait_for("takt_kv_blocks_used", 0, 30)


def test_done_holds_all_that_is_promised_and_frames_about_nobody_are_ignored(sim):
    async def body():
        async with connect(sim) as stream:
            await send(stream, type="credit", id="nobody", tokens=5)
            await send(stream, **{**GENERATE, "max_tokens": 30, "logprobs": 2})
            return await finish(stream, "a")
    frames = run(body())
    done = frames[-1]
    assert set(done) == {"type", "id", "reason", "usage", "timings", "seed"}
    assert set(done["usage"]) == {"prompt_tokens", "completion_tokens", "cached_tokens"}
    assert set(done["timings"]) == {"queue_ms", "ttft_ms", "prefill_ms", "decode_ms", "itl_p50_ms", "itl_max_ms", "preemptions"}
    assert all(number >= 0 for number in done["timings"].values()) and isinstance(done["seed"], int)
    entries = [entry for frame in frames[1:-1] for entry in frame["logprobs"]]
    assert len(entries) == 30 and "tokens" not in frames[1]
    assert all(set(entry) == {"token", "text", "logprob", "top"} for entry in entries)


@pytest.fixture(scope="module")
def narrow():
    """Small bounds, slow steps: what queues, limits and deadlines refuse."""
    server = Server("--set", "device.kind=sim", "--set", "sim.scale=4", "--set", "scheduler.max_running=1",
                    "--set", "scheduler.max_waiting=1", "--set", "model.max_context=256", "--set", "server.max_message_kib=8",
                    "--set", "server.drain_seconds=1")
    yield server
    assert server.stop() == 0


def test_without_max_tokens_the_rest_of_the_context_is_used_and_beyond_it_ends_by_length(narrow):
    async def body():
        async with connect(narrow) as stream:
            await send(stream, type="generate", id="a", tokens=[5] * 250, ignore_eos=True)
            first = await finish(stream, "a")
            await send(stream, type="generate", id="a", tokens=[5] * 250, max_tokens=100, ignore_eos=True)
            second = await finish(stream, "a")
            await send(stream, type="generate", id="a", tokens=[5] * 300, max_tokens=1)
            return first, second, await finish(stream, "a")
    first, second, refused = run(body())
    for frames in (first, second):
        assert frames[-1]["reason"] == "length" and 6 <= frames[-1]["usage"]["completion_tokens"] <= 7
    assert refused[0]["code"] == "context_too_long" and "300" in refused[0]["message"] and "256" in refused[0]["message"]


def test_a_full_queue_is_429_and_says_when_to_come_again(narrow):
    held = []
    body = json.dumps({**HELLO, "max_tokens": 200}).encode()
    for state in ("running", "waiting"):
        held.append(open_socket(narrow))
        held[-1].sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        narrow.wait_for(f"takt_requests_{state}", 1)
    before = narrow.metric("takt_requests_refused_total")
    status, headers, answer = call(narrow, CHAT, HELLO)
    error = json.loads(answer)["error"]
    assert status == 429 and error["code"] == "queue_full" and error["type"] == "rate_limit_error"
    assert int(headers["Retry-After"]) >= 1 and int(headers["retry-after-ms"]) > 0 and headers["x-should-retry"] == "true"
    assert narrow.metric("takt_requests_refused_total") == before + 1
    # A request that waits and whose client leaves is gone, and the one that runs is not disturbed.
    reset(held.pop())
    narrow.wait_for("takt_requests_waiting", 0)
    assert held[0].recv(15) == b"HTTP/1.1 200 OK"
    held[0].close()
    narrow.wait_for("takt_requests_running", 0, 20)


def test_a_deadline_that_passes_is_504_and_its_own_code(narrow):
    status, _, answer = call(narrow, CHAT, {**HELLO, "max_tokens": 200, "deadline_ms": 150})
    assert status in (429, 504) and json.loads(answer)["error"]["code"] in ("deadline_exceeded", "deadline_unreachable")

    async def body():
        async with connect(narrow) as stream:
            await send(stream, type="generate", id="a", prompt="x", max_tokens=200, ignore_eos=True, deadline_ms=400)
            return await finish(stream, "a")
    frames = run(body())
    assert frames[-1]["type"] == "error" and frames[-1]["code"] in ("deadline_exceeded", "deadline_unreachable"), frames
    narrow.wait_for("takt_kv_blocks_used", 0)


def test_a_body_over_the_limit_is_413(narrow):
    status, _, answer = call(narrow, "/tokenize", {"prompt": "x" * 9000})
    assert status == 413 and json.loads(answer)["error"]["code"] == "too_large"


def test_stream_and_whole_answers_agree_on_text_and_reason_with_a_stop_string(sim):
    whole = json.loads(call(sim, CHAT, {**HELLO, "max_tokens": 40, "seed": 4})[2])["choices"][0]["message"]["content"]
    stop = whole[len(whole) // 2:len(whole) // 2 + 3]
    body = {**HELLO, "max_tokens": 40, "seed": 4, "stop": stop}
    cut = json.loads(call(sim, CHAT, body)[2])
    choice = cut["choices"][0]
    assert choice["finish_reason"] == "stop" and choice["message"]["content"] == whole[:whole.index(stop)]
    chunks = [json.loads(line) for line in events(call(sim, CHAT, {**body, "stream": True})[2])[:-1]]
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == choice["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_tenants_have_their_keys_classes_and_caps(tmp_path):
    digest = hashlib.sha256(b"secret-a").hexdigest()
    config = tmp_path / "config.toml"
    config.write_text('[device]\nkind = "sim"\n[sim]\nscale = 1\n[server]\ndrain_seconds = 1\n'
                      f'[[tenant]]\nname = "a"\nkey_sha256 = "{digest}"\nmax_running = 1\nmax_waiting = 1\nmax_connections = 2\n'
                      f'[[tenant]]\nname = "b"\nkey_sha256 = "{hashlib.sha256(b"secret-b").hexdigest()}"\ntokens_per_minute = 50\n')
    server = Server("--config", str(config))
    key = {"Authorization": "Bearer secret-a"}
    shown = base64.urlsafe_b64encode(b"secret-a").decode().rstrip("=")

    async def body():
        with pytest.raises(websockets.InvalidStatus) as nobody:
            await connect(server)
        assert nobody.value.response.status_code == 401
        async with connect(server, subprotocols=["takt.v1", "takt.key." + shown]) as one, connect(server, additional_headers=key):
            assert one.subprotocol == "takt.v1"
            with pytest.raises(websockets.InvalidStatus) as third:
                await connect(server, additional_headers=key)
            assert third.value.response.status_code == 429
            for name in "pqr":
                await send(one, type="generate", id=name, prompt="x", max_tokens=300, ignore_eos=True)
            end = await finish(one, "r")
            assert end[-1]["code"] == "queue_full" and end[-1]["retry_after_ms"] > 0
    run(body())
    server.wait_for("takt_requests_running", 0)
    spend = {"prompt": "x", "max_tokens": 60, "ignore_eos": True}
    other = {"Authorization": "Bearer secret-b"}
    assert call(server, "/v1/completions", spend, other)[0] == 200
    status, headers, answer = call(server, "/v1/completions", spend, other)
    assert status == 429 and json.loads(answer)["error"]["code"] == "rate_limited" and int(headers["Retry-After"]) > 1
    assert call(server, "/v1/completions", spend, key)[0] == 200     # the other one's tokens are its own
    assert server.stop() == 0 and not any("secret" in line or shown in line for line in server.log)


SERIES = """takt_requests_running takt_requests_waiting takt_kv_blocks_used takt_kv_blocks_total takt_kv_usage_ratio takt_connections
takt_prompt_tokens_total takt_cached_prompt_tokens_total takt_generated_tokens_total takt_requests_accepted_total
takt_requests_refused_total takt_requests_finished_total takt_preemptions_total takt_sla_misses_total takt_ttft_seconds
takt_inter_token_seconds takt_queue_seconds takt_request_seconds takt_cancel_to_free_seconds takt_steps_total takt_step_seconds
takt_step_prefill_tokens takt_step_padding_ratio takt_cost_model_error_ratio takt_cost_model_margin takt_budget_trim takt_sla_infeasible
takt_late_milliseconds_total vllm:num_requests_running vllm:num_requests_waiting vllm:kv_cache_usage_perc vllm:cache_config_info
vllm:time_to_first_token_seconds vllm:inter_token_latency_seconds""".split()


def test_every_series_is_there_and_the_books_agree(sim):
    before = {name: sim.metric(name) for name in ("takt_generated_tokens_total", "takt_inter_token_seconds_count")}
    assert call(sim, CHAT, {**HELLO, "max_tokens": 11})[0] == 200
    served = call(sim, "/metrics")[2]
    for name in SERIES:
        assert f"# TYPE {name} " in served, name
    for label in ('reason="stop"', 'reason="length"', 'reason="cancelled"', 'reason="error"', 'kind="ttft"', 'kind="itl"',
                  'mode="decode"', 'mode="prefill"', 'mode="mixed"', 'cause="prefill"', 'cause="reader"', 'le="0.0005"'):
        assert label in served, label
    sim.wait_for("takt_generated_tokens_total", before["takt_generated_tokens_total"] + 11)
    sim.wait_for("takt_inter_token_seconds_count", before["takt_inter_token_seconds_count"] + 10)
    sim.wait_for("takt_requests_running", 0)
    sim.wait_for("takt_requests_finished_total", sim.metric("takt_requests_accepted_total"))


def test_full_disks_for_logs_and_for_the_ready_line_end_nothing():
    with open("/dev/full", "wb") as full:
        process = subprocess.Popen([PROGRAM, "serve", *SIM, "--set", "server.port=0"], stdout=subprocess.PIPE, stderr=full,
                                   cwd=ROOT / "tests")
        port = int(process.stdout.readline().decode().rsplit(":", 1)[1])
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                assert connection.recv(15) == b"HTTP/1.1 200 OK"
        process.terminate()
        assert process.wait(HANG) == 0
        process.stdout.close()


def test_insecure_lets_others_in_without_keys():
    server = Server(*SIM, "--set", "server.host=0.0.0.0", "--insecure")
    assert call(server, "/health/live", headers={"Host": "any.example"})[0] == 200
    assert server.stop() == 0


def test_an_interrupted_generate_is_130():
    process = subprocess.Popen([PROGRAM, "generate", "--set", "device.kind=sim", "--max-tokens", "100000", "x"], stdout=subprocess.PIPE,
                               cwd=ROOT / "tests", env={**os.environ})
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=HANG)
    assert process.returncode == 130


def test_while_it_drains_nothing_new_is_taken_and_what_runs_is_finished():
    server = Server("--set", "device.kind=sim", "--set", "sim.scale=10", "--set", f"server.drain_seconds={HANG}")
    body = json.dumps({**HELLO, "max_tokens": 80, "stream": True}).encode()
    running = open_socket(server)
    running.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    seen = running.recv(65536)
    idle = open_socket(server)
    server.wait_for("takt_connections", 3)

    async def late():
        async with connect(server) as stream:
            await send(stream, type="generate", id="a", prompt="x", max_tokens=80, ignore_eos=True)
            assert (await receive(stream))["type"] == "accepted"
            server.process.send_signal(signal.SIGTERM)
            end = time.monotonic() + HANG
            while not any("stopping" in line for line in server.log):
                assert time.monotonic() < end
                await asyncio.sleep(0.01)
            await send(stream, type="generate", id="b", prompt="x", max_tokens=1)
            refused = await finish(stream, "b")
            assert refused[-1]["code"] == "draining", refused
            # Until the drain's end, when another process can take its place at the latest.
            assert HANG * 500 < refused[-1]["retry_after_ms"] <= HANG * 1000, refused
            with pytest.raises(OSError):
                open_socket(server)
            assert (await finish(stream, "a"))[-1]["reason"] == "length"
            await stream.wait_closed()
            assert stream.close_code == 1001
    run(late())
    while piece := running.recv(65536):
        seen += piece
    assert seen.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert idle.recv(1) == b""
    assert server.process.wait(HANG) == 0
