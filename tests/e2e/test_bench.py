"""`takt bench` against a server of known delays, against takt itself, and used wrongly."""
import json
import signal
import statistics
import subprocess
import time
import xml.etree.ElementTree

import pytest

from conftest import HANG, PROGRAM, ROOT, Server
from known_delays import GAP, LATE_GAP, TTFT, KnownDelays


def bench(*arguments, timeout=HANG):
    return subprocess.run([PROGRAM, "bench", *map(str, arguments)], capture_output=True, text=True, timeout=timeout, cwd=ROOT / "tests")


@pytest.fixture(scope="module")
def known():
    server = KnownDelays()
    yield server
    server.stop()


def near(found, seconds, taken, least=0.75):
    """How late depends on the machine, as it does for what the server itself saw its delays take. A token that is read late makes the
    gap behind it shorter; the first token is never early."""
    return seconds * 1e3 * least - 1 < found < taken * 1.5 + 10


@pytest.mark.parametrize("door", ["ws", "http", "chat"])
def test_known_delays_are_measured(known, door, tmp_path):
    url = known.ws if door == "ws" else known.http
    api = ["--api", "chat"] if door == "chat" else []
    out = tmp_path / "figures.json"
    known.forget()
    result = bench("--url", url, *api, "--concurrency", "2,4", "--requests", 8, "--max-tokens", 12, "--prompt-tokens", 20,
                   "--itl-ms", 100, "--json", out, "--plot", tmp_path / "plot.svg")
    assert result.returncode == 0, result.stderr
    points = json.loads(out.read_text())["points"]
    assert [point["offered"] for point in points] == [2, 4]
    assert max(known.at_once[:8]) == 2 and max(known.at_once[8:]) == 4
    ttft, itl = (statistics.median(known.delays[kind]) for kind in ("ttft", "itl"))
    num_late = sum(gap > 100 for gap in known.delays["itl"])
    for point in points:
        assert point["done"] == point["requests"] == 8 and point["errors"] == {}
        assert point["output_tokens"] == 8 * 12 and (door == "chat" or point["prefill_tokens"] == 8 * 20)
        assert point["ttft_ms"]["count"] == 8 and near(point["ttft_ms"]["p50"], TTFT, ttft, 1)
        assert point["itl_ms"]["count"] == 8 * 11 and near(point["itl_ms"]["p50"], GAP, itl)
        assert point["itl_ms"]["p99"] > LATE_GAP * 1e3 * 0.75 > point["itl_ms"]["p50"]
        assert near(point["tpot_ms"]["p50"], (10 * GAP + LATE_GAP) / 11, statistics.mean(known.delays["itl"]))
        # One known gap of each request, and those that a busy machine makes late: here, or on their way. Over HTTP the promise is an
        # envelope, and the stream is ahead of it by more than that gap.
        assert point["late_by"] == ("gap" if door == "ws" else "envelope") and ("envelope" in result.stdout) == (door != "ws")
        least, most = (8, num_late + 8) if door == "ws" else (0, num_late - 8)
        assert least / 88 - 1e-9 < point["late"]["share"] < most / 88 - 1e-9
        # None has a mean over the promise but those that were live in a pause of the machine.
        assert (point["goodput_share"] == 0) == (door == "ws") and point["goodput_tpot_share"] >= 0.5
    assert "TTFT" in result.stdout and "4 at once" in result.stdout
    assert xml.etree.ElementTree.parse(tmp_path / "plot.svg").getroot().tag.endswith("svg")


def test_an_open_loop_sends_on_time_whatever_the_server_does(known, tmp_path):
    out = tmp_path / "figures.json"
    known.forget()
    assert bench("--url", known.ws, "--rate", 40, "--arrivals", "fixed", "--requests", 20, "--max-tokens", 8, "--json", out).returncode == 0
    point = json.loads(out.read_text())["points"][0]
    # Each takes 0.4 s and one comes each 25 ms: about 16 at once, and more where the machine makes them longer.
    assert point["seconds"] > 0.8 and max(known.at_once) >= 8 and 0 <= point["send_lag_ms"]["p50"] < point["seconds"] * 1e3
    # From the moment at which it was due: connecting takes as long as it takes.
    assert point["done"] == 20 and TTFT * 1e3 - 1 < point["ttft_ms"]["p50"] < point["seconds"] * 1e3


def test_a_recorded_trace_is_sent_at_its_times(known, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,tenant,input_tokens,output_tokens\n0,a,5,3\n1,b,7,2\n2,a,9,4\n3,a,9,4\n")
    out = tmp_path / "figures.json"
    result = bench("--url", known.ws, "--trace", trace, "--time-scale", 4, "--requests", 3, "--json", out)
    assert result.returncode == 0, result.stderr
    point = json.loads(out.read_text())["points"][0]
    assert point["done"] == 3 and point["prefill_tokens"] == 21 and point["output_tokens"] == 9 and point["seconds"] > 0.5
    assert bench("--url", known.ws, "--trace", tmp_path / "none.csv").returncode == 2


def test_refusals_are_counted_by_code(known, tmp_path):
    out = tmp_path / "figures.json"
    result = bench("--url", known.http, "--requests", 3, "--max-tokens", 13, "--json", out)
    point = json.loads(out.read_text())["points"][0]
    assert point["errors"] == {"queue_full": 3} and point["done"] == 0 and "3 queue_full" in result.stdout


def test_the_streams_outlive_an_insertion_of_many_steps(tmp_path):
    """A row of the prompt a step: the streams have a token of each."""
    server = Server("--set", "device.kind=sim", "--set", "sim.scale=0", "--set", "scheduler.policy=fixed-chunk",
                    "--set", "scheduler.fixed_chunk_tokens=1", "--set", "model.max_context=32768")
    out = tmp_path / "figures.json"
    result = bench("--url", server.ws, "--scenario", "insert", "--streams", 2, "--insert-tokens", 6000, "--json", out)
    assert result.returncode == 0, result.stderr
    point = json.loads(out.read_text())["points"][0]
    assert point["outlived"] and point["inserted_tokens"] == 6000 and "raise" not in result.stdout + result.stderr
    assert server.stop() == 0


def test_the_insertion(tmp_path):
    """A split prefill beside an unsplit one, in one run and against one promise."""
    common = ["--set", "device.kind=sim", "--set", "sim.noise=0"]
    split = Server(*common)
    whole = Server(*common, "--set", "scheduler.policy=fixed-chunk", "--set", "scheduler.fixed_chunk_tokens=8192")
    out = tmp_path / "figures.json"
    result = bench("--url", split.ws, "--url", whole.ws, "--scenario", "insert", "--streams", 3, "--insert-tokens", 3000,
                   "--itl-factor", 4, "--repeat", 2, "--json", out, "--plot", tmp_path / "plot.svg")
    assert result.returncode == 0, result.stderr
    one, other = json.loads(out.read_text())["points"]
    for point in (one, other):
        assert point["outlived"] and point["rounds"] == point["ttft_ms"]["count"] == 2 and point["inserted_tokens"] == 3000
        assert point["plain_itl_ms"]["count"] >= 2 * 3 * 32 and point["itl_ms"]["count"] >= 6
        assert point["promise_itl_ms"] == one["promise_itl_ms"] > 0
    # The unsplit prefill puts one long gap into every stream.
    assert other["late"]["share"] > 0.1 and other["itl_ms"]["max"] > one["itl_ms"]["max"]
    assert split.stop() == 0 and whole.stop() == 0
    for server in (split, whole):
        assert not any("exception" in line for line in server.log)


def test_a_stream_that_fails_fails_the_insertion(sim):
    result = bench("--url", sim.ws, "--scenario", "insert", "--streams", 2, "--prompt-tokens", 200000, "--insert-tokens", 10)
    assert result.returncode == 1 and "a stream failed: context_too_long" in result.stderr, result.stderr


def test_both_doors_of_takt(sim, tmp_path):
    out = tmp_path / "figures.json"
    result = bench("--url", sim.ws, "--url", sim.http + "/v1", "--requests", 16, "--max-tokens", 10, "--repeat", 2, "--json", out)
    assert result.returncode == 0, result.stderr
    points = json.loads(out.read_text())["points"]
    assert len(points) == 4 and all(p["done"] == 16 and p["output_tokens"] == 160 and p["prefill_tokens"] == 16 * 128 for p in points)


def test_an_interrupt_ends_it_with_what_there_is(known):
    known.forget()
    process = subprocess.Popen([PROGRAM, "bench", "--url", known.ws, "--requests", "1000", "--max-tokens", "50"],
                               stdout=subprocess.PIPE, text=True)
    while not known.delays["itl"]:      # it runs
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert "TTFT" in process.communicate(timeout=HANG)[0] and process.returncode == 130


def test_wrong_use_says_so(known):
    for arguments, code, words in ((["--url", "http://127.0.0.1:1/v1"], 1, "refused"), (["--url", "x"], 2, "--url"),
                                   (["--rate", 1, "--concurrency", 2], 2, "one of"), (["--scenario", "other"], 2, "insert"),
                                   (["--url", known.ws + "/none", "--itl-factor", 2], 2, "insert")):
        result = bench(*arguments)
        assert result.returncode == code and words in result.stderr, (arguments, result.stderr)
