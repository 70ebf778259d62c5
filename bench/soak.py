#!/usr/bin/env python3
"""Mixed load for minutes or hours, with the server's memory and books watched: soak.py PROGRAM [--minutes N] [--rest S] [--patient] [--json FILE]

Streams over WebSocket with credit, cancels and readers that fall asleep, readers of WebSocket and of server-sent events that stop reading
for a minute with small buffers, HTTP plain and streamed, the Responses dialect, tokenising, broken frames, resets, scrapes, /health: all at
once against two servers, one plain and one with TLS, each on a simulated device of short steps with few KV blocks. `--rest`: seconds that
each client rests after an exchange. Ends with 1 if memory or open files grew, if an accepted request is missing from the books, or if
anything that should have been answered was not. Connections that fail under a client, as when the machine stands still for longer than the
server waits, are counted apart by client and reason (`failed_connections`); more of them than one in a hundred exchanges are a fault.
"""
import argparse
import asyncio
import datetime
import json
import os
import pathlib
import platform
import random
import re
import signal
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import websockets

ROOT = pathlib.Path(__file__).resolve().parents[1]
SETTINGS = ["server.port=0", "log.level=error", "device.kind=sim", "sim.scale=0.05", "model.max_context=1024", "scheduler.max_running=32",
            "device.memory_budget_mib=1"]
PATIENT = ["server.ping_seconds=3600", "server.header_seconds=3600"]
STALL_SECONDS = 60
STALL_PATIENCE = 300        # a client that slept may never hear that its server let it go: the books tell whether that was clean
MOST_FAILED_SHARE = 0.01    # of all exchanges
GROWTH_LIMIT_KIB = 2048     # of the last quarter's median over the second's: caches and arenas fill in the first


class Load:
    def __init__(self, port, context, seconds, rest):
        self.port, self.context, self.end, self.rest = port, context, time.monotonic() + seconds, rest
        self.counts, self.failed = {}, {}
        self.health_ms = []
        # As patient as the rest: the machine may stand still for minutes, and then every clock is late at once.
        self.secure = {"ssl": context, "ssl_handshake_timeout": 3600} if context else {}

    async def connect(self):
        return await asyncio.open_connection("127.0.0.1", self.port, **self.secure)

    def count(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1

    def open(self):
        return time.monotonic() < self.end

    async def keep_up(self, client, seed):
        """Runs a client to the end: one whose connection fails comes again. What the server answers is never such a failure."""
        while self.open():
            try:
                return await client(seed)
            except websockets.InvalidStatus:
                raise
            except (OSError, EOFError, websockets.WebSocketException) as problem:
                reason = f"{client.__name__}: {type(problem).__name__}: {problem}"
                self.failed[reason] = self.failed.get(reason, 0) + 1
            seed += 1000
            await asyncio.sleep(min(1, max(0, self.end - time.monotonic())))

    async def http(self, path, body=None, raw=None):
        """(status, body) of one request on a connection of its own."""
        reader, writer = await self.connect()
        data = raw if raw is not None else json.dumps(body).encode() if body is not None else b""
        method = "POST" if body is not None or raw is not None else "GET"
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        answer = await asyncio.wait_for(reader.read(), 3600)
        writer.close()
        if not answer:
            raise ConnectionError("closed without an answer")
        return int(answer.split(b" ", 2)[1]), answer

    async def streams(self, seed):
        """One socket after the other, several requests each; some are cancelled, some have little credit, some sockets are cut."""
        chance = random.Random(seed)
        while self.open():
            await asyncio.sleep(self.rest)
            scheme = "wss" if self.context else "ws"
            async with websockets.connect(f"{scheme}://127.0.0.1:{self.port}/v1/stream", subprotocols=["takt.v1"], max_queue=4,
                                          open_timeout=3600, ping_interval=None, **self.secure) as socket_:
                live = set()
                for index in range(chance.randint(1, 8)):
                    fields = {"id": str(index), "prompt": "x" * chance.randint(1, 900), "max_tokens": chance.randint(1, 400),
                              "ignore_eos": True, "seed": index}
                    if chance.random() < 0.3:
                        fields["credit"] = 10
                    if chance.random() < 0.2:
                        fields["logprobs"] = 5
                    live.add(fields["id"])
                    await socket_.send(json.dumps({"type": "generate", **fields}))
                if chance.random() < 0.2:
                    await socket_.send(chance.choice(['{"type":"generate"', "[]", '{"type":"credit","id":"none","tokens":-1}']))
                if chance.random() < 0.2:
                    await asyncio.sleep(chance.random())          # asleep: the server must hold what it has
                cut = chance.random() < 0.15
                while live:
                    frame = json.loads(await asyncio.wait_for(socket_.recv(), 3600))
                    if frame["type"] in ("done", "error") and frame["id"] in live:
                        live.discard(frame["id"])
                        self.count("stream " + frame.get("reason", frame.get("code", "")))
                    elif frame["type"] == "delta" and chance.random() < 0.05:
                        kind = chance.choice([{"type": "cancel"}, {"type": "credit", "tokens": 50}])
                        await socket_.send(json.dumps({**kind, "id": frame["id"]}))
                    elif frame["type"] == "accepted":
                        await socket_.send(json.dumps({"type": "credit", "id": frame["id"], "tokens": 400}))
                    if cut and chance.random() < 0.1:
                        self.count("stream cut")
                        socket_.transport.abort()
                        break

    async def requests(self, seed):
        chance = random.Random(seed)
        paths = [("/v1/completions", {"prompt": "hello", "max_tokens": 30}), ("/v1/completions", {"prompt": ["a", "b"], "n": 2, "max_tokens": 5}),
                 ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 200}], "max_tokens": 30, "stream": True}),
                 ("/v1/responses", {"input": "hello", "max_output_tokens": 20}), ("/tokenize", {"prompt": "some text " * 500}),
                 ("/v1/completions", {"prompt": "x", "temperature": -1}), ("/v1/models", None), ("/metrics", None), ("/", None)]
        while self.open():
            await asyncio.sleep(self.rest)
            path, body = chance.choice(paths)
            status, _ = await self.http(path, body)
            self.count(f"http {status}")
            if chance.random() < 0.1:
                status, _ = await self.http(path, raw=bytes(chance.randbytes(200)))
                self.count(f"http bytes {status}")

    async def resets(self, seed):
        """Connections that end in the middle, by a reset."""
        chance = random.Random(seed)
        body = json.dumps({"prompt": "x" * 50, "max_tokens": 500, "ignore_eos": True, "stream": True}).encode()
        request = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        while self.open():
            _, writer = await self.connect()
            writer.write(request[:chance.randint(0, len(request))] if chance.random() < 0.5 else request)
            await asyncio.sleep(chance.random() * 0.05)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            self.count("reset")
            await asyncio.sleep(max(self.rest, 0.02))

    def narrow(self):
        """A connected socket that takes 4 KiB before its reader has to read."""
        narrow = socket.socket()
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        narrow.connect(("127.0.0.1", self.port))
        narrow.setblocking(False)
        return narrow

    async def stalled_sockets(self, seed):
        """WebSockets that ask for megabytes and read none of it for a minute; then half of them read all, half are cut."""
        chance = random.Random(seed)
        while self.open():
            scheme = "wss" if self.context else "ws"
            name = {"server_hostname": "localhost"} if self.context else {}
            async with websockets.connect(f"{scheme}://localhost:{self.port}/v1/stream", sock=self.narrow(), subprotocols=["takt.v1"],
                                          max_queue=1, open_timeout=3600, ping_interval=None, **self.secure, **name) as socket_:
                live = {str(index) for index in range(52)}      # more than the kernel holds
                for name in live:
                    await socket_.send(json.dumps({"type": "generate", "id": name, "prompt": "stall", "max_tokens": 900, "ignore_eos": True,
                                                   "logprobs": 20}))
                await asyncio.sleep(STALL_SECONDS)
                if chance.random() < 0.5:
                    self.count("stalled cut")
                    socket_.transport.abort()
                    continue
                try:
                    while live:
                        frame = json.loads(await asyncio.wait_for(socket_.recv(), STALL_PATIENCE))
                        if frame["type"] in ("done", "error"):
                            live.discard(frame["id"])
                            self.count("stalled " + frame.get("reason", frame.get("code", "")))
                except TimeoutError:
                    self.count("stalled without an end")
                except websockets.ConnectionClosed as closed:
                    self.count(f"stalled closed {closed.rcvd.code if closed.rcvd else 1006}")

    async def stalled_events(self, seed):
        """The same with server-sent events."""
        chance = random.Random(seed)
        body = json.dumps({"prompt": "stall", "n": 16, "max_tokens": 900, "ignore_eos": True, "stream": True, "logprobs": 5}).encode()
        name = {"server_hostname": "localhost"} if self.context else {}
        while self.open():
            reader, writer = await asyncio.open_connection(sock=self.narrow(), limit=4096, **self.secure, **name)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
                         % (len(body), body))
            await asyncio.sleep(STALL_SECONDS)
            if chance.random() < 0.5:
                self.count("stalled events cut")
                writer.transport.abort()
                continue
            try:
                answer = await asyncio.wait_for(reader.read(), STALL_PATIENCE)
                self.count("stalled events whole" if b"[DONE]" in answer else "stalled events ended")
            except (ConnectionError, TimeoutError) as problem:
                self.count("stalled events " + type(problem).__name__)
            writer.close()

    async def health(self, _seed):
        """/health every second, on a connection of its own: how long its answer took."""
        while self.open():
            began = time.monotonic()
            status, _ = await self.http("/health")
            self.health_ms.append((time.monotonic() - began) * 1000)
            self.count(f"health {status}")
            await asyncio.sleep(1)

    async def metrics(self):
        _, text = await self.http("/metrics")
        out = {}
        for name, value in re.findall(rb"^(takt_\w+)(?:\{[^}]*\})? (\S+)$", text, re.M):
            out[name.decode()] = out.get(name.decode(), 0) + float(value)
        return out


def rss_kib(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1))


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


async def run(port, context, pid, options):
    """One server's load: (load, memory in KiB at even distances, open files likewise, the books after it, what the clients did not expect)."""
    load = Load(port, context, options.minutes * 60, options.rest)
    clients = [(load.streams, 0, 12), (load.requests, 100, 4), (load.resets, 200, 2), (load.stalled_sockets, 300, 1),
               (load.stalled_events, 400, 2), (load.health, 500, 1)]
    tasks = [asyncio.create_task(load.keep_up(client, first + i)) for client, first, count in clients for i in range(count)]
    memory, files, idle_files = [], [], open_files(pid)
    while load.open():
        await asyncio.sleep(min(1.0, options.minutes))
        memory.append(rss_kib(pid))
        files.append(open_files(pid))
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(1)
    files = {"idle_before": idle_files, "most": max(files), "median": statistics.median(files), "idle_after": open_files(pid)}
    return load, memory, files, await load.metrics(), [repr(problem) for problem in ended if problem]


class Server:
    def __init__(self, program, *settings):
        arguments = [part for setting in (*SETTINGS, *settings) for part in ("--set", setting)]
        self.process = subprocess.Popen([program, "serve", *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT / "tests")
        self.port = int(self.process.stdout.readline().rsplit(":", 1)[1])


def make_certificate(folder):
    cert, key = f"{folder}/cert.pem", f"{folder}/key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
                    "subjectAltName=DNS:localhost,IP:127.0.0.1", "-out", cert, "-keyout", key], check=True, capture_output=True)
    return cert, key


def judge(load, memory, files, books, problems, exit_code):
    """One server's part of the result; its `faults` are empty if all is well."""
    quarter = len(memory) // 4
    growth = statistics.median(memory[3 * quarter:]) - statistics.median(memory[quarter:2 * quarter])
    faults, counts = list(problems), load.counts
    if growth > GROWTH_LIMIT_KIB:
        faults.append(f"memory grew by {growth} KiB")
    if books["takt_requests_accepted_total"] != books["takt_requests_finished_total"]:
        faults.append("accepted and finished differ")
    faults += [f"{name} is {books[name]}" for name in ("takt_requests_running", "takt_requests_waiting", "takt_kv_blocks_used") if books[name]]
    num_failed = sum(load.failed.values())
    if num_failed > MOST_FAILED_SHARE * sum(counts.values()):
        faults.append(f"{num_failed} connections failed, beside {sum(counts.values())} exchanges")
    if any(key.startswith("http 5") for key in counts):
        faults.append("a 5xx answer")
    if files["idle_after"] > files["idle_before"] + 2:      # the engine may keep one open that it had not needed yet
        faults.append(f"{files['idle_after']} open files where {files['idle_before']} were before")
    if exit_code != 0:
        faults.append(f"exit code {exit_code}")
    return {"faults": faults,
            "memory_kib": {"first_quarter": statistics.median(memory[:quarter]), "second_quarter": statistics.median(memory[quarter:2 * quarter]),
                           "last_quarter": statistics.median(memory[3 * quarter:]), "most": max(memory), "samples": len(memory),
                           "over_time": memory[::max(1, len(memory) // 60)], "growth": growth, "allowed": GROWTH_LIMIT_KIB},
            "open_files": files,
            "health_ms": {f"p{share}": round(sorted(load.health_ms)[min(len(load.health_ms) - 1, len(load.health_ms) * share // 100)], 2)
                          for share in (50, 99, 100)},
            "books": {name: books[name] for name in ("takt_requests_accepted_total", "takt_requests_finished_total", "takt_requests_refused_total",
                                                     "takt_generated_tokens_total", "takt_preemptions_total", "takt_kv_blocks_used")},
            "done": counts, "failed_connections": load.failed}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", type=os.path.abspath)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rest", type=float, default=0)
    parser.add_argument("--patient", action="store_true",
                        help="pings and headers have an hour: for a machine that stands still for minutes, which is not the server's fault")
    parser.add_argument("--json")
    options = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        cert, key = make_certificate(folder)
        patient = PATIENT if options.patient else []
        servers = {"plain": Server(options.program, *patient),
                   "tls": Server(options.program, *patient, f"server.tls_cert={cert}", f"server.tls_key={key}")}
        contexts = {"plain": None, "tls": ssl.create_default_context(cafile=cert)}

        async def run_all():
            return await asyncio.gather(*(run(s.port, contexts[name], s.process.pid, options) for name, s in servers.items()))
        try:
            ran = asyncio.run(run_all())
        finally:
            for server in servers.values():
                server.process.send_signal(signal.SIGTERM)
    parts = {name: judge(*found, server.process.wait(60)) for (name, server), found in zip(servers.items(), ran)}
    result = {"what": __doc__.split(":")[0], "minutes": options.minutes, "rest": options.rest, **parts, "commit": commit,
              "date": datetime.date.today().isoformat(), "machine": {"cores": os.cpu_count(), "system": platform.platform()},
              "command": f"bench/soak.py build/release/takt --minutes {options.minutes:g} --rest {options.rest:g}"
                         + (" --patient" if options.patient else "")}
    print(json.dumps(result, indent=1))
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    return 1 if any(part["faults"] for part in parts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
