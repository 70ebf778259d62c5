"""What the program asks of the system that it runs on: open files, its unit, its place on the network, its end with the real model."""
import asyncio
import configparser
import hashlib
import json
import re
import resource
import shutil
import signal
import subprocess
import urllib.error
import urllib.request

import pytest

from conftest import HANG, MODEL, PROGRAM, ROOT, SIM, Server
from frames import connect, finish, receive, send


def with_files(soft, hard):
    """Runs in the child: its limits of open files."""
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_more_connections_than_open_files_are_refused_with_both_numbers():
    result = subprocess.run([PROGRAM, "serve", *SIM, "--set", "server.port=0", "--set", "server.max_connections=3000"], capture_output=True,
                            text=True, timeout=HANG, cwd=ROOT / "tests", preexec_fn=with_files(256, 2048))
    assert result.returncode == 2 and "server.max_connections" in result.stderr
    assert {"3000", "2048"} <= set(re.findall(r"\d+", result.stderr)), result.stderr


def test_the_limit_of_open_files_is_raised_to_the_hard_one():
    process = subprocess.Popen([PROGRAM, "serve", *SIM, "--set", "server.port=0", "--set", "server.max_connections=1000"], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT / "tests", preexec_fn=with_files(256, 2048))
    assert "ready" in process.stdout.readline()
    limits = re.search(r"^Max open files +(\d+) +(\d+)", open(f"/proc/{process.pid}/limits").read(), re.M)
    assert limits.groups() == ("2048", "2048")
    process.terminate()
    assert process.wait(HANG) == 0
    process.stdout.close()


def test_the_systemd_unit_is_valid_and_fits_the_defaults(tmp_path):
    unit = ROOT / "deploy/takt.service"
    found = configparser.ConfigParser(strict=False, interpolation=None)
    found.optionxform = str
    found.read(unit)
    service = found["Service"]
    defaults = (ROOT / "config.toml").read_text()

    def default(key):
        return float(re.search(rf"^{key} *= *([0-9.]+)", defaults, re.M).group(1))
    assert float(service["TimeoutStopSec"]) > default("drain_seconds")
    assert int(service["LimitNOFILE"]) > default("max_connections") + 96
    assert service["Restart"] == "on-failure" and service["RestartPreventExitStatus"] == "2"     # a wrong configuration stays wrong
    words = service["ExecStart"].split()
    assert words[1:3] == ["serve", "--config"]
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    mine = tmp_path / "takt.service"
    mine.write_text(unit.read_text().replace(words[0], PROGRAM))
    checked = subprocess.run(["systemd-analyze", "verify", mine], capture_output=True, text=True, timeout=HANG)
    assert checked.returncode == 0 and "takt.service" not in checked.stderr, checked.stderr


def own_address():
    """An address of this machine that others can reach; nothing without a network."""
    found = subprocess.run(["hostname", "-I"], capture_output=True, text=True, timeout=HANG).stdout.split()
    return next((address for address in found if ":" not in address and not address.startswith("127.")), None)


def test_metrics_need_a_key_from_elsewhere_and_health_and_the_page_do_not(tmp_path):
    address = own_address()
    if address is None:
        pytest.skip("this machine has no address but loopback")
    config = tmp_path / "config.toml"
    config.write_text('[device]\nkind = "sim"\n[sim]\nscale = 0\n[server]\nhost = "0.0.0.0"\n[[tenant]]\nname = "a"\n'
                      f'key_sha256 = "{hashlib.sha256(b"key").hexdigest()}"\n')
    server = Server("--config", str(config))

    def status(host, path, key=None):
        request = urllib.request.Request(f"http://{host}:{server.port}{path}", headers={"Authorization": f"Bearer {key}"} if key else {})
        try:
            return urllib.request.urlopen(request, timeout=HANG).status
        except urllib.error.HTTPError as error:
            return error.code
    assert [status(address, path) for path in ("/", "/health/live", "/health/ready", "/health")] == [200] * 4
    assert [status(address, "/metrics"), status(address, "/metrics", "other"), status(address, "/metrics", "key")] == [401, 401, 200]
    assert [status("127.0.0.1", "/metrics"), status("127.0.0.1", "/v1/models")] == [200, 401]
    assert server.stop() == 0


def test_a_variable_that_is_not_set_is_a_configuration_error(tmp_path):
    config = tmp_path / "config.toml"
    config.write_text('[device]\nkind = "sim"\n[[tenant]]\nname = "a"\nkey_env = "TAKT_TEST_NO_SUCH_KEY"\n')
    result = subprocess.run([PROGRAM, "serve", "--config", config, "--set", "server.port=0"], capture_output=True, text=True, timeout=HANG,
                            cwd=ROOT / "tests")
    assert result.returncode == 2 and "TAKT_TEST_NO_SUCH_KEY" in result.stderr


def real_server():
    if not MODEL.exists():
        pytest.skip("the default model is not fetched")
    return Server("--model", str(MODEL), "--set", "device.kind=cpu", "--set", "scheduler.max_running=1", "--set", f"server.drain_seconds={HANG}")


def test_the_real_model_cancels_what_waits_and_drains_what_runs():
    """Each ends as it is told to: the one that waits, the one in its prompt, the one without credit left, the one that runs."""
    server = real_server()

    async def body():
        async with connect(server, max_queue=None) as stream:
            more = dict(type="generate", ignore_eos=True, temperature=0)
            await send(stream, **more, id="runs", prompt="One day", max_tokens=30)
            while (await receive(stream))["type"] != "delta":
                pass
            await send(stream, **more, id="waits", prompt="Another day", max_tokens=3000)
            while server.metric("takt_requests_waiting") < 1:
                await asyncio.sleep(0.01)
            await send(stream, type="cancel", id="waits")
            ends = {}
            while len(ends) < 2:
                frame = await receive(stream)
                if frame["type"] in ("done", "error"):
                    ends[frame["id"]] = frame
            assert ends["waits"]["reason"] == "cancelled" and ends["waits"]["usage"]["completion_tokens"] == 0
            assert ends["runs"]["reason"] == "length" and ends["runs"]["usage"]["completion_tokens"] == 30
            await send(stream, **more, id="long", prompt="word " * 4000, max_tokens=10)
            while server.metric("takt_requests_running") < 1:
                await asyncio.sleep(0.01)
            await send(stream, type="cancel", id="long")
            frames = await finish(stream, "long")
            assert frames[-1]["reason"] == "cancelled" and frames[-1]["usage"]["completion_tokens"] == 0
            await send(stream, **more, id="paused", prompt="x", max_tokens=2000, credit=3, echo_tokens=True)
            tokens = 0
            while tokens < 3:
                tokens += len((await receive(stream)).get("tokens", []))
            await send(stream, type="cancel", id="paused")
            assert (await finish(stream, "paused"))[-1]["reason"] == "cancelled"
            server.wait_for("takt_kv_blocks_used", 0, 20)
            server.wait_for("takt_requests_running", 0)
            # A signal lets what runs end, and the socket with it.
            await send(stream, **more, id="last", prompt="One day", max_tokens=20)
            assert (await receive(stream))["type"] == "accepted"
            server.process.send_signal(signal.SIGTERM)
            frames = await finish(stream, "last")
            await stream.wait_closed()
            return frames[-1], stream.close_code
    last, code = asyncio.run(asyncio.wait_for(body(), HANG))
    assert last["reason"] == "length" and last["usage"]["completion_tokens"] == 20 and code == 1001
    assert server.process.wait(HANG) == 0


def test_the_real_model_is_ready_again_after_a_storm_of_cancels_and_says_what_it_said():
    """Gauges fall to nothing with no new work, and the answer of before comes again."""
    server = real_server()

    def answer():
        body = json.dumps({"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}).encode()
        request = urllib.request.Request(server.http + "/v1/completions", body, {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(request, timeout=HANG))["choices"][0]["text"]
    before = answer()

    async def body():
        async with connect(server, max_queue=None) as stream:
            for index in range(200):
                await send(stream, type="generate", id=str(index), prompt=f"{index} " * 20, max_tokens=500, ignore_eos=True)
            while server.metric("takt_requests_waiting") == 0:
                await asyncio.sleep(0.01)
            stream.transport.abort()
    asyncio.run(asyncio.wait_for(body(), HANG))
    for name in ("takt_requests_running", "takt_requests_waiting", "takt_kv_blocks_used", "takt_websockets"):
        server.wait_for(name, 0, 20)
    assert urllib.request.urlopen(server.http + "/health/ready", timeout=HANG).status == 200
    assert answer() == before
    assert server.metric("takt_requests_accepted_total") == server.metric("takt_requests_finished_total")
    assert server.stop() == 0
