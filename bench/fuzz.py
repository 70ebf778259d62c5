#!/usr/bin/env python3
"""Runs the fuzz targets of a libFuzzer build until each has its number of runs, in pieces, and keeps the count.

bench/fuzz.py [--build build/asan] [--runs 10000000] [--jobs 1] [--json bench/results/fuzz.json] [TARGET...]

What has been counted is kept, with the commits it was counted at, so an interrupted run goes on where it was; the inputs that a piece
begins with are not counted. Inputs are those of tests/data/fuzz_corpus.tar.xz and lie with what is found in build/fuzz/TARGET, crashes in
build/fuzz/TARGET.crash; a crash ends the target's turn and is told. To keep what was found: TARGET -merge=1 into an empty folder, and
pack that. The build of .ci/run (build/asan) is not optimised: one like it with -Doptimization=2 runs two to four times as often. Each
of `--jobs` processes takes the target that the fewest are at, in the order given."""
import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import tarfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
LENGTHS = {"chat_template": 200, "chat_user": 200, "client_frame": 512, "config": 512, "connection": 2048, "gguf": 2048, "http_route": 512,
           "model_folder": 1024, "response_body": 512, "tokenizer_json": 512}
PIECE_SECONDS = 60


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()


def sanitizers(build):
    options = json.loads((build / "meson-info/intro-buildoptions.json").read_text())
    return next(option["value"] for option in options if option["name"] == "b_sanitize")


def unpack_inputs(name):
    """The folder of a target's inputs, made of the kept ones where there is none."""
    corpus = ROOT / f"build/fuzz/{name}_fuzz"
    if not corpus.exists():
        corpus.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(ROOT / "tests/data/fuzz_corpus.tar.xz") as kept:
            kept.extractall(corpus.parent, [member for member in kept if f"/{name}_fuzz" in member.name])
    corpus.mkdir(exist_ok=True)
    return corpus


def run_piece(program, name, runs):
    """(runs done, seconds, exit code)."""
    corpus, seeds, crashes = unpack_inputs(name), ROOT / f"tests/data/fuzz/{name}_fuzz", ROOT / f"build/fuzz/{name}_fuzz.crash"
    crashes.mkdir(parents=True, exist_ok=True)
    num_inputs = sum(len(list(folder.iterdir())) for folder in (corpus, seeds) if folder.exists())
    environment = {**os.environ, "ASAN_OPTIONS": "allocator_may_return_null=1:malloc_context_size=0:quarantine_size_mb=8",
                   "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}
    begin = time.monotonic()
    # entropic=0: that schedule costs more than these targets do. A long time-out: the machine may be stopped meanwhile.
    result = subprocess.run(
        ["nice", "-n", "19", program, f"-runs={runs + num_inputs}", f"-max_total_time={PIECE_SECONDS}", f"-max_len={LENGTHS[name]}",
         "-entropic=0", "-timeout=1500", "-rss_limit_mb=3000", "-print_final_stats=1", "-verbosity=0", corpus, seeds],
        cwd=crashes, env=environment, capture_output=True, text=True)
    found = re.search(r"number_of_executed_units:\s*(\d+)", result.stderr)
    if result.returncode != 0:
        print(result.stderr[-3000:], file=sys.stderr)
    return max(0, int(found.group(1)) - num_inputs) if found else 0, time.monotonic() - begin, result.returncode


class Book:
    """What was counted, on disk after each piece. Any thread."""

    def __init__(self, options):
        self.options = options
        self.book = json.loads(options.json.read_text()) if options.json.exists() else {"targets": {}}
        self.commit = git("rev-parse", "--short", "HEAD")
        self.lock = threading.Lock()
        self.under_way = dict.fromkeys(options.targets or sorted(LENGTHS), 0)   # target -> processes; none after a failure
        self.failed = False

    def entry(self, name):
        return self.book["targets"].setdefault(name, {"runs": 0, "seconds": 0, "crashes": 0, "commits": []})

    def take(self):
        """A target with runs left and how many of them are this process's; nothing if all are done."""
        with self.lock:
            unfinished = [name for name in self.under_way if self.entry(name)["runs"] < self.options.runs]
            if not unfinished:
                return None
            name = min(unfinished, key=self.under_way.get)   # the first of them in the order given
            self.under_way[name] += 1
            return name, -(-(self.options.runs - self.entry(name)["runs"]) // self.under_way[name])

    def add(self, name, runs, seconds, code):
        with self.lock:
            entry = self.entry(name)
            entry["runs"] += runs
            entry["seconds"] = round(entry["seconds"] + seconds)
            entry["crashes"] += code != 0
            if self.commit not in entry["commits"]:
                entry["commits"].append(self.commit)
            self.book.update(what="Runs of each fuzz target and what they found; a crash is mended and its input kept in tests/data/fuzz",
                             sanitizers=sanitizers(self.options.build), date=datetime.date.today().isoformat(), asked=self.options.runs,
                             machine={"cores": os.cpu_count(), "system": platform.platform()},
                             command="bench/fuzz.py --runs " + str(self.options.runs))
            self.options.json.write_text(json.dumps(self.book, indent=1) + "\n")
            print(f"{name}: {entry['runs']} runs, {runs / max(seconds, 1e-9):.0f}/s", flush=True)
            if name in self.under_way:
                self.under_way[name] -= 1
            if code != 0:
                self.failed = True
                self.under_way.pop(name, None)


def work(book):
    while (taken := book.take()) is not None:
        name, runs = taken
        book.add(name, *run_piece(book.options.build / f"tests/fuzz/{name}_fuzz", name, runs))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/asan")
    parser.add_argument("--runs", type=int, default=10_000_000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path, default=ROOT / "bench/results/fuzz.json")
    parser.add_argument("targets", nargs="*", default=[])
    book = Book(parser.parse_args())
    workers = [threading.Thread(target=work, args=(book,)) for _ in range(book.options.jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return 1 if book.failed else 0


if __name__ == "__main__":
    sys.exit(main())
