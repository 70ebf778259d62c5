"""HTTP: OpenAI routes, health, metrics, errors; raw sockets where a client library would hide the matter."""
import json
import select
import socket
import time
import urllib.error
import urllib.request

import pytest

from conftest import HANG, SIM, Server

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 6, "ignore_eos": True}


def call(server, path, body=None, headers=None, method=None):
    """(status, headers, body as text)."""
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(server.http + path, data, {"Content-Type": "application/json", **(headers or {})},
                                     method=method)
    try:
        with urllib.request.urlopen(request, timeout=HANG) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


def raw(server, data, seconds=HANG):
    """Sends bytes and reads until the server closes or goes quiet."""
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(data)
        connection.settimeout(seconds)
        out = b""
        try:
            while piece := connection.recv(65536):
                out += piece
        except TimeoutError:
            pass
        return out


def events(text):
    return [line[6:] for line in text.split("\n\n") if line.startswith("data: ")]


def test_health_models_metrics(sim):
    assert call(sim, "/health/live")[0] == 200
    assert json.loads(call(sim, "/health/ready")[2])["status"] == "ready"
    model = json.loads(call(sim, "/v1/models")[2])["data"][0]
    assert json.loads(call(sim, "/v1/models/" + model["id"])[2])["id"] == model["id"]
    assert call(sim, "/v1/models/other")[0] == 404
    text = call(sim, "/metrics")[2]
    for name in ("takt_requests_running", "takt_connections", "vllm:num_requests_waiting", "vllm:cache_config_info",
                 "takt_ttft_seconds_bucket", "takt_inter_token_seconds_bucket"):
        assert name in text, name
    assert "<html" in call(sim, "/")[2]


def test_a_whole_chat_answer_and_its_stream_say_the_same(sim):
    body = {**HELLO, "seed": 3, "n": 2}
    status, headers, text = call(sim, CHAT, body, {"x-request-id": "mine-1"})
    whole = json.loads(text)
    assert status == 200 and headers["x-request-id"] == "mine-1"
    assert whole["usage"]["completion_tokens"] == 12 and len(whole["choices"]) == 2
    status, headers, text = call(sim, CHAT, {**body, "stream": True, "stream_options": {"include_usage": True}})
    assert headers["Content-Type"].startswith("text/event-stream")
    lines = events(text)
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 12
    for choice in whole["choices"]:
        mine = [c["choices"][0] for c in chunks[:-1] if c["choices"][0]["index"] == choice["index"]]
        assert "".join(c["delta"].get("content", "") for c in mine) == choice["message"]["content"]
        assert mine[-1]["finish_reason"] == choice["finish_reason"] == "length"


def test_errors_have_the_form_and_status(sim):
    cases = [({"messages": []}, 400, "messages"), ({**HELLO, "model": "other"}, 404, "model"),
             ({**HELLO, "temperature": 101}, 400, "temperature"), ({**HELLO, "tool_choice": "required"}, 400, "tool_choice"),
             (b"{", 400, None), (b"", 400, None)]
    for body, status, param in cases:
        found, headers, text = call(sim, CHAT, body, method="POST")
        error = json.loads(text)["error"]
        assert (found, error["param"]) == (status, param) and error["message"] and error["type"]
    assert call(sim, CHAT, HELLO, {"Content-Type": "text/plain"})[0] == 415
    assert call(sim, CHAT, method="GET")[0] == 405
    assert call(sim, "/none")[0] == 404
    assert call(sim, CHAT, HELLO, {"Origin": "https://evil.example"})[0] == 403
    assert call(sim, "/health", headers={"Host": "evil.example"})[0] == 403
    assert call(sim, "/debug/steps")[0] == 404     # it is not server.admin


def test_the_last_steps_are_told_to_an_admin():
    server = Server(*SIM, "--set", "server.admin=true")
    assert json.loads(call(server, "/debug/steps")[2]) == {"steps": []}
    assert call(server, CHAT, {**HELLO, "max_tokens": 40, "ignore_eos": True})[0] == 200
    for _ in range(500):     # a step's last token may be with its reader before the step is in the books
        steps = json.loads(call(server, "/debug/steps")[2])["steps"]
        if sum(step["decode_rows"] for step in steps) >= 39:
            break
        time.sleep(0.01)
    assert sum(step["prefill_rows"] for step in steps) > 0 and sum(step["decode_rows"] for step in steps) >= 39
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
    assert all(step["end_ms"] >= step["begin_ms"] and (step["late"] > 0) == (step["late_cause"] != "") for step in steps)
    assert json.loads(call(server, "/debug/steps?last=3")[2])["steps"] == steps[-3:]
    assert call(server, "/debug/steps?last=0")[0] == call(server, "/debug/steps?last=x")[0] == 400
    assert server.stop() == 0


def test_tokenize_and_back(real):
    tokens = json.loads(call(real, "/tokenize", {"prompt": "Hello, world!"})[2])
    assert tokens["count"] == len(tokens["tokens"]) > 2
    assert json.loads(call(real, "/detokenize", {"tokens": tokens["tokens"]})[2])["prompt"] == "Hello, world!"
    plain = json.loads(call(real, "/tokenize", {"prompt": "<|im_end|>"})[2])["count"]
    special = json.loads(call(real, "/tokenize", {"prompt": "<|im_end|>", "parse_special": True})[2])["count"]
    assert special == 1 < plain
    assert call(real, "/tokenize", {"prompt": 5})[0] == 400
    assert call(real, "/detokenize", {"tokens": [10**9]})[0] == 400


def test_a_context_that_is_too_long_names_both_numbers(real):
    status, _, text = call(real, "/v1/completions", {"prompt": "word " * 9000})
    error = json.loads(text)["error"]
    assert status == 400 and error["code"] == "context_too_long" and "8192" in error["message"]


def test_keep_alive_and_pipelining(sim):
    one = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert raw(sim, one * 4 + last).count(b"HTTP/1.1 200") == 5


def test_a_message_that_can_be_read_in_two_ways_is_refused_and_nothing_after_it_is_read(sim):
    body = b'{"prompt":"x"}'
    get = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    post = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
    for data in (b"GET /health/live HTTP/1.1\r\n\r\n", b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
                 post + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\ne\r\n" + body + b"\r\n0\r\n\r\n",
                 post + b"Content-Length: 14\r\nContent-Length: 15\r\n\r\n" + body, post + b"Transfer-Encoding: identity\r\n\r\n" + get,
                 post + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"):
        answer = raw(sim, data + get)
        assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1 ") == 1, answer


def test_forms_of_a_request_that_others_on_the_way_may_choose(sim):
    """The absolute form, whose authority stands for Host; a body in chunks with trailers; 100-continue; an empty line before."""
    def get(target):
        return raw(sim, b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert get(b"http://localhost/health/live").startswith(b"HTTP/1.1 200")
    assert get(b"HTTP://localhost").startswith(b"HTTP/1.1 200")
    assert get(b"http://evil.example/health/live").startswith(b"HTTP/1.1 403")
    post = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
    chunks = post + b"Transfer-Encoding: chunked\r\n\r\n5;a=b\r\n{\"pro\r\n9\r\nmpt\":\"x\"}\r\n0\r\nX-Sum: 1\r\n\r\n"
    asked = post + b"Expect: 100-continue\r\nConnection: close\r\nContent-Length: 14\r\n\r\n" + b'{"prompt":"x"}'
    answer = raw(sim, chunks + b"\r\n" + asked)
    assert answer.count(b"HTTP/1.1 200") == 2 and answer.count(b"HTTP/1.1 100") == 1 and answer.count(b'"count":1') == 2
    assert call(sim, "/tokenize", {"prompt": "x"}, {"Content-Encoding": "gzip"})[0] == 415
    old = raw(sim, b"GET /health/live HTTP/1.0\r\n\r\n")
    assert old.startswith(b"HTTP/1.1 200") and b"Connection: close" in old


def test_bytes_that_are_no_http_do_no_harm(sim):
    for data in (b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"\0" * 100, b"SSH-2.0-x\r\n", b"GET / HTTP/9.9\r\n\r\n",
                 b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
                 b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: " + b"y" * 20000 + b"\r\n\r\n",
                 b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n"):
        answer = raw(sim, data, 0.5)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer
    assert raw(sim, b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 9000 + b"\r\n").startswith(b"HTTP/1.1 431")
    assert call(sim, "/health/live")[0] == 200


def test_a_client_that_leaves_frees_its_request(slow_sim):
    for stream in (False, True):
        body = json.dumps({**HELLO, "max_tokens": 4000, "stream": stream}).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        connection = socket.create_connection(("127.0.0.1", slow_sim.port))
        connection.sendall(head.encode() + body)
        slow_sim.wait_for("takt_requests_running", 1)
        connection.close()
        slow_sim.wait_for("takt_requests_running", 0)
        slow_sim.wait_for("takt_kv_blocks_used", 0)


def test_a_client_that_ends_its_side_has_left_and_is_told_nothing(slow_sim):
    body = json.dumps({**HELLO, "max_tokens": 4000}).encode()
    connection = socket.create_connection(("127.0.0.1", slow_sim.port))
    connection.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    slow_sim.wait_for("takt_requests_running", 1)
    connection.shutdown(socket.SHUT_WR)
    connection.settimeout(HANG)
    assert connection.recv(100) == b""
    slow_sim.wait_for("takt_requests_running", 0)


def test_health_answers_during_a_long_prefill(real):
    body = json.dumps({"prompt": "word " * 6000, "max_tokens": 1}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", real.port))
    connection.sendall(head.encode() + body)
    real.wait_for("takt_requests_running", 1, 20)
    for _ in range(15):
        assert [call(real, "/health/" + kind)[0] for kind in ("live", "ready")] == [200, 200]
    # All of them came while the prompt was still being read: none waited for it.
    assert select.select([connection], [], [], 0)[0] == [] and real.metric("takt_requests_running") == 1
    connection.close()
    real.wait_for("takt_requests_running", 0, 20)


def test_connections_are_counted_and_let_go(sim):
    before = sim.metric("takt_connections")
    held = [socket.create_connection(("127.0.0.1", sim.port)) for _ in range(50)]
    sim.wait_for("takt_connections", before + 50)
    for connection in held:
        connection.close()
    sim.wait_for("takt_connections", before)


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize", "/v1/responses", "/detokenize"])
@pytest.mark.parametrize("body", [b"[]", b"{}", b"null", b'{"prompt":{"a":[[[[]]]]}}', b"\xff\xfe", b"[" * 9000])
def test_odd_bodies_are_client_errors(sim, path, body):
    assert call(sim, path, body)[0] == 400
