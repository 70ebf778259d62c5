"""docs/promises.md and docs/cases.md name tests that exist, one a row at least."""
import re

import pytest

from conftest import ROOT


@pytest.mark.parametrize("page, least_names, least_quoted", [("docs/promises.md", 60, 20), ("docs/cases.md", 30, 40)])
def test_every_test_that_the_table_names_is_there(page, least_names, least_quoted):
    rows = [line for line in (ROOT / page).read_text().splitlines() if re.match(r"\| (?!---)", line)]
    rows = [row for row in rows if not row.startswith(("| promise", "| reported as"))]
    python = "".join(path.read_text() for path in (ROOT / "tests/e2e").glob("test_*.py"))
    cases = "".join(path.read_text() for path in (ROOT / "tests").rglob("*_test.cpp"))
    names, quoted = set(), set()
    for row in rows:
        tests = row.rsplit("|", 2)[1]      # the last column
        found = re.findall(r"\btest_\w+", tests), re.findall(r'"([^"]+)"', tests)
        assert found[0] or found[1], f"no test: {row}"
        names.update(found[0])
        quoted.update(found[1])
    assert len(names) > least_names and len(quoted) > least_quoted
    missing = [name for name in names if f"def {name}(" not in python] + [name for name in quoted if f'TEST_CASE("{name}"' not in cases]
    assert not missing
