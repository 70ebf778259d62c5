"""docs/openapi.yaml against the server, by schemathesis: requests made from the file, and ones that break it, get answers it allows."""
import os
import subprocess
import sys

import pytest

from conftest import ROOT, Server

pytest.importorskip("schemathesis", reason="the OpenAPI test needs schemathesis: pip install schemathesis")
pytestmark = pytest.mark.long


def test_every_answer_is_one_that_the_file_allows(tmp_path):
    server = Server("--set", "device.kind=sim", "--set", "sim.scale=0", "--set", "model.max_context=256",
                    "--set", "scheduler.max_waiting=4096")
    # A deadline of a microsecond, which the file allows, may pass: 504 is an answer and no fault of the server.
    (tmp_path / "schemathesis.toml").write_text('[checks]\nnot_a_server_error.expected-statuses = ["2xx", "4xx", 504]\n')
    # Statuses for use beyond the file (405, 406, ...) are left to test_http.py.
    result = subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", "run", str(ROOT / "docs/openapi.yaml"), "--url", server.http,
         "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
         "--max-examples", os.environ.get("TAKT_OPENAPI_EXAMPLES", "60"), "--generation-deterministic", "--request-timeout", "60"],
        cwd=tmp_path, capture_output=True, text=True, timeout=1500)
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    server.wait_for("takt_requests_running", 0, 20)
    assert server.stop() == 0
