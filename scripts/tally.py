#!/usr/bin/env python3
"""Adds up test results and prints `N passed, N failed` alone on the last line.

Reads every file of the folders given: Meson test logs (*.json, one object a line; Catch2 programs count by test case,
other programs by a `N passed, N failed` line of their own, or as one), JUnit files (*.xml) and plain counts (*.txt
holding `N passed, N failed`). What failed is named above the last line, with the end of what it printed, so that the tail of a
log tells why. Exit code 0 only if something passed and nothing failed.
"""
import json
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

ANSI = re.compile(r"\x1b\[[0-9;]*m")
ALL_PASSED = re.compile(r"All tests passed \(.* in (\d+) test cases?\)")
SOME_FAILED = re.compile(r"^test cases:\s*(\d+)(.*)$", re.MULTILINE)
PLAIN = re.compile(r"^(\d+) passed, (\d+) failed$", re.MULTILINE)
KEPT_LINES = 30   # of what a failed test printed
PART = re.compile(r"(\d+) (passed|failed|failed as expected|skipped)\b")


def count_program(entry):
    """(passed, failed, skipped) of one Meson test entry."""
    result = entry["result"]
    if result == "SKIP":
        return 0, 0, 1
    good = result in ("OK", "EXPECTEDFAIL")
    output = ANSI.sub("", entry.get("stdout", "") or "")
    passed = failed = skipped = 0
    whole = ALL_PASSED.search(output)
    partly = SOME_FAILED.search(output)
    if whole:
        passed = int(whole.group(1))
    elif partly:
        parts = dict((name, int(number)) for number, name in PART.findall(partly.group(2)))
        passed = parts.get("passed", 0) + parts.get("failed as expected", 0)
        failed = parts.get("failed", 0)
        skipped = parts.get("skipped", 0)
    elif (counts := PLAIN.search(output)) is not None:
        passed, failed = int(counts.group(1)), int(counts.group(2))
    elif "No tests ran" in output:
        good = False
    elif good:
        passed = 1
    # A crash, a time-out or a sanitizer report after passing cases is still a failure.
    if not good and failed == 0:
        failed = 1
    return passed, failed, skipped


def end_of(text):
    return ANSI.sub("", text).strip().splitlines()[-KEPT_LINES:]


def read_meson(text):
    """((passed, failed, skipped), failures) of one Meson log; an empty one means that the run itself broke."""
    entries = [json.loads(line) for line in text.splitlines() if line.strip()]
    if not entries:
        return (0, 1, 0), []
    counts = [count_program(entry) for entry in entries]
    failures = [(f"{entry['name']} ({entry['result']}, exit code {entry.get('returncode')}, {entry.get('duration', 0):.0f} s)",
                 end_of((entry.get("stdout") or "") + "\n" + (entry.get("stderr") or "")))
                for entry, count in zip(entries, counts) if count[1]]
    return tuple(map(sum, zip(*counts))), failures


def read_junit(text):
    if not text.strip():
        return (0, 1, 0), []
    cases = list(ElementTree.fromstring(text).iter("testcase"))
    broken = [(case, part) for case in cases for part in [*case.findall("failure"), *case.findall("error")][:1]]
    skipped = sum(1 for case in cases if case.find("skipped") is not None)
    failures = [(f"{case.get('classname')}.{case.get('name')}", end_of(part.text or "")) for case, part in broken]
    return (len(cases) - len(broken) - skipped, len(broken), skipped), failures


def read_plain(text):
    match = re.search(r"(\d+) passed, (\d+) failed", text)
    return ((int(match.group(1)), int(match.group(2)), 0) if match else (0, 1, 0)), []


READERS = {".json": read_meson, ".xml": read_junit, ".txt": read_plain}


def main(folders):
    total, failures = [0, 0, 0], []
    for folder in map(pathlib.Path, folders):
        for path in sorted(p for p in folder.rglob("*") if p.suffix in READERS):
            counts, failed = READERS[path.suffix](path.read_text(errors="replace"))
            failures += [(f"{path.stem}: {name}", output) for name, output in failed]
            total = [a + b for a, b in zip(total, counts)]
            note = f", {counts[2]} skipped" if counts[2] else ""
            print(f"{path.stem}: {counts[0]} passed, {counts[1]} failed{note}")
    for name, output in failures:
        print(f"failed: {name}", *output, sep="\n    ")
    print(f"{total[0]} passed, {total[1]} failed")
    return 0 if total[0] > 0 and total[1] == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
