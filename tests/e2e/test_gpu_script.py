"""scripts/gpu: what fails or is left out is named, stops nothing and makes the exit code 1."""
import os
import subprocess

import pytest

from conftest import ROOT


@pytest.fixture()
def gpu(tmp_path):
    """Runs stages with programs, Python and models that are shell scripts and empty files."""
    programs, models = tmp_path / "programs", tmp_path / "models"
    programs.mkdir()
    models.mkdir()
    for name in ("tiny.gguf", "qwen2.5-0.5b.gguf"):
        (models / name).touch()

    def write(name, code, folder=programs):
        (folder / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (folder / name).chmod(0o755)

    def run(*stages, python_has_packages=True, **exit_codes):
        for name in ("takt", "step_bench", "device_conformance_test", "device_capture_test", "device_lost_test"):
            write(name, exit_codes.get(name, 0))
        write("python", 0 if python_has_packages else 1, tmp_path)
        return subprocess.run(["sh", ROOT / "scripts/gpu", *stages], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "OUT": str(tmp_path / "out"), "GPU_BUILD": str(tmp_path / "build"), "GPU_DEVICE": "cpu",
                                   "GPU_PROGRAMS": str(programs), "GPU_MODELS": str(models), "GPU_PYTHON": str(tmp_path / "python")})
    return run


def test_stages_that_all_come_through_end_with_0(gpu):
    result = gpu("conformance", "engine")
    assert result.returncode == 0 and "failed or left out" not in result.stdout, result.stdout
    assert "== decode_05b: exit 0" in result.stdout


@pytest.mark.parametrize("failing", ["device_conformance_test", "device_lost_test"])
def test_a_part_that_fails_is_a_stage_that_failed_and_the_next_one_runs(gpu, failing):
    result = gpu("conformance", "engine", **{failing: 3})
    assert result.returncode == 1 and result.stdout.endswith("== failed or left out: conformance\n"), result.stdout
    assert f"== {failing}: exit 3" in result.stdout and "== decode_05b: exit 0" in result.stdout


def test_a_stage_that_is_left_out_is_no_success(gpu):
    result = gpu("engine", "serve", python_has_packages=False)
    assert result.returncode == 1 and result.stdout.endswith("== failed or left out: engine serve\n"), result.stdout
    assert "serve: left out" in result.stdout
