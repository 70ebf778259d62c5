"""The soak of bench/soak.py for some minutes: memory flat, books balanced, every answer given. TAKT_SOAK_MINUTES asks for longer."""
import os
import subprocess
import sys

import pytest

from conftest import PROGRAM, ROOT

pytestmark = pytest.mark.long


def test_mixed_load_leaves_memory_flat_and_the_books_balanced():
    minutes = float(os.environ.get("TAKT_SOAK_MINUTES", "3"))
    result = subprocess.run([sys.executable, ROOT / "bench/soak.py", PROGRAM, "--minutes", str(minutes)], capture_output=True, text=True,
                            timeout=minutes * 60 + 300)
    assert result.returncode == 0, result.stdout + result.stderr
