#!/usr/bin/env python3
"""Prints, one a line, what a run of tests needs built: the programs of the tests that have none of the excluded suites, and the
fuzz targets. Reads `meson introspect BUILD --tests --targets`; the arguments are BUILD and the excluded suites.
"""
import json
import pathlib
import sys


def main(build, excluded):
    build = pathlib.Path(build).resolve()
    everything = json.load(sys.stdin)
    wanted = set()
    for test in everything["tests"]:
        suites = {suite.split(":")[-1] for suite in test["suite"]}
        if not suites & set(excluded):
            wanted.add(test["cmd"][0])
    for target in everything["targets"]:
        if target["type"] == "executable" and target["name"].endswith("_fuzz") and "fuzz" not in excluded:
            wanted.update(target["filename"])
    for path in sorted(pathlib.Path(path).resolve() for path in wanted):
        if build in path.parents:
            print(path.relative_to(build))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
