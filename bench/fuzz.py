#!/usr/bin/env python3
"""Runs the fuzz targets of a libFuzzer build until each has its number of runs, in pieces, and keeps the count.

bench/fuzz.py [--build build/asan] [--runs 10000000] [--json bench/results/fuzz.json] [TARGET...]

What has been counted is kept, with the commits it was counted at, so an interrupted run goes on where it was. Inputs are those of
tests/data/fuzz_corpus.tar.xz and lie with what is found in build/fuzz/TARGET, crashes in build/fuzz/TARGET.crash; a crash ends the target's
turn and is told. To keep what was found: TARGET -merge=1 into an empty folder, and pack that."""
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
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
LENGTHS = {"chat_template": 200, "chat_user": 200, "client_frame": 512, "config": 512, "gguf": 2048, "http_route": 512,
           "model_folder": 1024, "response_body": 512, "tokenizer_json": 512}
PIECE_SECONDS = 60


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()


def sanitizers(build):
    options = json.loads((build / "meson-info/intro-buildoptions.json").read_text())
    return next(option["value"] for option in options if option["name"] == "b_sanitize")


def run_piece(program, name, runs):
    """(runs done, seconds, exit code)."""
    corpus, crashes = ROOT / f"build/fuzz/{name}_fuzz", ROOT / f"build/fuzz/{name}_fuzz.crash"
    if not corpus.exists():
        corpus.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(ROOT / "tests/data/fuzz_corpus.tar.xz") as kept:
            kept.extractall(corpus.parent, [member for member in kept if f"/{name}_fuzz" in member.name])
    corpus.mkdir(exist_ok=True)
    crashes.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "ASAN_OPTIONS": "allocator_may_return_null=1:malloc_context_size=4",
                   "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}
    begin = time.monotonic()
    # entropic=0: that schedule costs more than these targets do. A long time-out: the machine may be stopped meanwhile.
    result = subprocess.run(
        [program, f"-runs={runs}", f"-max_total_time={PIECE_SECONDS}", f"-max_len={LENGTHS[name]}", "-entropic=0", "-timeout=1500",
         "-rss_limit_mb=3000", "-print_final_stats=1", "-verbosity=0", corpus, ROOT / f"tests/data/fuzz/{name}_fuzz"],
        cwd=crashes, env=environment, capture_output=True, text=True, preexec_fn=lambda: os.nice(19))
    found = re.search(r"number_of_executed_units:\s*(\d+)", result.stderr)
    if result.returncode != 0:
        print(result.stderr[-3000:], file=sys.stderr)
    return int(found.group(1)) if found else 0, time.monotonic() - begin, result.returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/asan")
    parser.add_argument("--runs", type=int, default=10_000_000)
    parser.add_argument("--json", type=pathlib.Path, default=ROOT / "bench/results/fuzz.json")
    parser.add_argument("targets", nargs="*", default=[])
    options = parser.parse_args()
    book = json.loads(options.json.read_text()) if options.json.exists() else {"targets": {}}
    commit = git("rev-parse", "--short", "HEAD")
    failed = False
    for name in options.targets or sorted(LENGTHS):
        entry = book["targets"].setdefault(name, {"runs": 0, "seconds": 0, "crashes": 0, "commits": []})
        while entry["runs"] < options.runs:
            runs, seconds, code = run_piece(options.build / f"tests/fuzz/{name}_fuzz", name, options.runs - entry["runs"])
            entry["runs"] += runs
            entry["seconds"] = round(entry["seconds"] + seconds)
            entry["crashes"] += code != 0
            if commit not in entry["commits"]:
                entry["commits"].append(commit)
            book.update(what="Runs of each fuzz target and what they found; a crash is mended and its input kept in tests/data/fuzz",
                        sanitizers=sanitizers(options.build), date=datetime.date.today().isoformat(), asked=options.runs,
                        machine={"cores": os.cpu_count(), "system": platform.platform()},
                        command="bench/fuzz.py --runs " + str(options.runs))
            options.json.write_text(json.dumps(book, indent=1) + "\n")
            print(f"{name}: {entry['runs']} runs, {runs / max(seconds, 1e-9):.0f}/s", flush=True)
            if code != 0 or runs == 0:
                failed = True
                break
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
