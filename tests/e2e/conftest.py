"""Fixtures: a real `takt serve`, started and stopped by the tests. TAKT_PROGRAM names the program.

No test needs a fast machine: what must come is waited for as long as HANG, what must hold soon is given a number of looks."""
import atexit
import os
import pathlib
import re
import signal
import subprocess
import threading
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("TAKT_PROGRAM", str(ROOT / "build/release/takt"))
MODEL = ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"
HANG = 120      # seconds after which nothing comes any more
SIM = ["--set", "device.kind=sim", "--set", "sim.scale=0"]


def pytest_configure(config):
    config.addinivalue_line("markers", "long: minutes, or a heavy installation; scripts/test --long")


class Server:
    """One running program; `port` is known once it is ready."""

    def __init__(self, *arguments, env=None, ready=True):
        self.process = subprocess.Popen(
            [PROGRAM, "serve", "--set", "server.port=0", *arguments], cwd=ROOT / "tests",
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})
        atexit.register(self.process.kill)      # of a test that failed before stop(); of one that has ended nothing is left to kill
        self.log = []
        self.thread = threading.Thread(target=self._drain, daemon=True)
        self.thread.start()
        self.port = self._port() if ready else None

    def _drain(self):
        for line in self.process.stderr:
            self.log.append(line)

    def _port(self):
        line = self.process.stdout.readline()
        found = re.search(r"https?://\S+:(\d+)", line)
        if not found:
            self.process.wait(HANG)
            raise AssertionError("no ready line: " + line + "".join(self.log))
        return int(found.group(1))

    @property
    def http(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def ws(self):
        return f"ws://127.0.0.1:{self.port}"

    def metric(self, name):
        """Sum of the samples of a series."""
        import urllib.request
        text = urllib.request.urlopen(self.http + "/metrics", timeout=HANG).read().decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
                   if line == name or line.startswith((name + " ", name + "{")))

    def wait_for(self, name, value, seconds=3.0):
        """As many looks as the seconds hold where nothing else runs: on a busy machine the server, which answers each, has its share too."""
        for _ in range(round(seconds / 0.02)):
            found = self.metric(name)
            if found == value:
                return
            time.sleep(0.02)
        raise AssertionError(f"{name} is {found}, not {value}")

    def stop(self, signum=signal.SIGTERM, seconds=HANG):
        if self.process.poll() is None:
            self.process.send_signal(signum)
        return self.process.wait(seconds)


@pytest.fixture(scope="session")
def sim():
    """The simulated device at zero step time: text is a hash of the tokens, the doors are the real ones."""
    server = Server(*SIM)
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="session")
def slow_sim():
    """The simulated device at real step times, so that streams last and can be cut."""
    server = Server("--set", "device.kind=sim", "--set", "sim.scale=1", "--set", "server.drain_seconds=1")
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="session")
def real():
    """The default model on the CPU."""
    if not MODEL.exists():
        pytest.skip("the default model is not fetched")
    server = Server("--model", str(MODEL), "--set", "device.kind=cpu")
    yield server
    assert server.stop() == 0
