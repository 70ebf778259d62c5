"""Faults that users of other servers met (docs/cases.md), seen through the doors: one test a kind, inputs of our own."""
import asyncio
import hashlib
import json
import signal
import subprocess
import time

import pytest
import websockets

from conftest import PROGRAM, ROOT, Server
from frames import connect, finish, receive, send, text
from test_http import CHAT, HELLO, call, events
from test_program import caught

TEMPLATE = """{% if messages[0].role != 'user' %}{{ raise_exception('the user speaks first') }}{% endif %}
{%- for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}"""


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 60))


@pytest.fixture(scope="module")
def tenants(tmp_path_factory):
    """Five tenants, two of whom share their prefix cache, and a template that refuses some conversations."""
    folder = tmp_path_factory.mktemp("cases")
    (folder / "chat.jinja").write_text(TEMPLATE)
    config = folder / "config.toml"
    config.write_text(f'[device]\nkind = "sim"\n[sim]\nscale = 0\n[model]\nchat_template = "{folder}/chat.jinja"\n' + "".join(
        f'[[tenant]]\nname = "{name}"\nkey_sha256 = "{hashlib.sha256(name.encode()).hexdigest()}"\n'
        f'shared_prefix = {"true" if name in "xy" else "false"}\n' for name in "abcxy"))
    server = Server("--config", str(config))
    yield server
    assert server.stop() == 0


def key(name):
    return {"Authorization": "Bearer " + name}


def test_a_prompt_is_found_in_the_cache_by_its_own_tenant_alone(tenants):
    prompt = {"prompt": "one long beginning " * 20, "max_tokens": 1, "ignore_eos": True}

    def cached(name, **more):
        answer = call(tenants, "/v1/completions", {**prompt, **more}, key(name))
        assert answer[0] == 200, answer[2]
        return json.loads(answer[2])["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert [cached(name) for name in "aabb"] == [0, 368, 0, 368]
    assert [cached(name) for name in "xyc"] == [0, 368, 0]          # x and y share on purpose
    assert cached("c", user="a") == 368                             # a hint of the body moves nobody into another's cache
    for field in ("domain", "tenant", "cache_salt"):
        status, _, answer = call(tenants, "/v1/completions", {**prompt, field: "a"}, key("c"))
        assert status == 400 and field in answer

    async def accepted(name):
        async with connect(tenants, additional_headers=key(name)) as stream:
            await send(stream, type="generate", id="n", prompt="a prompt of the native door " * 10, max_tokens=1)
            first = await receive(stream)
            await finish(stream, "n")
            return first["cached_tokens"]
    assert [run(accepted(name)) for name in "aab"] == [0, 272, 0]


def test_a_template_that_refuses_is_400_with_its_own_words_and_spoils_nothing(tenants):
    wrong = {"messages": [{"role": "system", "content": "s"}], "max_tokens": 4, "ignore_eos": True}
    for _ in range(3):
        for path, body in ((CHAT, wrong), (CHAT, {**wrong, "stream": True}), ("/tokenize", {"messages": wrong["messages"]}),
                           ("/v1/responses", {"input": wrong["messages"], "max_output_tokens": 4})):
            status, _, answer = call(tenants, path, body, key("a"))
            error = json.loads(answer)["error"]
            assert (status, error["code"], error["message"]) == (400, "bad_request", "the user speaks first"), path
    assert call(tenants, CHAT, HELLO, key("a"))[0] == 200

    async def body():
        async with connect(tenants, additional_headers=key("a")) as stream:
            await send(stream, type="generate", id="n", messages=wrong["messages"])
            refused = await finish(stream, "n")
            await send(stream, type="generate", id="n", messages=HELLO["messages"], max_tokens=2, ignore_eos=True)
            return refused, await finish(stream, "n")
    refused, served = run(body())
    assert refused[-1]["code"] == "bad_request" and refused[-1]["message"] == "the user speaks first"
    assert served[-1]["reason"] == "length"


def test_a_stream_over_http_has_one_end_and_one_reason_a_choice(sim):
    for more, reason in (({"max_tokens": 9, "ignore_eos": True}, "length"), ({"max_tokens": 4000, "seed": 3}, "stop")):
        body = {"messages": HELLO["messages"], "n": 3, "seed": 3, **more}
        lines = events(call(sim, CHAT, {**body, "stream": True})[2])
        assert lines.count("[DONE]") == 1 and lines[-1] == "[DONE]"
        choices = [choice for line in lines[:-1] for choice in json.loads(line)["choices"]]
        ends = [choice for choice in choices if choice["finish_reason"]]
        assert sorted(end["index"] for end in ends) == [0, 1, 2] and {end["finish_reason"] for end in ends} == {reason}
        for index in range(3):
            assert [choice for choice in choices if choice["index"] == index][-1]["finish_reason"]    # nothing after its end
        whole = json.loads(call(sim, CHAT, body)[2])["choices"]
        for choice in whole:
            assert choice["finish_reason"] == reason
            assert choice["message"]["content"] == "".join(
                one["delta"].get("content", "") for one in choices if one["index"] == choice["index"])


def test_gauges_are_true_soon_after_a_mass_cancel_and_the_next_request_is_served_as_before():
    server = Server("--set", "device.kind=sim", "--set", "scheduler.max_running=16", "--set", "server.drain_seconds=1")

    async def one(stream):
        await send(stream, type="generate", id="n", prompt="x", max_tokens=20, ignore_eos=True, temperature=0)
        return await finish(stream, "n")

    async def body():
        async with connect(server) as calm:
            before = await one(calm)
            for _ in range(5):
                async with connect(server, max_queue=None) as crowd:
                    for i in range(200):
                        await send(crowd, type="generate", id=str(i), prompt="y" * (i + 1), max_tokens=4000, ignore_eos=True)
                    while (await receive(crowd))["type"] != "delta":
                        pass
                    crowd.transport.abort()
            # Nothing new arrives that would make them right by the way.
            for name in ("takt_requests_running", "takt_requests_waiting", "takt_kv_blocks_used"):
                await asyncio.to_thread(server.wait_for, name, 0)
            assert server.metric("vllm:num_requests_running") == server.metric("vllm:num_requests_waiting") == 0
            after = await one(calm)
            assert text(after) == text(before) and after[-1]["timings"]["preemptions"] == 0
    run(body())
    assert server.metric("takt_requests_accepted_total") == server.metric("takt_requests_finished_total")
    assert server.stop() == 0


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/v1/completions", CHAT, "/v1/responses"])
def test_a_wrong_model_is_404_wherever_it_may_be_named(sim, path):
    inputs = {"/tokenize": {"prompt": "x"}, "/detokenize": {"tokens": [104]}, CHAT: HELLO, "/v1/responses": {"input": "x"}}
    body = {**inputs.get(path, {"prompt": "x", "max_tokens": 1})}
    status, _, answer = call(sim, path, {**body, "model": "another"})
    error = json.loads(answer)["error"]
    assert status == 404 and error["code"] == "not_found" and error["param"] == "model" and "sim" in error["message"]
    if path != "/v1/responses":
        assert call(sim, path, {**body, "model": "sim"})[0] == 200


def test_errors_say_no_more_than_their_own_words(sim):
    """Not what a library appends to them."""
    for path, body in (("/detokenize", {"tokens": [999]}), ("/v1/completions", {"prompt": [999]})):
        assert json.loads(call(sim, path, body)[2])["error"]["message"] == "token id 999 is not in the vocabulary of 257"
    message = json.loads(call(sim, CHAT, {**HELLO, "class": "gold"})[2])["error"]["message"]
    assert message == 'class: found "gold", allowed "default"'


def test_an_interrupt_while_a_prompt_is_typed_is_130():
    process = subprocess.Popen([PROGRAM, "generate", "--set", "device.kind=sim", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, cwd=ROOT / "tests")
    process.stdin.write(b"half a prom")
    process.stdin.flush()
    end = time.monotonic() + 20
    while not caught(process.pid, signal.SIGINT):
        assert time.monotonic() < end
        time.sleep(0.01)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130     # with its standard input still open
    for pipe in (process.stdin, process.stdout, process.stderr):
        pipe.close()


def test_a_request_of_a_heavier_class_does_not_wait_for_full_slots(tmp_path):
    config = tmp_path / "config.toml"
    config.write_text('[device]\nkind = "sim"\n[scheduler]\nmax_running = 2\n[server]\ndrain_seconds = 1\n[sla]\nttft_ms = 300\n'
                      '[[sla.class]]\nname = "batch"\nitl_ms = 1000\nttft_ms = 600000\nweight = 0.1\n')
    server = Server("--config", str(config))
    batch = {"type": "generate", "max_tokens": 1200, "ignore_eos": True, "temperature": 0, "class": "batch"}

    async def body():
        async with connect(server) as stream:
            for name in "pq":
                await send(stream, **batch, id=name, prompt=name * 50)
            texts, ends, order, asked = {"p": "", "q": "", "h": ""}, {}, [], False
            while len(ends) < 3:
                frame = await receive(stream)
                assert frame["type"] != "error", frame
                if frame["type"] == "done":
                    ends[frame["id"]] = frame
                    order.append(frame["id"])
                if frame["type"] != "delta":
                    continue
                texts[frame["id"]] += frame["text"]
                if not asked and texts["p"] and texts["q"]:
                    asked = True
                    await send(stream, type="generate", id="h", prompt="now", max_tokens=4, ignore_eos=True)
            # Each of them alone: who gave way has lost nothing of its text.
            for name in "pq":
                await send(stream, **batch, id=name, prompt=name * 50)
                assert text(await finish(stream, name)) == texts[name]
            return ends, order
    ends, order = run(body())
    assert order[0] == "h" and ends["h"]["reason"] == "length"
    assert sorted(ends[name]["timings"]["preemptions"] for name in "pq") == [0, 1]
    assert all(ends[name]["usage"]["completion_tokens"] == 1200 for name in "pq")
    assert server.stop() == 0


def test_a_lost_device_ends_its_requests_with_that_code_and_the_program_with_1():
    """One step in fifty thousand fails under sim.faults; `device.on_lost` is "exit": whoever supervises the program starts it anew."""
    server = Server("--set", "device.kind=sim", "--set", "sim.scale=0", "--set", "sim.faults=true", "--set", "server.drain_seconds=5")

    async def body():
        async with connect(server, max_queue=None) as stream:
            for _ in range(200):
                await send(stream, type="generate", id="n", prompt="x", max_tokens=8000, ignore_eos=True)
                end = (await finish(stream, "n"))[-1]
                if end["type"] == "error":
                    break
            assert end["code"] == "device_lost" and end["message"], end
            # Until the program has ended, new requests are told the same, and nobody takes it for ready.
            await send(stream, type="generate", id="m", prompt="x", max_tokens=1)
            try:
                assert (await finish(stream, "m"))[-1]["code"] in ("device_lost", "draining")
                await stream.wait_closed()
            except websockets.ConnectionClosed:
                pass
            return stream.close_code
    assert run(body()) == 1001
    assert server.process.wait(20) == 1
    assert any("the device is lost" in line for line in server.log)
