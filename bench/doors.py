#!/usr/bin/env python3
"""Figures of the doors, with the floor measured in the same run: doors.py BUILD_FOLDER RESULT.json FIGURE...

Figures: streams, idle, stalled, tokenise, health, latency, engine, aborts. Each takes under 100 seconds; a result file keeps those it
has. `streams` says what its threads did, and with Linux's `perf` installed in which functions.
"""
import datetime
import json
import os
import pathlib
import platform
import random
import re
import resource
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODEL = ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"
UPGRADE = (b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
           b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")


class Server:
    def __init__(self, build, *settings):
        arguments = [a for setting in settings for a in ("--set", setting)]
        self.process = subprocess.Popen([build / "takt", "serve", "--set", "server.port=0", "--set", "log.level=warning", *arguments],
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT / "tests")
        self.port = int(self.process.stdout.readline().rsplit(":", 1)[1])

    def rss_kib(self):
        for line in open(f"/proc/{self.process.pid}/status"):
            if line.startswith("VmRSS"):
                return int(line.split()[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def frame(**fields):
    data = json.dumps(fields).encode()
    size = bytes([0x80 | len(data)]) if len(data) < 126 else (
        bytes([0x80 | 126]) + len(data).to_bytes(2, "big") if len(data) < 65536 else bytes([0x80 | 127]) + len(data).to_bytes(8, "big"))
    return b"\x81" + size + b"\0\0\0\0" + data


def stream_socket(port):
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(UPGRADE)
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += connection.recv(1)
    assert b" 101 " in head, head
    return connection


def reader(build, *arguments):
    """The C++ reader's figures."""
    out = subprocess.run([build / "bench/stream_bench", *map(str, arguments)], capture_output=True, text=True, check=True)
    return json.loads(out.stdout)


def median_run(runs, key):
    return sorted(runs, key=lambda run: run[key])[len(runs) // 2]


def gaps_ms(port, seconds, during=lambda: None, **fields):
    """Gaps of one stream's frames for that long; `during` runs on a thread of its own once the stream flows."""
    connection = stream_socket(port)
    connection.sendall(frame(type="generate", id="a", tokens=[65] * 16, max_tokens=100000, ignore_eos=True, temperature=0, **fields))
    other, last, out = None, None, []
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        connection.recv(65536)
        now = time.monotonic()
        if last:
            out.append((now - last) * 1e3)
        last = now
        if other is None and len(out) > 50:
            other = threading.Thread(target=during)
            other.start()
    if other:
        other.join()
    connection.close()
    out.sort()
    return {"frames": len(out), "p50_ms": out[len(out) // 2], "p99_ms": out[int(len(out) * 0.99)], "max_ms": out[-1]}


def thread_seconds(pid):
    """{thread: (user seconds, system seconds)} of a process."""
    out = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
        out[task.name] = int(fields[11]) / os.sysconf("SC_CLK_TCK"), int(fields[12]) / os.sysconf("SC_CLK_TCK")
    return out


def perf_symbols(path, thread):
    """The functions in which a thread spent most of its time, in percent of it."""
    text = subprocess.run(["perf", "script", "-i", path, "-F", "tid,ip,sym", "--tid", thread], capture_output=True, text=True).stdout
    counts = {}
    for line in text.splitlines():
        fields = line.split(None, 2)
        if len(fields) == 3:
            name = fields[2] if len(fields[2]) < 90 else fields[2][:90] + "..."
            counts[name] = counts.get(name, 0) + 1
    total = sum(counts.values())
    return {name: round(100 * count / total, 1) for name, count in sorted(counts.items(), key=lambda item: -item[1])[:15]}


def stream_profile(build, server, arguments):
    """Where the time of one more run goes: processor seconds of each thread over the run's, and functions."""
    pid, data = server.process.pid, "/tmp/takt_doors_perf.data"
    recorder = None
    if shutil.which("perf"):
        recorder = subprocess.Popen(["perf", "record", "-o", data, "-F", "5000", "-e", "cpu-clock", "-p", str(pid)],
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(1)
    before, children = thread_seconds(pid), resource.getrusage(resource.RUSAGE_CHILDREN)
    run = reader(build, *arguments)
    client = resource.getrusage(resource.RUSAGE_CHILDREN)
    after = thread_seconds(pid)
    used = {thread: [round(now - then, 2) for now, then in zip(after[thread], before[thread])] for thread in before}
    busiest = sorted(used, key=lambda thread: -sum(used[thread]))[:2]
    names = {thread: "server thread" if thread == str(pid) else "engine thread" for thread in busiest}
    out = {"seconds": run["seconds"],
           "client user, system s": [round(client.ru_utime - children.ru_utime, 2), round(client.ru_stime - children.ru_stime, 2)],
           **{f"{name} user, system s": used[thread] for thread, name in names.items()}}
    if recorder:
        recorder.send_signal(signal.SIGINT)
        recorder.wait()
        out.update({f"{name}, percent by function": perf_symbols(data, thread) for thread, name in names.items()})
        os.unlink(data)
    return out


def figure_streams(build):
    """1,000 streams as fast as they go, a reader on the same cores; a fork that only sends is the floor."""
    with Server(build, "device.kind=sim", "sim.scale=0", "scheduler.max_running=1024", "scheduler.max_waiting=4096") as server:
        arguments = ("--port", server.port, "--connections", 1000, "--max-tokens", 512)
        runs = [reader(build, *arguments) for _ in range(5)]
        profile = stream_profile(build, server, (*arguments[:-1], 2048))
    middle = median_run(runs, "frames_per_s")
    floor = median_run([reader(build, "--floor", "--connections", 1000, "--frames", 300000, "--bytes", min(int(middle["bytes_per_frame"]), 125))
                        for _ in range(3)], "frames_per_s")
    return {"median": middle, "runs": runs, "floor": floor, "profile": profile, "required": {"tokens_per_s": 300000, "frames_per_s": 50000}}


def figure_idle(build):
    """Memory of 10,000 idle WebSockets, and a stream's gaps beside them."""
    count = 10000
    with Server(build, "device.kind=sim") as server:
        before_gaps = gaps_ms(server.port, 8)
        before = server.rss_kib()
        held = [stream_socket(server.port) for _ in range(count)]
        time.sleep(1)
        after = server.rss_kib()
        beside_gaps = gaps_ms(server.port, 8)
        for connection in held:
            connection.close()
    return {"sockets": count, "kib_each": (after - before) / count, "stream_alone": before_gaps, "stream_beside": beside_gaps,
            "required": {"kib_each": 20}}


def figure_stalled(build):
    """Tokens a second of 63 readers with and without a client that never reads, in turns."""
    turns = []
    with Server(build, "device.kind=sim", "sim.scale=0") as server:
        def alone():
            return reader(build, "--port", server.port, "--connections", 63, "--max-tokens", 30000)["tokens_per_s"]

        def beside():
            stalled = stream_socket(server.port)
            stalled.sendall(frame(type="generate", id="a", tokens=[65], max_tokens=1000000, ignore_eos=True, temperature=0))
            time.sleep(3)      # until the kernel's buffers are full and it is paused
            rate = alone()
            stalled.close()
            time.sleep(0.1)
            return rate
        alone()                # warms the server
        for turn in range(12):
            if turn % 2 == 0:
                turns.append({"alone": alone(), "beside": beside()})
            else:
                turns.append({"beside": beside(), "alone": alone()})
    ratio = statistics.median(turn["beside"] for turn in turns) / statistics.median(turn["alone"] for turn in turns)
    return {"turns": turns, "ratio_of_medians": ratio, "median_of_ratios": statistics.median(turn["beside"] / turn["alone"] for turn in turns),
            "required": {"ratio": 0.98}}


def figure_tokenise(build):
    """A stream's gaps while 256k characters are tokenised, by submission and by /tokenize."""
    text = "The quick brown fox jumps over the lazy dog; 12345 times! " * 4500
    text = text[:262144]

    def submit():
        connection = stream_socket(port)
        connection.sendall(frame(type="generate", id="b", prompt=text, max_tokens=1))
        connection.recv(65536)
        connection.close()

    def tokenize():
        body = json.dumps({"prompt": text}).encode()
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        while connection.recv(1 << 20):
            pass
    with Server(build, "device.kind=sim", f"model.path={MODEL}") as server:
        port = server.port
        alone = gaps_ms(port, 6)
        out = {"characters": len(text), "stream_alone": alone}
        for name, action in (("submitted", submit), ("tokenize", tokenize)):
            out[name] = gaps_ms(port, 6, lambda: [action() for _ in range(5)])
    worst = max(out["submitted"]["max_ms"], out["tokenize"]["max_ms"])
    return {**out, "max_gap_grows_by_ms": worst - alone["max_ms"], "required": {"max_gap_grows_by_ms": 5}}


def figure_health(build):
    """/health/live of the real model on the CPU while a prompt of 6,000 tokens is read."""
    def ask(connection):
        begin = time.monotonic()
        connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        return (time.monotonic() - begin) * 1e3
    with Server(build, "device.kind=cpu", f"model.path={MODEL}") as server:
        prompt = stream_socket(server.port)
        prompt.sendall(frame(type="generate", id="a", tokens=[1000 + i % 7000 for i in range(6000)], max_tokens=1))
        prompt.recv(65536)
        begin, times = time.monotonic(), []
        connection = socket.create_connection(("127.0.0.1", server.port))
        prompt.setblocking(False)
        done = False
        while not done and time.monotonic() - begin < 60:
            times.append(ask(connection))
            time.sleep(0.005)
            try:
                done = b"done" in prompt.recv(65536)
            except BlockingIOError:
                pass
        seconds = time.monotonic() - begin
    times.sort()
    return {"requests": len(times), "prefill_seconds": seconds, "finished": done, "p50_ms": times[len(times) // 2],
            "p99_ms": times[int(len(times) * 0.99)], "max_ms": times[-1], "required": {"p99_ms": 50}}


def figure_latency(build):
    """From a step's end on the device to the `send` of its frames having returned; `seen`: the engine has seen the step."""
    one, many = ([json.loads(subprocess.run([build / "bench/latency_bench", str(streams)], capture_output=True, text=True, check=True).stdout)
                  for _ in range(3)] for streams in (1, 64))
    sends = [run["last_p50_us"] / run["floor_sends_p50_us"] for run in many]
    return {"one_stream": median_run(one, "last_p50_us"), "streams_64": median_run(many, "last_p50_us"),
            "one_p99_us_of_each_run": [run["first_p99_us"] for run in one],
            "floor_token_p99_us_of_each_run": [run["floor_token_p99_us"] for run in one],
            "last_over_bare_sends": sorted(sends)[len(sends) // 2],
            "note": "floor_token: a thread that waits for a moment wakes another through an eventfd, which sends one frame; floor_sends: as "
                    "many bare sends as there are streams, one after the other",
            "required": {"one_p50_us": 50, "one_p99_us": 300, "first_of_64_p50_us": 60, "last_of_64_p50_us": 400}}


def figure_engine(build):
    """Tokens a second of 16 WebSocket streams on the real model while all of them flow, over the bare engine's, in turns."""
    def engine_rates():
        out = subprocess.run([build / "bench/engine_bench", "--case", "batch-16", "--repeat", "3"], capture_output=True, text=True, check=True)
        return json.loads(out.stdout)["cases"][0]["samples"]

    def server_rates():
        return [reader(build, "--port", server.port, "--connections", 16, "--prompt-tokens", 128, "--max-tokens", 65)["together_tokens_per_s"]
                for _ in range(3)]
    turns = []
    with Server(build, "device.kind=cpu", f"model.path={MODEL}", "model.max_context=4096", "scheduler.max_running=16", "sla.itl_ms=1000",
                "kv.prefix_cache=false") as server:
        server_rates()      # warms pages and costs; engine_bench does so by itself
        for turn in range(4):
            first, second = (server_rates, engine_rates) if turn % 2 == 0 else (engine_rates, server_rates)
            turns.append({first.__name__: first(), second.__name__: second()})
    ratios = [statistics.median(turn["server_rates"]) / statistics.median(turn["engine_rates"]) for turn in turns]
    return {"turns": turns, "ratios": ratios, "median_ratio": statistics.median(ratios), "required": {"ratio": 0.95}}


def figure_aborts(build):
    """1,000 requests whose sockets are reset at random moments; then used blocks and a stream's gaps beside those before."""
    chance = random.Random(1)
    with Server(build, "device.kind=sim") as server:
        before = gaps_ms(server.port, 8)
        for _ in range(50):
            held = [stream_socket(server.port) for _ in range(20)]
            for connection in held:
                connection.sendall(frame(type="generate", id="a", tokens=[65] * chance.randint(1, 2000), max_tokens=1000, ignore_eos=True))
            chance.shuffle(held)
            for connection in held:
                time.sleep(chance.random() * 0.005)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()
        time.sleep(1)
        after = gaps_ms(server.port, 8)
        time.sleep(1)      # the gauges are true within a second
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        text = b""
        while piece := connection.recv(65536):
            text += piece
    names = ("takt_kv_blocks_used", "takt_requests_running", "takt_requests_waiting", "takt_requests_accepted_total")
    books = {name: float(re.search(rb"^%s (\S+)" % name.encode(), text, re.M).group(1)) for name in names}
    finished = sum(float(value) for value in re.findall(rb"^takt_requests_finished_total\S* (\S+)", text, re.M))
    return {"aborted": 1000, "stream_before": before, "stream_after": after, **books, "takt_requests_finished_total": finished,
            "p50_ratio": after["p50_ms"] / before["p50_ms"], "required": {"takt_kv_blocks_used": 0, "p50_ratio": 1.05}}


def machine():
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
    return {"cpu": model, "cores": os.cpu_count(), "system": platform.platform()}


def main():
    build, target = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    result = json.loads(target.read_text()) if target.exists() else {}
    version = subprocess.run([build / "takt", "--version"], capture_output=True, text=True).stdout.strip()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
    for name in sys.argv[3:]:
        found = globals()["figure_" + name](build)
        result[name] = {"what": globals()["figure_" + name].__doc__, **found, "machine": machine(), "version": version, "commit": commit,
                        "date": datetime.date.today().isoformat(), "command": f"bench/doors.py build/release {target.name} {name}"}
        print(name, json.dumps(found))
        target.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
