"""docs/promises.md names tests that exist."""
import re

from conftest import ROOT


def test_every_test_that_the_table_names_is_there():
    table = (ROOT / "docs/promises.md").read_text()
    rows = "".join(line for line in table.splitlines(True) if line.startswith("|"))
    python = "".join(path.read_text() for path in (ROOT / "tests/e2e").glob("test_*.py"))
    cases = "".join(path.read_text() for path in (ROOT / "tests").rglob("*_test.cpp"))
    names = set(re.findall(r"\btest_\w+", rows))
    quoted = set(re.findall(r'"([^"]+)"', rows))
    assert len(names) > 60 and len(quoted) > 20
    missing = [name for name in names if f"def {name}(" not in python] + [name for name in quoted if f'TEST_CASE("{name}"' not in cases]
    assert not missing
