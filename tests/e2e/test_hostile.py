"""Clients that are slow, broken or hostile: each harms nobody else and leaves nothing behind."""
import asyncio
import json
import pathlib
import random
import socket
import struct
import time

import pytest

from conftest import HANG, SIM, Server
from frames import connect, finish, receive, send
from raw_frames import frame, masked, upgrade
from test_http import call, raw


@pytest.fixture(scope="module")
def strict():
    """A small message limit, and the time-outs of a server that is in use."""
    server = Server("--set", "device.kind=sim", "--set", "sim.scale=0.2", "--set", "server.max_message_kib=64")
    yield server
    assert server.stop() == 0
    assert not any("exception" in line for line in server.log)


@pytest.fixture(scope="module")
def hasty():
    """Short time-outs, so that what runs into them does so soon. A busy machine makes honest clients run into them too."""
    server = Server("--set", "device.kind=sim", "--set", "sim.scale=0.2", "--set", "server.header_seconds=1", "--set", "server.ping_seconds=0.5")
    yield server
    assert server.stop() == 0
    assert not any("exception" in line for line in server.log)


def read_to_end(connection):
    """What comes until the server closes, or resets."""
    seen = b""
    try:
        while piece := connection.recv(65536):
            seen += piece
    except ConnectionError:
        pass
    return seen


def clean(server, connections=0, patience=3):
    """Everything that anybody held is given back. One connection is the scraper's own."""
    server.wait_for("takt_requests_running", 0, 10)
    server.wait_for("takt_requests_waiting", 0)
    server.wait_for("takt_kv_blocks_used", 0)
    server.wait_for("takt_connections", connections + 1, patience)


def wait_until_served(server):
    """The places of those who have gone are free again."""
    for _ in range(500):
        if raw(server, b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 200"):
            return
        time.sleep(0.02)


def reset(connection):
    """Closes with a reset instead of a farewell."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def resident_mib(server):
    with open(f"/proc/{server.process.pid}/statm") as file:
        return int(file.read().split()[1]) * 4 // 1024


def open_socket(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=HANG)


UPGRADE = upgrade()
GENERATE = {"type": "generate", "id": "a", "prompt": "x" * 40, "max_tokens": 3000, "ignore_eos": True}


def test_heads_that_come_a_byte_at_a_time_run_out_of_time_and_hinder_nobody(hasty):
    """The time is that of the whole head: bytes that go on coming win none."""
    slow = [open_socket(hasty) for _ in range(200)]
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 300
    for index in range(len(head)):
        for connection in slow:
            try:
                connection.send(head[index:index + 1])
            except OSError:
                pass
        if hasty.metric("takt_connections") == 1:   # the scraper's own
            break
        time.sleep(0.1)
    assert 0 < index < len(head) - 1
    for connection in slow:
        assert read_to_end(connection) == b""
        connection.close()
    clean(hasty)


def test_a_body_that_never_comes_runs_out_of_time(hasty):
    begin = time.monotonic()
    with open_socket(hasty) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
        assert not read_to_end(connection).startswith(b"HTTP/1.1 200")
    assert time.monotonic() - begin > 3
    clean(hasty)


def test_answers_that_nobody_takes_run_out_of_time(hasty):
    """The client lives, and asks on: it reads nothing of what it is told."""
    with open_socket(hasty) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(0.5)
        with pytest.raises(OSError):                # its requests wait behind the answer that does not leave
            while True:
                connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
        clean(hasty, patience=30)


@pytest.mark.parametrize("begin, piece", [(b"1;", b"x" * 65536), (b"0\r\nX: ", b"x" * 65536), (b"0\r\n", b"X: " + b"y" * 4093 + b"\r\n")])
def test_an_endless_chunk_head_or_trailer_is_cut_and_takes_no_memory(strict, begin, piece):
    before = resident_mib(strict)
    with open_socket(strict) as connection:
        connection.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + begin)
        with pytest.raises(OSError):
            for _ in range((64 << 20) // len(piece)):
                connection.sendall(piece)
    assert resident_mib(strict) < before + 16
    clean(strict)


def test_a_reset_at_every_byte_of_a_request(strict):
    body = json.dumps({"prompt": "x", "max_tokens": 3000, "ignore_eos": True, "stream": True}).encode()
    exchanges = [b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body),
                 UPGRADE + masked(json.dumps(GENERATE)) + masked('{"type":"cancel","id":"a"}')]
    for bytes_ in exchanges:
        for cut in range(len(bytes_) + 1):
            connection = open_socket(strict)
            connection.sendall(bytes_[:cut])
            if cut % 3 == 0:
                time.sleep(0.001)
            reset(connection)
    clean(strict)
    assert call(strict, "/v1/completions", {"prompt": "x", "max_tokens": 2})[0] == 200


def test_a_reset_at_every_moment_of_a_stream(strict):
    chance = random.Random(5)
    for _ in range(150):
        connection = open_socket(strict)
        connection.sendall(UPGRADE)
        for index in range(3):
            connection.sendall(masked(json.dumps({**GENERATE, "id": str(index)})))
        for _ in range(chance.randrange(40)):      # so many pieces of what it is sent: the handshake, frames of three streams
            connection.recv(chance.choice((16, 256, 4096)))
        reset(connection) if chance.random() < 0.5 else connection.close()
    clean(strict)


def test_a_websocket_that_answers_no_ping_is_let_go(hasty):
    with open_socket(hasty) as connection:
        connection.sendall(UPGRADE + masked(json.dumps({**GENERATE, "max_tokens": 100000})))
        seen = read_to_end(connection)
    assert b"\x89\x00" in seen and b'"done"' not in seen
    clean(hasty)


def test_a_client_that_does_not_read_is_paused_and_others_go_on(strict):
    async def body():
        async with connect(strict) as other:
            stalled = open_socket(strict)
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stalled.sendall(UPGRADE)
            for index in range(4):
                stalled.sendall(masked(json.dumps({**GENERATE, "id": "s" * 50 + str(index), "max_tokens": 100000, "echo_tokens": True,
                                                   "logprobs": 20})))
            await send(other, **{**GENERATE, "max_tokens": 500})
            frames = await finish(other, "a")
            assert frames[-1]["usage"]["completion_tokens"] == 500
            reset(stalled)
    asyncio.run(asyncio.wait_for(body(), HANG))
    clean(strict)


def test_connections_beyond_the_limit_are_told_so():
    server = Server(*SIM, "--set", "server.max_connections=600", "--set", f"server.header_seconds={HANG}")
    held = [open_socket(server) for _ in range(600)]
    answer = raw(server, b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 503") and b"max_connections" in answer and b"Retry-After" in answer
    held += [open_socket(server) for _ in range(1000)]
    # Among those that wait to be accepted the scraper is one more: it has its turn once they are gone.
    for connection in held:
        connection.close()
    wait_until_served(server)
    clean(server)
    assert server.stop() == 0


def test_refused_connections_are_held_in_a_bounded_number():
    server = Server(*SIM, "--set", "server.max_connections_per_address=5", "--set", f"server.header_seconds={HANG}")
    held = [open_socket(server) for _ in range(5)]
    files = pathlib.Path(f"/proc/{server.process.pid}/fd")
    end = time.monotonic() + HANG
    while len(list(files.iterdir())) < 5 + 3 and time.monotonic() < end:
        time.sleep(0.01)
    before, most, silent = len(list(files.iterdir())), 0, []
    for _ in range(500):
        silent.append(open_socket(server))
        most = max(most, len(list(files.iterdir())))
    # Each would have a second to say what it wants; those beyond the bound are closed unheard.
    assert most < before + 64, (before, most)
    # Who comes from elsewhere is served meanwhile.
    with socket.create_connection(("127.0.0.1", server.port), source_address=("127.0.0.2", 0), timeout=HANG) as other:
        other.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert other.recv(65536).startswith(b"HTTP/1.1 200")
    for connection in silent + held:
        connection.close()
    wait_until_served(server)
    clean(server)
    assert server.stop() == 0


def test_one_address_has_its_limit():
    server = Server(*SIM, "--set", "server.max_connections_per_address=5", "--set", f"server.header_seconds={HANG}")
    held = [open_socket(server) for _ in range(5)]
    assert b"max_connections_per_address" in raw(server, b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
    held.pop().close()
    server.wait_for("takt_connections", 5)
    for connection in held:
        connection.close()
    assert server.stop() == 0


def test_long_texts_wait_for_the_tokeniser_in_a_bounded_queue():
    server = Server(*SIM, "--set", "scheduler.max_running=1", "--set", "scheduler.max_waiting=2", "--set", "model.max_context=1000")

    async def body():
        async with connect(server, max_size=None) as stream:
            for index in range(60):
                await send(stream, type="generate", id=str(index), prompt="x" * 60000, max_tokens=1)
            ends = [await receive(stream) for _ in range(60)]
            assert {end["type"] for end in ends} == {"error"} and len({end["id"] for end in ends}) == 60
            codes = [end["code"] for end in ends]
            assert set(codes) == {"context_too_long", "queue_full"}, set(codes)
            assert all(end["retry_after_ms"] > 0 for end in ends if end["code"] == "queue_full")
            await send(stream, type="generate", id="last", prompt="x", max_tokens=2, ignore_eos=True)
            return await finish(stream, "last")
    assert asyncio.run(asyncio.wait_for(body(), HANG))[-1]["reason"] == "length"
    assert server.stop() == 0


REQUEST = {"type": "generate", "prompt": "x", "max_tokens": 50, "ignore_eos": True}
RESPONSE = {"type": "response.create", "input": "x", "max_output_tokens": 50}
FLOODS = {
    "bad frames": ("/v1/stream", masked("nope") * 200), "binary frames": ("/v1/stream", frame(0x82, b"x" * 100) * 200),
    "pings": ("/v1/stream", frame(0x89, b"p" * 125) * 200), "pongs": ("/v1/stream", frame(0x8A, b"p" * 125) * 200),
    "requests": ("/v1/stream", b"".join(masked(json.dumps({**REQUEST, "id": str(i)})) for i in range(200))),
    "one id": ("/v1/stream", masked(json.dumps({**REQUEST, "id": "a"})) * 200),
    "credit": ("/v1/stream", masked('{"type":"credit","id":"q","tokens":9007199254740991}') * 300),
    "long token lists": ("/v1/stream", masked('{"type":"generate","id":"a","tokens":[' + "1," * 20000 + "-1]}")),
    "bad responses": ("/v1/responses", masked("{}") * 200),
    "pasts without an answer": ("/v1/responses", masked(json.dumps({**RESPONSE, "input": "y" * 50000, "generate": False}))),
    "fragments of one byte": ("/v1/stream", frame(0x01, b" ") + frame(0x00, b" ") * 400 + frame(0x80, b" ")),
    "fragments of nothing": ("/v1/stream", frame(0x01, b"") + frame(0x00, b"") * 2000 + frame(0x80, b" ")),
    "a message that never ends": ("/v1/stream", frame(0x00, b"") * 2000, frame(0x01, b" ")),
    "lanes": ("/v1/responses", b"".join(masked(json.dumps({**RESPONSE, "stream_id": str(i)})) for i in range(200)))}


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_whose_answers_nobody_reads_takes_no_memory(strict, kind):
    path, piece, *begin = FLOODS[kind]
    with open_socket(strict) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(1)
        connection.sendall(upgrade(path.encode()) + b"".join(begin))
        before = resident_mib(strict)
        try:
            for _ in range((40 << 20) // len(piece)):
                connection.sendall(piece)
        except OSError:
            pass                        # it is read no further, or let go
        assert resident_mib(strict) < before + 24        # what is remembered for previous_response_id has 16
        assert call(strict, "/v1/completions", {"prompt": "x", "max_tokens": 2})[0] == 200
        reset(connection)
    clean(strict)


@pytest.mark.parametrize("begin", [b"", frame(0x01, b"{")], ids=["whole", "continued"])
def test_a_frame_costs_what_came_of_it_not_what_its_head_claims(sim, begin):
    head = bytes([0x80 if begin else 0x81, 0x80 | 127]) + struct.pack(">Q", (4 << 20) - 1) + b"\0\0\0\0"
    before = resident_mib(sim)
    connections = [open_socket(sim) for _ in range(32)]
    for connection in connections:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(upgrade() + begin + head + b" ")
        connection.recv(4096)
    for _ in range(3):
        for connection in connections:
            connection.sendall(b" ")
        assert call(sim, "/v1/completions", {"prompt": "x", "max_tokens": 2})[0] == 200
    assert resident_mib(sim) < before + 16, before      # 32 such claims: 128 MiB
    # The rest of one comes, in pieces: it is read as one frame.
    connections[0].sendall(b" " * (3 << 20))
    rest = json.dumps({"type": "generate", "id": "a", "prompt": "x", "max_tokens": 1, "ignore_eos": True}).encode()
    connections[0].sendall(rest.rjust((4 << 20) - 1 - 4 - (3 << 20)))
    seen = b""
    while b'"done"' not in seen and b'"error"' not in seen:
        piece = connections[0].recv(65536)
        assert piece
        seen += piece
    assert (b'"done"' in seen) == (not begin), seen      # behind a lone "{" it is no JSON
    for connection in connections:
        connection.close()
    clean(sim)


def test_messages_that_never_end_share_one_room_and_ordinary_ones_come_through():
    """Of up to 4 MiB each, 64 KiB of it not counted: 65 have room in 256 MiB."""
    begun = frame(0x01, b" " * ((4 << 20) - 1))
    server = Server("--set", "device.kind=sim")
    before = resident_mib(server)
    connections = []

    def begin_message():
        connections.append(open_socket(server))
        connections[-1].sendall(upgrade())
        seen = b""
        while not seen.endswith(b"\r\n\r\n"):
            seen += connections[-1].recv(4096)
        connections[-1].sendall(begun)
        connections[-1].sendall(frame(0x89, b"there"))     # answered once the rest is read
        return connections[-1].recv(4096)
    for _ in range(65):
        assert begin_message() == b"\x8a\x05there"
    assert begin_message().startswith(b"\x88\x02" + struct.pack(">H", 1013))
    assert any("no room for a message" in line for line in server.log)
    assert resident_mib(server) < before + 300

    async def body(size):
        async with connect(server) as stream:
            await send(stream, **{**GENERATE, "max_tokens": 2, "prompt": "x" * 40 + " " * size})
            return (await finish(stream, "a"))[-1]
    assert asyncio.run(asyncio.wait_for(body(0), HANG))["reason"] == "length"
    assert call(server, "/v1/completions", {"prompt": "x", "max_tokens": 2})[0] == 200
    for connection in connections:
        connection.close()
    clean(server)
    assert begin_message() == b"\x8a\x05there"            # what they held is given back
    connections[-1].close()
    assert server.stop() == 0


def test_bodies_that_never_end_share_that_room_and_ordinary_requests_come_through():
    server = Server("--set", "device.kind=sim")
    before = resident_mib(server)
    size = 4 << 20
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size
    connections = []

    def begin_body():
        connections.append(open_socket(server))
        connections[-1].sendall(head + b" " * (size - 1))
        return connections[-1]
    for _ in range(65):
        begin_body()
    long_body = json.dumps({"prompt": "x", "max_tokens": 2}).encode().rjust(size - 1)
    for _ in range(500):                                  # until all that was sent has been read
        status, headers, text = call(server, "/v1/completions", long_body)
        if status != 200:
            break
        time.sleep(0.02)
    assert status == 503 and headers["Retry-After"] == "1"
    error = json.loads(text)["error"]
    assert error["code"] == "queue_full" and "no room for this body" in error["message"]
    assert call(server, "/v1/completions", {"prompt": "x", "max_tokens": 2})[0] == 200
    assert resident_mib(server) < before + 300
    for connection in connections:
        connection.close()
    clean(server)
    assert call(server, "/v1/completions", long_body)[0] == 200     # what they held is given back
    assert server.stop() == 0


def test_mutated_frames_never_end_the_socket_or_a_neighbour(strict):
    """JSON with its parts exchanged: each frame is answered or taken, and the stream beside them goes on."""
    chance = random.Random(3)
    values = [None, True, -1, 0, 1.5, 1e308, 2**63, "", "x", "\U0001f600", [], {}, [[]], ["a"], [1], {"a": {}}, "a" * 300]
    names = ["type", "id", "prompt", "messages", "tokens", "max_tokens", "temperature", "top_p", "stop", "seed", "logit_bias", "credit",
             "tools", "logprobs", "class", "deadline_ms", "echo_tokens", "none"]

    async def body():
        async with connect(strict) as stream:
            await send(stream, **{**GENERATE, "id": "steady", "max_tokens": 400})
            for index in range(600):
                frame = {"type": chance.choice(["generate", "cancel", "credit"]), "id": f"m{index}", "prompt": "x", "max_tokens": 2}
                for _ in range(chance.randint(1, 3)):
                    frame[chance.choice(names)] = chance.choice(values)
                if frame.get("id") == "steady":
                    continue
                await stream.send(json.dumps(frame))
            await send(stream, type="generate", id="last", prompt="x", max_tokens=3, ignore_eos=True)
            ends = {}
            while "steady" not in ends or "last" not in ends:
                frame = await receive(stream)
                if frame["type"] in ("done", "error") and frame["id"] is not None:
                    # An id of the values above may come twice, one after the other.
                    assert frame["id"] not in ends or frame["id"] in values, frame
                    ends[frame["id"]] = frame
            return ends
    ends = asyncio.run(asyncio.wait_for(body(), HANG))
    assert ends["steady"]["reason"] == ends["last"]["reason"] == "length"
    clean(strict)
