#!/usr/bin/env python3
"""engine_results.py OUT RESULT.json [WHAT]: the files that `scripts/gpu STAGE...` left in OUT as one result file with date, commit, device
and the driver's and compiler's versions. Files of stages that did not run are left out; nothing found is an error. WHAT is kept as the
result's own description."""
import glob
import json
import os
import re
import statistics
import subprocess
import sys

READ_BYTES_MS = 4.53e9     # what an H200 reads in a millisecond
HEAD_DIM = 128
ENGINES = ("decode_7b", "decode_3b", "decode_05b", "deterministic_7b", "insert_7b", "apart_7b", "truth")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def rows(path):
    return [json.loads(line) for line in read(path).splitlines() if line.startswith("{")]


def of_several(runs):
    """Medians of the runs of each scene; what is no number is the first run's."""
    scenes = {}
    for row in runs:
        scenes.setdefault(row["scene"], []).append(row)
    merged = []
    for same in scenes.values():
        row = {key: round(statistics.median(one[key] for one in same), 4) if isinstance(value, float) else value
               for key, value in same[0].items()}
        if len(same) > 1:
            row["runs_ms"] = [one["ms"] for one in same]
        merged.append(row)
    return merged


def attention(forward):
    """The figures of attention alone, from the parts of whole forwards."""
    def part(model, scene, layers):
        return next((row["attention_ms"] / layers for row in forward.get(model, ()) if row["scene"] == scene), None)
    found = {}
    if (ms := part("3b", "decode batch 1 context 1024", 36)) is not None:
        found["decode_3b_batch_1_us_a_layer"] = round(ms * 1e3, 2)
    if (ms := part("7b", "decode batch 64 context 4096", 28)) is not None:
        found["decode_7b_64x4096_of_4.53_tb_s"] = round(64 * 4096 * 2 * 4 * HEAD_DIM * 2 / READ_BYTES_MS / ms, 3)
    if (ms := part("7b", "prefill 8192", 28)) is not None:
        found["prefill_7b_8192_tflop_s"] = round(4 * 28 * HEAD_DIM * 8192 * 8193 / 2 / ms / 1e9, 1)
    return found


def sanitizers(out):
    found = []
    for path in sorted(glob.glob(f"{out}/*check.*.txt")):
        tool, group = os.path.basename(path).split(".")[:2]
        checks = re.findall(r"\d+ checks passed, \d+ failed", read(path))
        errors = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: .*", read(path))
        # A tool that its time limit ended has found nothing, but has not seen everything.
        found.append(f"{tool} {group}: {checks[-1] if checks else 'not to its end'}; {errors[-1] if errors else 'no summary'}")
    return found


def collect(out):
    result = {}
    for path in [f"{out}/{name}.json" for name in ENGINES] + sorted(glob.glob(f"{out}/truth_*.json")):
        if os.path.exists(path):
            scenarios = json.loads(read(path))
            # step_bench keeps its scenarios apart; a stage has one as a rule.
            result[os.path.basename(path).removesuffix(".json")] = next(iter(scenarios.values())) if len(scenarios) == 1 else scenarios
    if os.path.exists(f"{out}/conformance.json"):
        result |= json.loads(read(f"{out}/conformance.json"))
    if os.path.exists(f"{out}/ops.txt") and (counts := re.findall(r"(\d+) checks passed, (\d+) failed", read(f"{out}/ops.txt"))):
        passed, failed = map(int, counts[-1])
        result["checks"] = {"passed": passed, "of": passed + failed}
    if tools := sanitizers(out):
        result["compute_sanitizer"] = tools
    forward = {}
    for model in ("7b", "3b"):
        if runs := [row for path in sorted(glob.glob(f"{out}/kernels_{model}*.jsonl")) for row in rows(path)]:
            forward[model] = of_several(runs)
    if forward:
        result |= {"forward": forward, "attention": attention(forward)}
    return result


def version(command, pattern):
    try:
        text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return ""
    return next(iter(re.findall(pattern, text)), "")


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    out, path = sys.argv[1:3]
    result = collect(out)
    if not result:
        sys.exit(f"{out} has no results of scripts/gpu")
    head = json.loads(read(f"{out}/run.json")) if os.path.exists(f"{out}/run.json") else {}
    head["cuda"] = head.get("cuda") or version(["nvcc", "--version"], r"V([\d.]+)")
    head["command"] = head.get("command") or "scripts/gpu"
    if len(sys.argv) > 3:
        head["what"] = sys.argv[3]
    with open(path, "w", encoding="utf-8") as file:
        json.dump(head | result, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
