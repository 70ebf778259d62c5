#!/usr/bin/env python3
"""Honest streams of the default model beside a storm on every door: breaker.py BUILD_FOLDER RESULT.json [--seconds 7] [--rounds 3]

Three streams decode while the attackers of tests/e2e/attackers.py run in a process of their own, with what they do aimed in turn at: nobody
(none runs); another takt on the same machine, which costs the same processor time and none of this server's (the floor); this server without
a key; this server with the key of a tenant that is capped at one running request. Gaps as the streams' clients see them, and whether the texts are
those of the first round."""
import argparse
import datetime
import hashlib
import json
import os
import pathlib
import platform
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODEL = ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"
sys.path.insert(0, str(ROOT / "tests/e2e"))
import attackers    # noqa: E402
import raw_frames   # noqa: E402

PROMPTS = ["One day a sailor", "The history of bread", "In the mountains"]
PHASES = ["alone", "storm_elsewhere", "storm_without_key", "storm_with_key"]


class Server:
    def __init__(self, build, text):
        self.config = tempfile.NamedTemporaryFile("w", suffix=".toml")
        self.config.write(text)
        self.config.flush()
        self.process = subprocess.Popen([build / "takt", "serve", "--config", self.config.name], stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True, cwd=ROOT / "tests")
        self.port = int(re.search(r":(\d+)$", self.process.stdout.readline().strip()).group(1))

    def series(self):
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            text = b""
            while piece := connection.recv(65536):
                text += piece
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.decode().splitlines() if line.startswith("takt_")}

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def configuration(device):
    def tenant(name, more=""):
        return f'[[tenant]]\nname = "{name}"\nkey_sha256 = "{hashlib.sha256(name.encode()).hexdigest()}"\n{more}'
    return (f'{device}[scheduler]\nmax_running = 8\n[log]\nlevel = "error"\n[server]\nport = 0\nmax_message_kib = 256\nheader_seconds = 2\n'
            + tenant("honest") + tenant("greedy", "max_running = 1\nmax_waiting = 4\nmax_connections = 100\n"))


def storm(port, key, seconds):
    """The attackers against one port, in this process, for so long."""
    with attackers.Storm(port, key) as raging:
        time.sleep(seconds)
    if raging.problems:
        raise raging.problems[0]


class Reader(threading.Thread):
    """One stream after the other of one prompt; the times at which its tokens came, by stream, and the texts."""

    def __init__(self, port, prompt, seconds):
        super().__init__()
        self.port, self.prompt, self.end = port, prompt, time.monotonic() + seconds
        self.gaps, self.texts = [], []
        self.start()

    def run(self):
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(raw_frames.upgrade(header=b"Authorization: Bearer honest\r\n"))
        source = connection.makefile("rb")
        while source.readline() not in (b"\r\n", b""):
            pass
        number = 0
        while time.monotonic() < self.end:
            number += 1
            connection.sendall(raw_frames.masked(json.dumps({"type": "generate", "id": str(number), "prompt": self.prompt, "temperature": 0,
                                                             "max_tokens": 60, "ignore_eos": True, "echo_tokens": True})))
            last, text = None, ""
            while True:
                head = source.read(2)
                size = int.from_bytes(source.read(2), "big") if head[1] == 126 else head[1]
                data = source.read(size)
                if head[0] == 0x89:
                    connection.sendall(raw_frames.frame(0x8A, data))
                    continue
                frame = json.loads(data)
                if frame["type"] == "delta":
                    now = time.monotonic()
                    if last is not None:
                        self.gaps.append((now - last) * 1e3 / len(frame["tokens"]))
                    last = now
                    text += frame["text"]
                elif frame["type"] != "accepted":
                    assert frame["type"] == "done", frame
                    break
            self.texts.append(text)
        connection.close()


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("result", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=7)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--storm", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.storm:
        return storm(int(options.storm[0]), options.storm[1] or None, options.seconds)
    build = options.build.resolve()
    server = Server(build, configuration(f'[model]\npath = "{MODEL}"\nmax_context = 2048\n[device]\nkind = "cpu"\n'))
    other = Server(build, configuration('[device]\nkind = "sim"\n[sim]\nscale = 0\n'))
    targets = {"storm_elsewhere": (other.port, "greedy"), "storm_without_key": (server.port, ""), "storm_with_key": (server.port, "greedy")}
    gaps, texts = {phase: [] for phase in PHASES}, [set() for _ in PROMPTS]
    for _ in range(options.rounds):
        for phase in PHASES:
            attack = None
            if phase in targets:
                port, key = targets[phase]
                attack = subprocess.Popen([sys.executable, __file__, str(build), "-", "--seconds", str(options.seconds + 1), "--storm", str(port), key])
                time.sleep(0.7)
            readers = [Reader(server.port, prompt, options.seconds) for prompt in PROMPTS]
            for index, reader in enumerate(readers):
                reader.join()
                gaps[phase] += reader.gaps
                texts[index] |= set(reader.texts)
            if attack:
                attack.wait()
    time.sleep(1)
    series = server.series()
    out = {"what": __doc__.split("\n\n")[1].replace("\n", " "), "date": datetime.date.today().isoformat(),
           "commit": subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip(),
           "command": f"bench/breaker.py build/release RESULT.json --seconds {options.seconds:g} --rounds {options.rounds}",
           "machine": {"cores": os.cpu_count(), "cpu": re.search(r"model name\s*: (.*)", open("/proc/cpuinfo").read()).group(1),
                       "system": platform.platform()},
           "gap_ms": {phase: {"count": len(found), "p50": round(statistics.median(found), 2), "p90": round(percentile(found, .9), 2),
                              "p99": round(percentile(found, .99), 2), "max": round(max(found), 2)} for phase, found in gaps.items()},
           "different_texts_a_prompt": [len(found) for found in texts],
           "after": {name: series[name] for name in ("takt_requests_running", "takt_requests_waiting", "takt_kv_blocks_used", "takt_connections")},
           "accepted": series["takt_requests_accepted_total"],
           "finished": sum(value for name, value in series.items() if name.startswith("takt_requests_finished_total")),
           "refused": sum(value for name, value in series.items() if name.startswith("takt_requests_refused_total"))}
    assert server.stop() == 0 and other.stop() == 0
    options.result.write_text(json.dumps(out, indent=1) + "\n")
    print(json.dumps(out, indent=1))
    return 0 if set(out["different_texts_a_prompt"]) == {1} and out["accepted"] == out["finished"] else 1


if __name__ == "__main__":
    sys.exit(main())
