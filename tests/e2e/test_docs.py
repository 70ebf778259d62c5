"""README and docs/ name commands, options, keys and files that exist."""
import re
import subprocess

import pytest

from conftest import PROGRAM, ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = ("serve", "generate", "chat", "inspect", "simulate", "bench", "quantize")


def text_of(page):
    return page.read_text().replace("\\\n", " ")


def calls(page):
    """Every `takt COMMAND ...` of a page up to the end of its line or code."""
    return re.findall(r"\btakt (" + "|".join(COMMANDS) + r")\b([^\n`|)]*)", text_of(page))


@pytest.mark.parametrize("command", COMMANDS)
def test_options_that_the_pages_show_are_the_programs(command):
    help_text = subprocess.run([PROGRAM, command, "--help"], capture_output=True, text=True, check=True, timeout=30).stdout
    known = set(re.findall(r"--[a-z][a-z-]*", help_text))
    for page in PAGES:
        for name, rest in calls(page):
            shown = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", rest)) if name == command else set()
            assert shown <= known, f"{page.name}: takt {command} has no {shown - known}"


def test_links_and_files_that_the_pages_name_exist():
    for page in PAGES:
        text = text_of(page)
        for link in re.findall(r"\]\(([^)#\s]+)\)", text):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name}: {link}"
        for path in re.findall(r"`((?:bench|deploy|docs|examples|scripts|src|tests)/[\w./-]+)`", text):
            # A program is named without its source's ending.
            assert list(ROOT.glob(path.rstrip("/"))) or list(ROOT.glob(path + ".*")), f"{page.name}: {path}"


def test_keys_that_the_pages_set_are_keys():
    keys, section = set(), ""
    for line in (ROOT / "config.toml").read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif found := re.match(r"(?:# )?(\w+) = ", line):
            keys.add(f"{section}.{found[1]}")
    for page in PAGES:
        text = text_of(page)
        named = set(re.findall(r"--set (\w+\.\w+)=", text))
        named |= set(re.findall(r"`((?:model|device|kv|scheduler|sla|server|sim|log)\.[a-z_]+)(?: = [^`]*)?`", text))
        named = {name for name in named if not name.endswith((".h", ".cpp"))} - {"section.key"}
        assert named <= keys, f"{page.name}: {named - keys}"
