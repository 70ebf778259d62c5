#!/usr/bin/env python3
"""A long prompt put beside running streams, over the wire: the millisecond budget against fixed chunks and one unsplit prefill.

A server for each policy, `takt bench --scenario insert` against each, in shuffled order. What was measured is kept line by line in
--state, so that a run may be made in pieces (--seconds); --json and --plot write what all pieces gave together.

    bench/live_insert.py --state state.jsonl --seconds 90 --json result.json --plot result.svg
"""
import argparse
import datetime
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLAIN_STEPS = 7   # calls whose median plain step is the measure of a promise
MODEL = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--takt", default=str(ROOT / "build" / "release" / "takt"))
    parser.add_argument("--model", default=str(MODEL))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--prompts", type=int, nargs="+", default=[189, 2000, 6000])
    parser.add_argument("--factors", type=float, nargs="+", default=[2, 4, 8], help="promised gaps, in plain steps")
    parser.add_argument("--chunks", type=int, nargs="*", default=[8, 16, 32, 64, 256, 512])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin nothing that would end later than this; 0: only sum up")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--state", required=True)
    parser.add_argument("--json")
    parser.add_argument("--plot")
    return parser.parse_args()


class Server:
    def __init__(self, options, chunk):
        policy = ["--set", "scheduler.policy=fixed-chunk", "--set", f"scheduler.fixed_chunk_tokens={chunk}"] if chunk else []
        self.process = subprocess.Popen(
            [options.takt, "serve", "--model", options.model, "--set", f"device.kind={options.device}",
             "--set", f"device.threads={options.threads}", "--set", "server.port=0", "--set", "kv.prefix_cache=false",
             "--set", "device.memory_budget_mib=1200", "--set", "scheduler.max_running=8", "--set", "sla.ttft_ms=600000", *policy],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        found = re.search(r"127\.0\.0\.1:(\d+)", self.process.stdout.readline())   # "takt ... ready: ..., ADDRESS"
        if not found:
            raise SystemExit("a server did not start")
        self.url = f"ws://127.0.0.1:{found[1]}/v1/stream"
        # Its later lines are nobody's, and must not fill the pipe.
        subprocess.Popen(["cat"], stdin=self.process.stdout, stdout=subprocess.DEVNULL)

    def stop(self):
        self.process.terminate()
        self.process.wait()


def client_first():
    """The clients would stand on another machine: where it may, this one never waits for a core behind the server's threads, which
    was a tick of 4 ms in a third of all gaps, where both cores compute."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    except PermissionError:
        pass


def insert(options, server, streams, prompt, itl_ms):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [options.takt, "bench", "--url", server.url, "--scenario", "insert", "--streams", str(streams), "--prompt-tokens", "16",
                   "--insert-tokens", str(prompt), "--max-tokens", "8000", "--itl-ms", f"{itl_ms:.4f}", "--json", out.name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, preexec_fn=client_first)
        return json.load(open(out.name, encoding="utf-8"))["points"][0]


def policies(options):
    return [["budget", factor] for factor in options.factors] + [["chunk", chunk] for chunk in options.chunks] + [["unsplit", 8192]]


def measure(options, rows, state):
    begin = time.monotonic()
    chunks = {0} | {number for kind, number in policies(options) if kind != "budget"}
    servers = {int(chunk): Server(options, int(chunk)) for chunk in sorted(chunks)}
    try:
        before = {}   # plain steps by number of streams, newest last
        for streams in options.streams:
            insert(options, servers[0], streams, 64, 1000)   # warm
            before[streams] = [insert(options, servers[0], streams, 1, 1000)["plain_itl_ms"]["p50"] for _ in range(PLAIN_STEPS)]
        done = {(r["repeat"], r["streams"], r["prompt"], *r["policy"]) for r in rows}
        for repeat in range(options.repeat):
            todo = [(streams, prompt, policy) for streams in options.streams for prompt in options.prompts for policy in policies(options)]
            random.Random(options.seed * 1000 + repeat).shuffle(todo)
            for streams, prompt, policy in todo:
                if (repeat, streams, prompt, *policy) in done:
                    continue
                # What the same cell took in another repeat, or a guess of the first one.
                like = [r["seconds"] for r in rows if (r["streams"], r["prompt"], r["policy"]) == (streams, prompt, policy)]
                if time.monotonic() - begin + (max(like) if like else prompt / 200 + 3) > options.seconds:
                    return
                kind, number = policy
                # The machine's pace drifts by a third within minutes: the promise goes by what a plain step took lately.
                plain = statistics.median(before[streams][-PLAIN_STEPS:])
                itl_ms = plain * (number if kind == "budget" else 4)
                from_s = time.monotonic()
                point = insert(options, servers[0 if kind == "budget" else number], streams, prompt, itl_ms)
                row = {"repeat": repeat, "streams": streams, "prompt": prompt, "policy": policy, "plain_ms": plain,
                       "seconds": time.monotonic() - from_s, "ttft_ms": point["ttft_ms"]["p50"], "gaps_ms": point["gaps_ms"],
                       "before_ms": point["plain_itl_ms"]["p50"], "before_p99_ms": point["plain_itl_ms"]["p99"],
                       "outlived": point["outlived"]}
                before[streams].append(row["before_ms"])
                rows.append(row)
                state.write(json.dumps(row) + "\n")
                state.flush()
    finally:
        for server in servers.values():
            server.stop()


def quantile(values, share):
    values = sorted(values)
    at = share * (len(values) - 1)
    low = int(at)
    return values[low] + (at - low) * (values[min(low + 1, len(values) - 1)] - values[low])


def cell(rows, unsplit_ms, factors):
    gaps = [gap for row in rows for gap in row["gaps_ms"]]
    plain = statistics.median(row["plain_ms"] for row in rows)
    ttft = statistics.median(row["ttft_ms"] for row in rows)
    before = statistics.median(row["before_ms"] for row in rows)
    # What the machine does to a step that holds no slice, in the same run: no slice can be steadier than that.
    jitter = statistics.median(row.get("before_p99_ms", row["before_ms"]) / row["before_ms"] for row in rows)
    out = {"repeats": len(rows), "gaps": len(gaps), "before_ms": before, "before_p99_over_p50": jitter,
           "gap_p50_ms": quantile(gaps, .5), "gap_p95_ms": quantile(gaps, .95), "gap_p99_ms": quantile(gaps, .99),
           "gap_max_ms": max(gaps), "ttft_ms": ttft, "ttft_over_unsplit": ttft / unsplit_ms,
           "plain_step_ms": plain, "late": {}}
    for factor in factors:
        promised = [(gap, factor * row["plain_ms"]) for row in rows for gap in row["gaps_ms"]]
        out["late"][f"{factor:g} x step"] = {
            "share": sum(gap > limit for gap, limit in promised) / len(promised),
            "ms_per_1000_tokens": 1000 * sum(max(0, gap - limit) for gap, limit in promised) / len(promised)}
    return out


def summary(options, rows):
    cells = []
    for streams in options.streams:
        for prompt in options.prompts:
            of = lambda policy: [r for r in rows if (r["streams"], r["prompt"], r["policy"]) == (streams, prompt, policy)]
            whole = of(["unsplit", 8192])
            if not whole:
                continue
            unsplit_ms = statistics.median(row["ttft_ms"] for row in whole)
            for kind, number in policies(options):
                mine = of([kind, number])
                if not mine:
                    continue
                name = {"budget": f"budget {number:g} x step", "chunk": f"chunk {number}", "unsplit": "unsplit"}[kind]
                factors = [number] if kind == "budget" else options.factors
                cells.append({"streams": streams, "prompt": prompt, "policy": name, **cell(mine, unsplit_ms, factors)})
    return cells


def plot(cells):
    """The frontier of each load: time to the first token over unsplit, against the 99th percentile of gaps in plain steps; logarithmic."""
    import math
    loads = sorted({(c["streams"], c["prompt"]) for c in cells})
    wide, high = 380, 300
    parts = []
    for at, load in enumerate(loads):
        mine = [c for c in cells if (c["streams"], c["prompt"]) == load]
        left, top = at % 3 * wide + 50, at // 3 * high + 30
        xs = [c["ttft_over_unsplit"] for c in mine]
        ys = [c["gap_p99_ms"] / c["plain_step_ms"] for c in mine]
        scale = lambda value, values, size: ((math.log(value) - math.log(min(values) / 1.1))
                                             / (math.log(max(values) * 1.1) - math.log(min(values) / 1.1)) * size)
        parts.append(f'<text x="{left}" y="{top - 8}" font-weight="bold">{load[0]} streams, {load[1]} tokens</text>'
                     f'<rect x="{left}" y="{top}" width="300" height="220" fill="none" stroke="#999"/>'
                     f'<text x="{left}" y="{top + 236}">TTFT over unsplit {min(xs):.2f} ... {max(xs):.2f}</text>'
                     f'<text x="{left}" y="{top + 250}">gap p99 in plain steps {min(ys):.1f} ... {max(ys):.1f} (up)</text>')
        for c, x, y in zip(mine, xs, ys):
            px, py = left + scale(x, xs, 300), top + 220 - scale(y, ys, 220)
            colour = "#0b6e5f" if c["policy"].startswith("budget") else "#b3261e" if c["policy"] == "unsplit" else "#c98a1b"
            parts.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="4" fill="{colour}"/>'
                         f'<text x="{px + 6:.1f}" y="{py - 4:.1f}">{c["policy"]}</text>')
    rows = (len(loads) + 2) // 3
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{3 * wide + 40}" height="{rows * high + 20}" font-family="sans-serif" '
            f'font-size="10">\n<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n")


def machine():
    name = re.search(r"model name\s*:\s*(.*)", open("/proc/cpuinfo", encoding="utf-8").read())
    return f"{name[1] if name else 'unknown'}, {os.cpu_count()} cores"


def main():
    options = parse()
    path = pathlib.Path(options.state)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    if options.seconds > 0:
        with path.open("a", encoding="utf-8") as state:
            measure(options, rows, state)
    cells = summary(options, rows)
    for c in cells:
        late = ", ".join(f"{name} {100 * value['share']:.2f} %" for name, value in c["late"].items())
        print(f"{c['streams']} streams, {c['prompt']:5} tokens, {c['policy']:16} gaps {c['gap_p50_ms']:6.1f} {c['gap_p99_ms']:7.1f} "
              f"{c['gap_max_ms']:7.1f} ms, TTFT {c['ttft_ms']:7.0f} ms = {c['ttft_over_unsplit']:.2f} x; late: {late}")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    if options.json:
        head = {"date": datetime.date.today().isoformat(), "commit": commit, "machine": machine(), "threads": options.threads,
                "command": "bench/live_insert.py " + " ".join(a for a in sys.argv[1:] if "/" not in a),
                "model": pathlib.Path(options.model).name}
        pathlib.Path(options.json).write_text(json.dumps({**head, "cells": cells}, indent=1) + "\n", encoding="utf-8")
    if options.plot:
        pathlib.Path(options.plot).write_text(plot(cells), encoding="utf-8")


if __name__ == "__main__":
    main()
