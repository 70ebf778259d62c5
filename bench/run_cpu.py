#!/usr/bin/env python3
"""Every CPU figure in one command: takt beside llama.cpp by format, batch, context, threads and beside busy processes; the 16-bit
reading floor; time to ready and memory of the server; the tokenizers beside the Rust package. Tables and plots go to
bench/results/cpu/; those that still lack samples to the folder partial of --work until they have them all.

  bench/run_cpu.py --llama rival/bin                 all of it (an hour)
  bench/run_cpu.py --llama rival/bin --seconds 90    a part; call again to go on (exit code 75 until all is measured)

Files that it needs beside SmolLM2's it makes itself in --work: Q8_0, Q4_0 and Q4_K_M by llama-quantize --allow-requantize (speed only:
they are rounded twice), and a random model of width 2,048 and eight layers in Q4_K and Q6_K by takt's own writer. Python needs numpy
for that one and `tokenizers` for the last table; what is absent is named and left out.
"""

import gzip
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import run_rival
import svg_lines
from doors import Server, frame, machine, stream_socket

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULTS = os.path.join(ROOT, "bench/results/cpu")
SMOLLM2 = os.path.join(ROOT, "models/SmolLM2-135M-Instruct.Q4_1.gguf")
KV_BYTES = 23040   # of SmolLM2, one position in float16
TOKENIZERS = ["qwen3", "llama3_1", "gemma3"]


def read_json(path, absent):
    if not os.path.exists(path):
        return absent
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def make_file(options, path, *commands):
    """Runs the commands unless the file is there; it appears only when it is whole. Ends the program when its time is over."""
    if not os.path.exists(path):
        if options.end is not None and time.monotonic() > options.end:
            print(f"still to be made: {path}; call again", file=sys.stderr)
            sys.exit(run_rival.UNFINISHED)
        print(f"making {path}", file=sys.stderr)
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                print(f"left out: {path}: {done.stderr[-300:]}", file=sys.stderr)
                return None
        os.replace(path + ".new", path)
    return path


def format_files(options):
    """The files that the wanted tables measure, by name."""
    os.makedirs(options.work, exist_ok=True)
    files = [SMOLLM2]
    if options.only not in (None, "formats", "int8"):
        return files
    for name in ("Q8_0", "Q4_0", "Q4_K_M"):
        path = os.path.join(options.work, f"SmolLM2-135M.{name}.gguf")
        quantize = os.path.join(options.llama, "llama-quantize")
        files.append(make_file(options, path, [quantize, "--allow-requantize", SMOLLM2, path + ".new", name, "2"]))
    plain = os.path.join(options.work, "wide.bf16.gguf")
    for name in ("q4_k", "q6_k"):
        path = os.path.join(options.work, f"wide.{name.upper()}.gguf")
        if not os.path.exists(path):
            make_file(options, plain, [sys.executable, os.path.join(ROOT, "scripts/make_random_model.py"), "wide", plain + ".new",
                                       "--context", "4096"])
        files.append(make_file(options, path, [os.path.join(options.build, "takt"), "quantize", plain, path + ".new", "--format", name]))
    return [path for path in files if path]


def sections(options):
    """name -> jobs of run_rival."""
    def jobs(models, cases, threads=(2,), busy=0, isa="", activations=""):
        options.model, options.case, options.threads = models, cases, threads
        options.busy, options.isa, options.activations = busy, isa, activations
        return run_rival.make_jobs(options)
    wide, cases = [path for path in options.files if "wide" in path], options.case
    return {
        "formats": jobs(options.files, cases),
        "curves": jobs([SMOLLM2], ["batch-1", "batch-2", "decode-256", "decode-512", "decode-2048"]),
        "one_thread": jobs([SMOLLM2], ["decode", "prefill-512"], (1,)),
        "avx2": jobs([SMOLLM2], ["decode", "prefill-128", "prefill-512", "prefill-2048"], isa="avx2"),
        "int8": jobs([SMOLLM2, *wide], ["decode", "prefill-512", "batch-8"], activations="int8"),
        "busy": jobs([SMOLLM2], ["decode", "prefill-128"], (1, 2), busy=2),
    }


def result_path(options, name, complete):
    """Where a result goes: one that lacks samples does not take the place of one that has them."""
    partial = os.path.join(options.work, "partial", name)
    if not complete:
        os.makedirs(os.path.dirname(partial), exist_ok=True)
        return partial
    if os.path.exists(partial):
        os.remove(partial)
    return os.path.join(RESULTS, name)


def write_sections(options, state, parts):
    for name, jobs in parts.items():
        table = run_rival.table_of(state, jobs)
        if not table:
            continue
        first = jobs[0]
        path = result_path(options, f"{name}.json", run_rival.has_all_samples(state, jobs, options.repeat))
        print(f"\n{path}", file=sys.stderr)
        run_rival.print_table(table)
        run_rival.write_json(path, {**run_rival.result_head(state["head"]), "busy_processes": first["busy"],
                                    "isa": first["isa"] or "auto", "activations": first["activations"] or "auto", "table": table})


def write_plots(options, state, parts):
    lines = {line["case"]: line for name in ("formats", "curves") for line in run_rival.table_of(state, parts[name])
             if line["model"] == os.path.basename(SMOLLM2)}
    if not lines:
        return
    def series(kind, engine):
        found = [(run_rival.number_of(case), line[engine]) for case, line in lines.items() if case.partition("-")[0] == kind]
        return sorted(found)
    panels = [("decode by sequences", "sequences of 128 tokens", "batch"), ("decode by context", "tokens before", "decode"),
              ("prefill", "tokens of the prompt", "prefill")]
    complete = all(run_rival.has_all_samples(state, parts[name], options.repeat) for name in ("formats", "curves"))
    with open(result_path(options, "tokens_per_second.svg", complete), "w", encoding="utf-8") as out:
        out.write(svg_lines.plot([(title, x, "tokens/s", [(engine, series(kind, engine)) for engine in ("takt", "llama.cpp")])
                                  for title, x, kind in panels], "SmolLM2-135M Q4_1, 2 threads"))


def status_kib(pid, name):
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name + ":"))


def read_until_end(connection):
    data = b""
    while b'"end"' not in data and b'"error"' not in data:
        part = connection.recv(65536)
        if not part:
            break
        data = data[-64:] + part


def serve_figures(options):
    """Time to ready from a warm page cache, and memory with sixteen requests at once."""
    with open(SMOLLM2, "rb") as file:
        while file.read(1 << 24):
            pass
    settings = (f"model.path={SMOLLM2}", "device.kind=cpu", "model.max_context=512", "scheduler.max_running=16", "server.port=0")
    ready, memory = [], {}
    for turn in range(7):
        begin = time.monotonic()
        with Server(pathlib.Path(options.build), *settings) as server:
            ready.append(time.monotonic() - begin)
            if turn > 0:
                continue
            memory["idle_kib"] = server.rss_kib()
            held = [stream_socket(server.port) for _ in range(16)]
            for i, connection in enumerate(held):
                connection.sendall(frame(type="generate", id="a", tokens=[1000 + 16 * i + k for k in range(256)], max_tokens=256,
                                         ignore_eos=True, temperature=0))
            for connection in held:
                read_until_end(connection)
            memory["serving_kib"] = server.rss_kib()   # the largest is of the load, which maps the file meanwhile
            memory["largest_kib"] = status_kib(server.process.pid, "VmHWM")
    memory["file_kib"] = os.path.getsize(SMOLLM2) // 1024
    memory["kv_asked_for_kib"] = 16 * 512 * KV_BYTES // 1024
    memory["over_file_and_kv_mib"] = (memory["serving_kib"] - memory["file_kib"] - memory["kv_asked_for_kib"]) / 1024
    return {"ready_seconds": statistics.median(ready), "ready_samples": ready, "memory": memory,
            "required": {"ready_seconds": 0.5, "over_file_and_kv_mib": 48}}


def corpus():
    """Prose and code of this project and the texts of the tokenizer vectors, in many scripts."""
    parts = []
    for folder, ending in (("docs", ".md"), ("src", ".cpp"), ("src", ".h"), ("bench", ".py")):
        for base, _, names in sorted(os.walk(os.path.join(ROOT, folder))):
            for name in sorted(names):
                if name.endswith(ending):
                    with open(os.path.join(base, name), encoding="utf-8") as file:
                        parts.append(file.read())
    vectors = os.path.join(ROOT, "../shared/truth/tokenizers/gemma3.jsonl")
    if os.path.exists(vectors):
        with open(vectors, encoding="utf-8") as file:
            parts += [json.loads(line)["text"] for line in file]
    return parts


def rust_rate(path, texts, size):
    """Its cache of words empty, as ours is."""
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(path)
    begin = time.monotonic()
    count = sum(len(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts)
    return size / (time.monotonic() - begin), count


def unpacked(packed, folder):
    """The tokenizer.json of a packed one."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "tokenizer.json")
    with gzip.open(packed) as source, open(path, "wb") as out:
        out.write(source.read())
    return path


def tokenizer_samples(options, texts_path, texts, size):
    """Samples of both sides by tokenizer, taken in turn, and whether all are there; they are kept in a file until then."""
    state_path = os.path.join(options.work, "tokenizers.samples")
    samples = read_json(state_path, {})
    end = time.monotonic() + options.seconds if options.seconds else None
    for turn in range(min(options.repeat, 3)):
        for name in TOKENIZERS:
            packed = os.path.join(ROOT, "../shared/tokenizers", name, "tokenizer.json.gz")
            found = samples.setdefault(name, [])
            if len(found) > turn or not os.path.exists(packed):
                continue
            if end is not None and time.monotonic() > end:
                return samples, False
            path = unpacked(packed, os.path.join(options.work, f"tokenizer-{name}"))
            run = subprocess.run([os.path.join(options.build, "bench/tokenizer_bench"), path, texts_path], capture_output=True,
                                 text=True, check=True)
            found.append({"takt": json.loads(run.stdout), "rust": rust_rate(path, texts, size)})
            run_rival.write_json(state_path, samples)
    return samples, True


def tokenizer_figures(options):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    texts = corpus()
    size = sum(len(text.encode()) for text in texts)
    texts_path = os.path.join(options.work, "texts.json")
    run_rival.write_json(texts_path, texts)
    samples, done = tokenizer_samples(options, texts_path, texts, size)
    if not done:
        return None
    table = []
    for name, found in samples.items():
        if not found:
            print(f"left out: the tokenizer {name} is absent", file=sys.stderr)
            continue
        takt, rust = (statistics.median(values) for values in zip(*((f["takt"]["bytes_per_second"], f["rust"][0]) for f in found)))
        table.append({"tokenizer": name, "bytes": size, "takt_bytes_per_second": takt, "rust_bytes_per_second": rust,
                      "ratio": takt / rust, "takt_again": statistics.median(f["takt"]["bytes_per_second_again"] for f in found),
                      "takt_tokens": found[0]["takt"]["tokens"], "rust_tokens": found[0]["rust"][1], "samples": len(found)})
        print(f"{name:10} takt {takt / 1e6:6.2f} MB/s, tokenizers {rust / 1e6:6.2f} MB/s, {takt / rust:.2f} x", file=sys.stderr)
    os.remove(os.path.join(options.work, "tokenizers.samples"))
    import tokenizers
    return {"rival": f"tokenizers {tokenizers.__version__}, one thread", "table": table, "required": {"ratio": 2}}


def single_figures(options, state):
    """The figures that are no comparison by rounds; each once a result. True when all are there."""
    done = True
    made = {"serve": serve_figures}
    if importlib.util.find_spec("tokenizers") is None:
        print("left out: tokenizers is not installed", file=sys.stderr)
    else:
        made["tokenizers"] = tokenizer_figures
    for name, figures in made.items():
        path = os.path.join(RESULTS, f"{name}.json")
        found = figures(options) if options.only in (None, name) else {}
        done = done and found is not None
        if found:
            run_rival.write_json(path, {**run_rival.result_head({**machine(), **state["head"]}), **found})
    return done


def main():
    parser = run_rival.parser()
    parser.description = __doc__
    parser.add_argument("--build", default=os.path.join(ROOT, "build/release"))
    parser.add_argument("--work", default=os.path.join(ROOT, "build/bench-files"))
    parser.add_argument("--only", help="one table: formats, curves, one_thread, avx2, int8, busy, serve or tokenizers")
    parser.add_argument("--among", nargs="+", default=[""], help="measure only files and cases whose names hold one of these words; the "
                        "tables hold what was measured before as well")
    options = parser.parse_args()
    options.end = time.monotonic() + options.seconds if options.seconds else None
    options.files = format_files(options)
    if options.end is not None:
        options.seconds = max(options.end - time.monotonic(), 1)   # making files took its part
    parts = sections(options)
    os.makedirs(RESULTS, exist_ok=True)
    wanted = {name: jobs for name, jobs in parts.items() if options.only in (None, name)}
    state_path = os.path.join(options.work, "run_cpu.samples")
    jobs = [job for jobs in wanted.values() for job in jobs
            if any(word in f"{job['model']} {job['case']}" for word in options.among)]
    state, done = run_rival.run_jobs(options, jobs, state_path)
    write_sections(options, state, wanted)
    write_plots(options, state, parts)
    if not done or not single_figures(options, state):
        sys.exit(run_rival.UNFINISHED)


if __name__ == "__main__":
    main()
