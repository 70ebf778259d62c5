"""Clients that mean harm, or are broken: each is a function that runs until `stop` is set, on a thread of its own, and expects nothing
but that the server lives. What they send and how long they wait is drawn from `chance`, so a seed gives the same storm."""
import json
import os
import random
import select
import socket
import struct
import threading

import raw_frames as raw

HTTP_POST = b"POST %s HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %d\r\n\r\n%s"
CHAT = b"/v1/chat/completions"
COMPLETIONS = b"/v1/completions"
TOKENS = 200       # of an answer that is never read to its end


class Target:
    """Where the attackers send: an address, and the header that makes them a tenant."""

    def __init__(self, port, key=None):
        self.port = port
        self.header = f"Authorization: Bearer {key}\r\n".encode() if key else b""

    def connect(self, receive_bytes=None):
        connection = socket.socket()
        if receive_bytes:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connection.settimeout(10)
        connection.connect(("127.0.0.1", self.port))
        return connection

    def post(self, path, body):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return HTTP_POST % (path, self.header, len(data), data)

    def upgrade(self, path=b"/v1/stream"):
        return raw.upgrade(path, self.header)


def leave(connection, chance):
    """With a reset or a farewell."""
    if chance.random() < 0.5:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def drain(connection, seconds):
    """Reads what comes for so long, or until the end."""
    while select.select([connection], [], [], seconds)[0]:
        if not connection.recv(65536):
            return


def generate(name, chance, **more):
    return json.dumps({"type": "generate", "id": name, "prompt": "attack " * chance.randrange(1, 60), "max_tokens": TOKENS,
                       "ignore_eos": True, **more})


def byte_by_byte(target, stop, chance):
    """Heads and bodies that never end."""
    heads = [b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 5000,
             b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + target.header + b"Content-Length: 9000\r\n\r\n" + b" " * 5000]
    slow = [(target.connect(), chance.choice(heads)) for _ in range(60)]
    at = 0
    while not stop.wait(0.05):
        at += 1
        for index, (connection, head) in enumerate(slow):
            try:
                connection.send(head[at % len(head):at % len(head) + 1] if at >= len(head) else head[at - 1:at])
            except OSError:
                connection.close()
                slow[index] = (target.connect(), chance.choice(heads))
    for connection, _ in slow:
        connection.close()


def header_floods(target, stop, chance):
    """Heads over every bound."""
    while not stop.wait(0.02):
        with target.connect() as connection:
            lines = chance.choice([b"X: " + b"y" * 200_000 + b"\r\n", b"X: y\r\n" * 20_000, b"Cookie: a\r\n" * 9_000,
                                   b"Authorization: Bearer " + b"k" * 60_000 + b"\r\n"])
            connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n" + lines + b"\r\n")
            drain(connection, 0.2)


def resets(target, stop, chance):
    """Requests on every door whose client is gone after some bytes: of the request, or of the answer."""
    while not stop.wait(0.01):
        with target.connect() as connection:
            body = {"prompt": "reset " * chance.randrange(1, 200), "max_tokens": TOKENS, "ignore_eos": True, "stream": chance.random() < 0.7}
            data = chance.choice([
                target.post(COMPLETIONS, body), target.upgrade() + raw.masked(generate("a", chance)),
                target.upgrade(b"/v1/responses") + raw.masked(json.dumps({"type": "response.create", "input": "hello " * 30,
                                                                          "max_output_tokens": TOKENS}))])
            if chance.random() < 0.4:
                data = data[:chance.randrange(len(data))]
            connection.sendall(data)
            for _ in range(chance.randrange(4)):
                if select.select([connection], [], [], 0.3)[0]:
                    connection.recv(chance.choice((1, 100, 4096)))
            leave(connection, chance)


def half_open(target, stop, chance):
    """Connections that say nothing, or half of something, and stay."""
    held = []
    while not stop.wait(0.02):
        held.append(target.connect())
        data = chance.choice([b"", b"G", b"GET / HTTP/1.1\r\n", target.upgrade()[:-2], target.upgrade(), target.upgrade() + b"\x81\xfe\xff"])
        held[-1].sendall(data)
        if len(held) > 200:
            held.pop(chance.randrange(len(held))).close()
    for connection in held:
        connection.close()


def odd_frames(target, stop, chance):
    """Frames that are huge, nested, binary, broken in pieces, no UTF-8, or no frames."""
    whole = generate("a", chance).encode()
    while not stop.wait(0.01):
        with target.connect() as connection:
            connection.sendall(target.upgrade(chance.choice([b"/v1/stream", b"/v1/responses"])))
            for _ in range(chance.randrange(1, 6)):
                connection.sendall(chance.choice([
                    raw.masked("[" * 100_000), raw.masked('{"a":' * 30_000), raw.masked("x" * 300_000), raw.frame(0x82, os.urandom(500)),
                    raw.frame(0x81, b"\xff\xfe\xc3"), raw.frame(0x01, whole[:7]) + raw.frame(0x00, whole[7:20]), raw.frame(0x83, b""),
                    raw.frame(0x89, b"p" * 125) * 50, raw.frame(0x88, b"\x03\xe8"), os.urandom(200), raw.frame(0x01, b"") * 300,
                    raw.masked(json.dumps({"type": "generate", "id": "x" * 65, "prompt": "\ud800"})),
                    raw.masked(json.dumps({"type": "generate", "id": "n", "tokens": [10**9, -1]})), raw.masked('{"type":"cancel","id":"a"}')]))
            drain(connection, chance.choice((0, 0.05)))
            leave(connection, chance)


def bad_bodies(target, stop, chance):
    """Requests over HTTP that mean nothing, pipelined, with more behind them."""
    bodies = [b"\xff\xfe\x00", b'{"prompt":"\xc3\x28"}', b'{"prompt":"\\ud800"}', b"[" * 60_000, b'{"messages":[{"role":"user","content":{"a":[]}}]}',
              b'{"prompt":"x","max_tokens":1e400}', b'{"prompt":"x","n":99999}', b'{"prompt":"x","logit_bias":{"-1":5}}', b"x" * 300_000]
    while not stop.wait(0.02):
        with target.connect() as connection:
            for _ in range(chance.randrange(1, 5)):
                connection.sendall(target.post(chance.choice([CHAT, COMPLETIONS, b"/tokenize", b"/v1/responses", b"/detokenize", b"/none"]),
                                               chance.choice(bodies)))
            drain(connection, 0.1)
            leave(connection, chance)


def non_readers(target, stop, chance):
    """Streams that are asked for and never read."""
    held = []
    while not stop.wait(0.2):
        held.append(target.connect(receive_bytes=2048))
        if chance.random() < 0.5:
            held[-1].sendall(target.post(CHAT, {"messages": [{"role": "user", "content": "tell"}], "max_tokens": TOKENS, "ignore_eos": True,
                                                "stream": True, "logprobs": True, "top_logprobs": 20}))
        else:
            held[-1].sendall(target.upgrade() + b"".join(raw.masked(generate(str(i), chance, logprobs=20)) for i in range(3)))
        if len(held) > 12:
            leave(held.pop(0), chance)
    for connection in held:
        leave(connection, chance)


def aborts(target, stop, chance):
    """Requests that are cancelled, or whose client goes, in whatever state they are: queued, in prefill, in decode, without credit."""
    while not stop.wait(0.01):
        with target.connect() as connection:
            connection.sendall(target.upgrade())
            for index in range(10):
                more = {"credit": 0} if chance.random() < 0.3 else {}
                connection.sendall(raw.masked(generate(str(index), chance, **more)))
                if chance.random() < 0.5:
                    connection.sendall(raw.masked(json.dumps({"type": "cancel", "id": str(chance.randrange(index + 1))})))
            drain(connection, chance.choice((0, 0.02, 0.2)))
            leave(connection, chance)


def floods(target, stop, chance):
    """More requests than the queue holds, on many connections at once."""
    while not stop.wait(0.1):
        held = [target.connect() for _ in range(40)]
        for connection in held:
            connection.sendall(target.post(COMPLETIONS, {"prompt": "flood", "max_tokens": 20, "ignore_eos": True, "n": chance.choice((1, 1, 8))}))
        for connection in held:
            drain(connection, 0.02)
            leave(connection, chance)


ALL = [byte_by_byte, header_floods, resets, half_open, odd_frames, bad_bodies, non_readers, aborts, floods]


class Storm:
    """All attackers at once, each on a thread, from the beginning of a `with` to its end; `problems`: what a correct attacker never
    meets. Closing waits `patience` seconds a thread, without end if None."""

    def __init__(self, port, key=None, patience=None):
        self.target, self.stop, self.problems, self.patience = Target(port, key), threading.Event(), [], patience
        self.threads = [threading.Thread(target=self.run, args=(attack, seed)) for seed, attack in enumerate(ALL)]

    def run(self, attack, seed):
        chance = random.Random(seed)
        while not self.stop.is_set():
            try:
                attack(self.target, self.stop, chance)
            except OSError:
                pass                # it was let go, as it deserves
            except Exception as problem:
                self.problems.append(problem)
                return

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join(self.patience)
