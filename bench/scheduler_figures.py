#!/usr/bin/env python3
"""The scheduler's figures again, each with its head (machine, commit, date, command): what bench/results/scheduler/ holds.

goodput: the share of requests served well, ours against fixed budgets and the other policies, over recorded traces at three promises.
bulk: how fast the simulator is, 100,000 requests of each trace. scenes: bench/scene_bench. decisions: bench/scheduler_bench.
Everything but bulk's and decisions' times is exact and the same on every machine.

    bench/scheduler_figures.py --traces DIR [goodput] [bulk] [scenes] [decisions]

DIR holds azure2023_code.csv, azure2023_conv.csv and mooncake_conversation.jsonl, the recorded traces that their authors publish.
"""
import argparse
import datetime
import json
import os
import pathlib
import re
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUDGETS = [128, 256, 512, 1024, 2048]
POLICIES = ["ms", "ms-fcfs", *(f"budget:{rows}" for rows in BUDGETS), "unchunked", "p-pas"]
# name, rate, requests (0: the whole trace)
CELLS = [("azure2023_code.csv", 1.5, 0), ("mooncake_conversation.jsonl", 0.4, 2000), ("mooncake_conversation.jsonl", 1.0, 2000)]
PROMISES = [20, 40, 80]
BULK = [("azure2023_code.csv", 1.0), ("azure2023_conv.csv", 1.0), ("mooncake_conversation.jsonl", 0.3)]


def head(command, note, **more):
    cpu = re.search(r"model name\s*:\s*(.*)", pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    compiler = subprocess.run(["g++", "-dumpfullversion"], capture_output=True, text=True, check=False).stdout.strip()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    return {"date": datetime.date.today().isoformat(), "commit": commit,
            "machine": f"{cpu[1] if cpu else 'unknown'}, {os.cpu_count()} cores", "compiler": f"g++ {compiler}, release",
            "command": command, "note": note, **more}


def simulate(options, *arguments):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        subprocess.run([options.build / "takt", "simulate", *arguments, "--json", out.name], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        return json.load(open(out.name, encoding="utf-8"))


def goodput(options):
    results = []
    for trace, rate, requests in CELLS:
        for itl_ms in PROMISES:
            told = simulate(options, "--trace", options.traces / trace, "--rate", str(rate), "--requests", str(requests),
                            "--policies", ",".join(POLICIES), "--set", f"sla.itl_ms={itl_ms}")
            for r in told["results"]:
                t = r["total"]
                results.append({"trace": trace, "rate": rate, "itl_ms": itl_ms, "ttft_ms": told["ttft_ms"], "requests": t["requests"],
                                "policy": r["policy"], **{k: round(t[k], 4) for k in ("goodput_share", "goodput_all_gaps", "goodput_tpot")},
                                "ttft_p50_ms": t["ttft_ms"]["p50"], "ttft_p99_ms": t["ttft_ms"]["p99"],
                                "itl_p50_ms": t["itl_ms"]["p50"], "itl_p99_ms": t["itl_ms"]["p99"], "itl_max_ms": t["itl_ms"]["max"],
                                "late_percent": round(100 * t["late_share"], 4), "late_ms_per_1000": t["late_ms_per_1000"],
                                "refused": t["refused"], "preemptions": r["preemptions"], "busy_share": r["busy_share"],
                                "digest": r["digest"]})
    return {**head("bench/scheduler_figures.py --traces DIR goodput",
                   "virtual clock, h100-7b profile; a request is good if its first token came within 2 s and 99 % of its gaps were kept"),
            "against_fixed_budgets": against_fixed(results), "results": results}


def against_fixed(results):
    """In each cell: ours, its best fixed budget, and the budgets that are best in the cells of the other trace, run on this one."""
    share = {(r["trace"], r["rate"], r["itl_ms"], r["policy"]): r["goodput_share"] for r in results}
    best = {}
    for trace, rate, _ in CELLS:
        for itl_ms in PROMISES:
            best[trace, rate, itl_ms] = max((f"budget:{rows}" for rows in BUDGETS), key=lambda p: share[trace, rate, itl_ms, p])
    out = []
    for cell, own in best.items():
        ours = share[*cell, "ms"]
        foreign = {policy for other, policy in best.items() if other[0] != cell[0] and other[2] == cell[2]}
        out.append({"trace": cell[0], "rate": cell[1], "itl_ms": cell[2], "ms": ours, "best_fixed": own, "its_share": share[*cell, own],
                    "foreign": {p: {"share": share[*cell, p], "ms_over_it": round(ours / max(share[*cell, p], 1e-4), 2)}
                                for p in sorted(foreign)}})
        print(out[-1])
    return out


def bulk(options):
    results = []
    for trace, rate in BULK:
        told = simulate(options, "--trace", options.traces / trace, "--rate", str(rate), "--requests", "100000", "--policies", "ms")
        r = told["results"][0]
        results.append({"trace": trace, "rate": rate, "requests": r["total"]["requests"], "output_tokens": r["total"]["output_tokens"],
                        "input_tokens": r["total"]["input_tokens"], "steps": r["steps"], "wall_s": round(told["wall_s"], 2),
                        "goodput_share": round(r["total"]["goodput_share"], 4), "model_error": r["model_error"]})
        print(results[-1])
    return {**head("bench/scheduler_figures.py --traces DIR bulk", "wall time on one core, checks off"), "results": results}


def scenes(options):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        subprocess.run([options.build / "bench" / "scene_bench", "--json", out.name], check=True)
        results = json.load(open(out.name, encoding="utf-8"))
    return {**head("bench/scheduler_figures.py scenes (bench/scene_bench --json FILE)", "virtual clock, h100-7b profile: exact"),
            "results": results}


def decisions(options):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        subprocess.run([options.build / "bench" / "scheduler_bench", "--json", out.name], check=True)
        results = json.load(open(out.name, encoding="utf-8"))["cases"]
    return {**head("bench/scheduler_figures.py decisions (bench/scheduler_bench --json FILE)",
                   "wall time of decisions with 256 running and 1,000 waiting; floor: one look at each running record (scan_of_running); "
                   "plan_repeated_max: the longest that a decision took in each of three runs of the same plans, the rest is the machine's",
                   predicted="plan p99 under 100 us, no allocation"), "results": results}


def write(path, result):
    rows = result.pop("results")
    text = json.dumps(result, indent=1)[:-2] + ',\n "results": [\n' + ",\n".join("  " + json.dumps(row) for row in rows) + "\n ]\n}\n"
    path.write_text(text, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=pathlib.Path, default=pathlib.Path("traces"))
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "bench" / "results" / "scheduler")
    parser.add_argument("figures", nargs="*", default=[], help="of goodput, bulk, scenes, decisions; none: all")
    options = parser.parse_args()
    makers = {"goodput": goodput, "bulk": bulk, "scenes": scenes, "decisions": decisions}
    for name in options.figures or makers:
        write(options.output / f"{name}.json", makers[name](options))


if __name__ == "__main__":
    main()
