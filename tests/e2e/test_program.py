"""The program: commands, exit codes, draining, keys."""
import asyncio
import hashlib
import json
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
import xml.etree.ElementTree

import pytest

from conftest import HANG, MODEL, PROGRAM, ROOT, SIM, Server
from frames import connect, finish, receive, send


def takt(*arguments, **options):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=HANG, cwd=ROOT / "tests", **options)


def test_version_and_help():
    assert takt("--version").stdout.startswith("takt ")
    assert takt("--help").returncode == 0
    for command in ("serve", "generate", "chat", "inspect", "simulate", "bench", "quantize"):
        assert command in takt("--help").stdout
        assert takt(command, "--help").returncode == 0


@pytest.mark.parametrize("arguments", [
    [], ["nothing"], ["serve", "--nothing"], ["generate"], ["generate", "x", "--temperature", "-1"],
    ["generate", "x", "--seed", "-1"], ["bench", "--seed", "-1"], ["bench", "--seed", "18446744073709551616"],
    ["serve", "--set", "server.prot=1"], ["serve", "--set", "server.port=99999999"],
    ["serve", "--config", "/nonexistent.toml"], ["serve", *SIM, "--set", "server.host=0.0.0.0"],
    ["serve", *SIM, "--set", "server.max_connections=2000000000"],
    ["quantize", "a", "b", "--format", "w8"], ["quantize", ".", "b", "--format", "q8_0"]])
def test_wrong_usage_is_exit_code_2_with_a_message(arguments):
    result = takt(*arguments)
    assert result.returncode == 2 and result.stderr.strip() + result.stdout.strip()


def test_an_unknown_command_is_named_with_those_that_exist():
    result = takt("genrate", "x")
    assert result.returncode == 2 and "genrate" in result.stderr and "generate" in result.stderr


def test_generate_ends_when_nobody_takes_its_text():
    command = [PROGRAM, "generate", *SIM, "--max-tokens", "1000", "x"]
    with open("/dev/full", "wb") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=HANG, cwd=ROOT / "tests")
    assert result.returncode == 1 and "standard output" in result.stderr


def test_simulate_prints_the_same_lines_again_and_writes_json_and_a_plot(tmp_path):
    trace = tmp_path / "trace.csv"
    lines = [f"{0.05 * i:.2f},{'ab'[i % 2]},{200 + 37 * i % 900},{5 + i % 20}" for i in range(80)]
    trace.write_text("arrival_s,tenant,input_tokens,output_tokens\n" + "\n".join(lines) + "\n")
    arguments = ["simulate", "--trace", str(trace), "--policies", "ms,chunk:256,unchunked", "--check", "--explain", "3",
                 "--set", "sla.itl_ms=20", "--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.svg")]
    first, second = takt(*arguments), takt(*arguments)
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout and "goodput" in first.stdout
    assert takt(*arguments, "--seed", "9").stdout != first.stdout
    figures = json.loads((tmp_path / "out.json").read_text())
    assert [r["policy"] for r in figures["results"]] == ["ms", "chunk:256", "unchunked"]
    for r in figures["results"]:
        assert r["total"]["finished"] == 80 and r["total"]["ttft_ms"]["count"] == 80
        assert {t["name"] for t in r["tenants"]} == {"a", "b"}
    ours, _, whole = figures["results"]
    assert ours["total"]["late_share"] <= 0.01 < whole["total"]["late_share"]
    assert xml.etree.ElementTree.parse(tmp_path / "out.svg").getroot().tag.endswith("svg")


def test_a_profile_that_was_measured_on_a_device_is_simulated(tmp_path):
    profile, trace = tmp_path / "profile.csv", tmp_path / "trace.csv"
    measured = takt("bench", "--profile", str(profile), "--set", "device.kind=sim", "--set", "sim.noise=0")
    assert measured.returncode == 0, measured.stderr
    times = dict(line.split(",") for line in profile.read_text().splitlines() if not line.startswith("#"))
    assert 5 < float(times["1"]) < 6.5 and 80 < float(times["4096"]) < 90 and float(times["ka_ns"]) > 0     # h100-7b
    trace.write_text("arrival_s,tenant,input_tokens,output_tokens\n" + "".join(f"{i},a,900,10\n" for i in range(20)))
    figures = []
    for arguments in ([], ["--profile", str(profile)]):
        out = tmp_path / "out.json"
        result = takt("simulate", "--trace", str(trace), "--json", str(out), "--set", "sim.noise=0", *arguments)
        assert result.returncode == 0, result.stderr
        figures.append(json.loads(out.read_text())["results"][0]["total"]["ttft_ms"]["mean"])
    assert figures[1] == pytest.approx(figures[0], rel=.01)
    assert takt("bench", "--profile", str(profile), "--concurrency", "2").returncode == 2


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_a_file_for_figures_that_cannot_be_written_is_said_before_the_run(tmp_path, option):
    trace, absent = tmp_path / "trace.csv", tmp_path / "absent" / "figures"
    trace.write_text("arrival_s,tenant,input_tokens,output_tokens\n0,a,10,5\n")
    # No server answers there: it is not even asked.
    for command in (["simulate", "--trace", str(trace)], ["bench", "--url", "ws://127.0.0.1:9/v1/stream"]):
        result = takt(*command, option, str(absent))
        assert result.returncode == 1 and str(absent) in result.stderr and not result.stdout
        # And what cannot be measured leaves no empty file behind.
    kept = tmp_path / "figures"
    assert takt("bench", "--url", "ws://127.0.0.1:9/v1/stream", option, str(kept)).returncode == 1 and not kept.exists()


def test_an_interrupted_quantize_is_130_and_leaves_nothing(tmp_path):
    if not MODEL.exists():
        pytest.skip("the default model is not fetched")
    out = tmp_path / "out.gguf"
    process = subprocess.Popen([PROGRAM, "quantize", str(MODEL), str(out), "--format", "q6_k"], stdout=subprocess.DEVNULL)
    while not (partial := tmp_path / "out.gguf.partial").exists():
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    assert process.wait(HANG) == 130 and not partial.exists() and not out.exists()


def test_simulate_says_what_is_wrong(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,tenant,input_tokens,output_tokens\n0,a,ten,5\n")
    broken = takt("simulate", "--trace", str(trace))
    assert broken.returncode == 1 and "trace.csv:2:" in broken.stderr and "ten" in broken.stderr
    assert takt("simulate", "--trace", str(tmp_path / "none.csv")).returncode == 2
    trace.write_text("arrival_s,tenant,input_tokens,output_tokens\n0,a,10,5\n")
    wrong = takt("simulate", "--trace", str(trace), "--policies", "fastest")
    assert wrong.returncode == 2 and "fastest" in wrong.stderr and "p-pas" in wrong.stderr


def test_a_bad_model_file_is_exit_code_1(tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + b"\xff" * 100)
    for command in (["generate", "--model", str(bad), "x"], ["inspect", str(bad)], ["inspect", str(tmp_path / "none.gguf")]):
        result = takt(*command)
        assert result.returncode == 1 and ".gguf" in result.stderr


def test_a_taken_port_is_exit_code_1_and_says_so():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = takt("serve", *SIM, "--set", f"server.port={port}")
    assert result.returncode == 1 and str(port) in result.stderr and "taken" in result.stderr


def test_generate_and_inspect_on_the_real_model():
    if not MODEL.exists():
        pytest.skip("the default model is not fetched")
    result = takt("generate", "--model", str(MODEL), "--max-tokens", "3", "--temperature", "0", "--timings", "-",
                  input="The capital of France is")
    assert "Paris" in result.stdout and "first token" in result.stderr
    report = takt("inspect", str(MODEL), "--plan", "--tensors")
    assert "llama" in report.stdout and "it fits" in report.stdout and "token_embd.weight" in report.stdout


def test_sigterm_lets_streams_finish_then_closes_with_1001():
    server = Server("--set", "device.kind=sim", "--set", "sim.scale=10", "--set", f"server.drain_seconds={HANG}")

    async def body():
        async with connect(server) as stream:
            await send(stream, type="generate", id="a", prompt="x", max_tokens=60, ignore_eos=True)
            assert (await receive(stream))["type"] == "accepted"
            server.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.1)
            await send(stream, type="generate", id="late", prompt="x", max_tokens=1)
            frames = await finish(stream, "a")
            await stream.wait_closed()
            return frames, stream.close_code
    frames, code = asyncio.run(asyncio.wait_for(body(), HANG))
    assert frames[-1]["reason"] == "length" and frames[-1]["usage"]["completion_tokens"] == 60
    # Not stop(): a second signal while it ends would say 130.
    assert code == 1001 and server.process.wait(HANG) == 0


@pytest.mark.parametrize("wait_ms", range(8, 120, 8))
def test_a_signal_while_it_starts_is_no_crash(wait_ms):
    """From the first line of main on: there is nothing to drain, and it was asked to stop."""
    process = subprocess.Popen([PROGRAM, "serve", *SIM, "--set", "server.port=0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT / "tests")
    # On a busy machine a program is loaded late: wait until it has a handler.
    end = time.monotonic() + HANG
    while not caught(process.pid, signal.SIGTERM):
        assert time.monotonic() < end
        time.sleep(0.001)
    time.sleep((wait_ms - 8) / 1000)
    process.terminate()
    assert process.wait(HANG) == 0
    process.stdout.close()
    process.stderr.close()


def caught(pid, signum):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("SigCgt:"):
            return int(line.split()[1], 16) >> (signum - 1) & 1
    return False


def test_the_drain_has_an_end_and_cancels():
    server = Server("--set", "device.kind=sim", "--set", "server.drain_seconds=0.5")

    async def body():
        async with connect(server) as stream:
            await send(stream, type="generate", id="a", prompt="x", max_tokens=3000, ignore_eos=True)
            assert (await receive(stream))["type"] == "accepted"
            server.process.send_signal(signal.SIGTERM)
            return await finish(stream, "a")
    assert asyncio.run(asyncio.wait_for(body(), HANG))[-1]["reason"] == "cancelled"
    # Not stop(): a second signal while it ends would say 130.
    assert server.process.wait(HANG) == 0


def test_a_second_signal_stops_at_once():
    server = Server("--set", "device.kind=sim", "--set", "sim.scale=10", "--set", f"server.drain_seconds={2 * HANG}")

    async def body():
        async with connect(server, close_timeout=1) as stream:
            await send(stream, type="generate", id="a", prompt="x", max_tokens=3000, ignore_eos=True)
            await receive(stream)
            server.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.3)
            assert server.process.poll() is None
            server.process.send_signal(signal.SIGINT)
            return server.process.wait(HANG)
    assert asyncio.run(asyncio.wait_for(body(), HANG)) == 130


def test_keys(tmp_path):
    config = tmp_path / "config.toml"
    digest = hashlib.sha256(b"secret-a").hexdigest()
    config.write_text(f'[device]\nkind = "sim"\n[sim]\nscale = 0\n[[tenant]]\nname = "a"\nkey_sha256 = "{digest}"\n'
                      '[[tenant]]\nname = "b"\nkey_env = "TAKT_TEST_KEY"\n')
    server = Server("--config", str(config), env={"TAKT_TEST_KEY": "secret-b"})

    def status(path, key=None):
        request = urllib.request.Request(server.http + path, headers={"Authorization": "Bearer " + key} if key else {})
        try:
            return urllib.request.urlopen(request, timeout=HANG).status
        except urllib.error.HTTPError as error:
            return error.code
    assert [status("/v1/models", key) for key in (None, "wrong", "secret-a", "secret-b")] == [401, 401, 200, 200]
    assert [status(path) for path in ("/", "/health", "/health/live", "/metrics")] == [200] * 4
    assert server.stop() == 0 and not any("secret" in line for line in server.log)


def test_the_dashboard_names_only_series_that_are_there(sim):
    text = (ROOT / "deploy/grafana.json").read_text()
    assert json.loads(text)["panels"]
    served = urllib.request.urlopen(sim.http + "/metrics", timeout=HANG).read().decode()
    for name in set(re.findall(r"\b(?:takt|vllm):?_?[a-z_]+\b", text)) - {"takt"}:
        assert f"# TYPE {re.sub('_(bucket|sum|count)$', '', name)} " in served, name


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_logs_have_a_line_a_request_with_its_id(log_format):
    server = Server(*SIM, "--set", f"log.format={log_format}")
    request = urllib.request.Request(server.http + "/v1/models", headers={"x-request-id": "mine-7"})
    urllib.request.urlopen(request, timeout=HANG).read()
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(server.http + "/no%0Asuch%22path", timeout=HANG)
    assert server.stop() == 0
    lines = [line.rstrip("\n") for line in server.log]
    if log_format == "json":
        records = [json.loads(line) for line in lines if line.startswith("{")]
        assert all({"time", "level", "component", "message"} <= set(record) for record in records)
        lines = [record["message"] for record in records]
    assert any("mine-7" in line and "200" in line for line in lines)
    assert sum("404" in line and "suchpath" in line.replace("\\n", "").replace(" ", "").replace('"', "").replace("\n", "")
               for line in lines) == 1
