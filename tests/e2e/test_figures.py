"""Tables of docs/benchmarks.md say what the result files that they name hold, to a unit of their last digit."""
import json
import re
import subprocess
import sys

import pytest

from conftest import ROOT

TEXT = (ROOT / "docs/benchmarks.md").read_text()
RESULTS = ROOT / "bench/results"


def row(beginning, table=0):
    """The cells of the line that begins so; `table`: the how-many-th of them."""
    found = [line for line in TEXT.splitlines() if line.startswith("| " + beginning)]
    assert len(found) > table, beginning
    return [cell.strip() for cell in found[table].split("|")[1:-1]]


def check(text, *values):
    """The first numbers of a text are these."""
    numbers = re.findall(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?", text)
    assert len(numbers) >= len(values), (text, values)
    for number, value in zip(numbers, values):
        digits = len(number.partition(".")[2])
        assert abs(float(number.replace(",", "")) - value) <= 10.0 ** -digits, (text, number, value)


def load(name):
    return json.loads((RESULTS / name).read_text())


@pytest.mark.parametrize("label, model", [
    ("SmolLM2 Q4_1", "SmolLM2-135M-Instruct.Q4_1.gguf"), ("Q8_0", "SmolLM2-135M.Q8_0.gguf"), ("Q4_0", "SmolLM2-135M.Q4_0.gguf"),
    ("Q4_K_M", "SmolLM2-135M.Q4_K_M.gguf"), ("width 2,048, Q4_K", "wide.Q4_K.gguf"), ("width 2,048, Q6_K", "wide.Q6_K.gguf")])
def test_every_format_beside_its_rival(label, model):
    name = "formats" if label == "SmolLM2 Q4_1" else "formats_2026-11-30_first"   # the others were not measured again
    table = {entry["case"]: entry for entry in load(f"cpu/{name}.json")["table"] if entry["model"] == model}
    cases = ["decode", "decode-1024", "prefill-128", "prefill-512", "prefill-2048", "batch-4", "batch-8", "batch-16"]
    for cell, case in zip(row(label)[1:], cases, strict=True):
        check(cell, table[case]["takt"], table[case]["ratio"])


def numbers_of(text):
    return re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?", text)


def test_the_readmes_figures_are_those_of_the_page():
    """Which are held to the result files here, or stand in a row that names its own."""
    lines = [set(numbers_of(line)) for line in TEXT.splitlines() if line.startswith("| ")]
    table = [line.split("|")[2:4] for line in (ROOT / "README.md").read_text().splitlines() if re.match(r"\| .*(llama\.cpp|vLLM) \d", line)]
    assert len(table) >= 6
    for takt, rival in table:
        assert any(set(numbers_of(takt)) | set(numbers_of(rival)) <= line for line in lines), (takt, rival)


def test_one_thread_and_avx2_alone():
    for label, name, cases in (("one thread, decode", "cpu/one_thread.json", ["decode", "prefill-512"]),
                               ("AVX2 alone", "cpu/avx2.json", ["prefill-128", "prefill-512", "prefill-2048"])):
        table = {entry["case"]: entry for entry in load(name)["table"]}
        check(row(label)[1], *(table[case]["takt"] for case in cases))


def test_the_doors():
    doors = load("doors/cpu_2026-11-30.json")
    one, many = doors["latency"]["one_stream"], doors["latency"]["streams_64"]
    check(row("a step's end on the device")[1], one["first_p50_us"], one["first_p99_us"])
    check(row("64 streams in one step")[1], many["first_p50_us"], many["last_p50_us"])
    check(row("`/health/live` while")[1], doors["health"]["p99_ms"])
    check(row("10,000 idle sockets")[1], doors["idle"]["kib_each"], doors["idle"]["stream_beside"]["p99_ms"])
    check(row("256k characters")[1], max(doors["tokenise"][name]["max_ms"] for name in ("submitted", "tokenize")))
    check(row("16 streams of the real model")[1], doors["engine"]["median_ratio"])
    check(row("63 readers")[1], doors["stalled"]["median_of_ratios"])
    storm = load("doors/breaker_2026-11-30.json")
    for cell, phases in ((1, ("storm_without_key", "storm_with_key")), (2, ("storm_elsewhere", "alone"))):
        for part, phase in zip(re.findall(r"[\d.]+; [\d.]+", row("three streams of the real model")[cell]), phases, strict=True):
            check(part, storm["gap_ms"][phase]["p50"], storm["gap_ms"][phase]["p99"])
    assert storm["different_texts_a_prompt"] == [1, 1, 1] and storm["accepted"] == storm["finished"]
    rate, frames = re.findall(r"\d[\d,]*", row("1,000 streams as fast")[1])
    assert abs(int(rate.replace(",", "")) - doors["streams"]["median"]["tokens_per_s"]) <= 1000
    assert abs(int(frames.replace(",", "")) - doors["streams"]["median"]["frames_per_s"]) <= 100


def test_one_h200():
    engine = load("h200/engine_2026-12-01_tenth.json")
    batches = engine["decode_7b"]["batches"]
    check(row("decode step, batch 1; 8; 64; 256")[1], *(batch["period_ms_median"] for batch in batches))
    check(row("3B, decode, batch 1; 8; 64; 256")[1], *(batch["period_ms_median"] for batch in engine["decode_3b"]["batches"]))
    check(row("of it between two steps")[1], min(b["gap_us_median"] for b in batches), max(b["gap_us_median"] for b in batches))


def test_results_of_stages_become_one_file(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    program = [sys.executable, ROOT / "bench/cuda/engine_results.py", out, tmp_path / "result.json", "two runs"]
    nothing = subprocess.run(program, capture_output=True, text=True, timeout=30)
    assert nothing.returncode == 1 and "has no results" in nothing.stderr
    (out / "run.json").write_text('{"date": "2026-01-02T03:04Z", "commit": "abc", "device": "card"}')
    (out / "decode_3b.json").write_text('{"decode": {"batches": []}}')
    (out / "ops.txt").write_text("98 checks passed, 2 failed\n")
    (out / "memcheck.linear.txt").write_text("7 checks passed, 0 failed\n========= ERROR SUMMARY: 0 errors\n")
    (out / "racecheck.linear.txt").write_text("cut")
    for run, ms in enumerate((3.0, 1.0, 2.0)):
        scene = {"model": "3b", "scene": "decode batch 1 context 1024", "ms": ms, "kernels": 219, "attention_ms": 0.36}
        (out / f"kernels_3b_{run}.jsonl").write_text(json.dumps(scene) + "\n")
    subprocess.run(program, check=True, timeout=30)
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["commit"], result["what"], result["checks"]) == ("abc", "two runs", {"passed": 98, "of": 100})
    assert result["compute_sanitizer"] == ["memcheck linear: 7 checks passed, 0 failed; ERROR SUMMARY: 0 errors",
                                           "racecheck linear: not to its end; no summary"]
    forward, = result["forward"]["3b"]
    assert (forward["ms"], forward["kernels"], forward["runs_ms"]) == (2.0, 219, [3.0, 1.0, 2.0])
    assert result["attention"] == {"decode_3b_batch_1_us_a_layer": 10.0}
    assert result["decode_3b"] == {"batches": []} and "insert_7b" not in result


def test_where_forwards_lose_time():
    """The table of docs/kernels/predictions.md is what bench/cuda/forward_floors.py makes of the result file."""
    made = subprocess.run([sys.executable, ROOT / "bench/cuda/forward_floors.py", RESULTS / "h200/engine_2026-12-01_eighth.json"],
                          capture_output=True, text=True, check=True, timeout=30).stdout
    scenes = {scene[0]: scene for scene in (part.splitlines() for part in re.split(r"\n(?=\S)", made))}
    page = (ROOT / "docs/kernels/predictions.md").read_text().partition("| forward | 7B, 256 rows |")[2]
    for cell, beginning in enumerate(("7b decode batch 256", "7b mixed 32 decodes 96 ", "7b mixed 32 decodes 224 ", "3b decode batch 256",
                                      "3b mixed 32 decodes 224 "), 1):
        lines = next(lines for head, lines in scenes.items() if head.startswith(beginning))
        parts = {line.split()[0]: (line.split()[1], line.split()[-2]) for line in lines if line.startswith("  ") and " us, " in line}
        for label, part in (("norm, QKV", "input"), ("output", "output"), ("norm, gate and up", "mlp"), ("down", "down"),
                            ("attention", "attention"), ("head, sampling", "head")):
            found = re.search(rf"^\| {label} \|(.*)\|$", page, re.M)[1].split("|")[cell - 1].strip()
            assert found == "; ".join(parts[part]), (beginning, label)
