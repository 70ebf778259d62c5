#!/usr/bin/env python3
"""Installs a build into an empty prefix and builds examples/embed against it by pkg-config, Meson and CMake.

Each program must stream the same answer as the one built inside the tree. Usage: install_test.py BUILD SOURCE CXX...
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

MODEL = "models/SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPT = "Name three primary colours."


class Failure(Exception):
    pass


def run(command, **options):
    done = subprocess.run([str(c) for c in command], text=True, capture_output=True, **options)
    if done.returncode != 0:
        raise Failure(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


class Installed:
    """The installed tree and a scratch folder beside it."""

    def __init__(self, build, source, compiler, scratch):
        self.source, self.compiler, self.scratch = source, compiler, scratch
        run(["meson", "install", "-C", build, "--no-rebuild", "--destdir", scratch / "root"])
        packages = list((scratch / "root").rglob("takt.pc"))
        configs = list((scratch / "root").rglob("takt-config.cmake"))
        if len(packages) != 1 or len(configs) != 1:
            raise Failure(f"pkg-config or CMake package missing: {packages} {configs}")
        self.package_folder, self.cmake_folder = packages[0].parent, configs[0].parent
        self.environment = dict(os.environ, PKG_CONFIG_PATH=str(self.package_folder), CXX=" ".join(compiler))
        # The example is copied, so that nothing of the source tree can be found by accident.
        self.example = scratch / "embed"
        shutil.copytree(source / "examples/embed", self.example)

    def by_pkg_config(self):
        flags = run(["pkg-config", "--cflags", "--libs", "takt"], env=self.environment).split()
        program = self.scratch / "embed-pkg-config"
        run([*self.compiler, "-std=c++20", self.example / "embed.cpp", "-o", program, *flags])
        return program

    def by_meson(self):
        folder = self.scratch / "by-meson"
        run(["meson", "setup", folder, self.example], env=self.environment)
        run(["ninja", "-C", folder])
        return folder / "embed"

    def by_cmake(self):
        folder = self.scratch / "by-cmake"
        run(["cmake", "-G", "Ninja", "-S", self.example, "-B", folder, f"-Dtakt_DIR={self.cmake_folder}"],
            env=self.environment)
        run(["cmake", "--build", folder])
        return folder / "embed"


def check_headers(root, source):
    installed = {p.name for p in root.rglob("include/takt/*.h")}
    expected = {p.name for p in (source / "include/takt").glob("*.h")} | {"version.h"}
    if installed != expected:
        raise Failure(f"installed headers differ: {sorted(installed ^ expected)}")


def check_answer(program, in_tree, source):
    model = source / MODEL
    if not model.exists():
        usage = subprocess.run([program], capture_output=True, text=True)
        if usage.returncode != 2 or "usage" not in usage.stderr:
            raise Failure(f"{program} without arguments: {usage}")
        print(f"  {MODEL} is not there: the program was started, not asked")
        return
    expected = run([in_tree, model, PROMPT])
    answer = run([program, model, PROMPT])
    if not answer.strip() or answer != expected:
        raise Failure(f"answers differ:\n{answer!r}\n{expected!r}")


def main():
    build, source, compiler = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]
    passed = failed = 0
    with tempfile.TemporaryDirectory(prefix="takt-install-") as folder:
        scratch = pathlib.Path(folder)
        tree = Installed(build, source, compiler, scratch)
        steps = [("headers", lambda: check_headers(scratch / "root", source))]
        for way in ("by_pkg_config", "by_meson", "by_cmake"):
            steps.append((way, lambda way=way: check_answer(getattr(tree, way)(), build / "examples/embed", source)))
        for name, step in steps:
            try:
                step()
                passed += 1
                print(f"{name}: ok")
            except Failure as failure:
                failed += 1
                print(f"{name}: FAILED\n{failure}")
    print(f"{passed} passed, {failed} failed")
    return 0 if failed == 0 and passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
