#!/usr/bin/env python3
"""Writes a C++ file that holds the page's HTML: embed.py INPUT.html OUTPUT.cpp."""
import base64
import hashlib
import pathlib
import re
import sys

PIECE = 12000  # string literals have a length limit in the standard; pieces are joined by the compiler


def literal(text):
    pieces = [text[at:at + PIECE] for at in range(0, len(text), PIECE)]
    return "\n    ".join(f'R"takt_page({piece})takt_page"' for piece in pieces)


def digest(html, tag):
    """The CSP source of the page's one inline <tag>."""
    body = re.search(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL).group(1)
    return "'sha256-" + base64.b64encode(hashlib.sha256(body.encode()).digest()).decode() + "'"


def main(source, target):
    html = pathlib.Path(source).read_text(encoding="utf-8")
    policy = ("default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
              f"frame-ancestors 'none'; script-src {digest(html, 'script')}; style-src {digest(html, 'style')}")
    pathlib.Path(target).write_text(
        "// Made from the page's HTML by embed.py. Read-only data.\n"
        '#include "server/page.h"\n\nnamespace takt::server {\n\n'
        f"std::string_view page_html() {{\n    return\n    {literal(html)};\n}}\n\n"
        f'std::string_view page_policy() {{\n    return "{policy}";\n}}\n\n'
        "}  // namespace takt::server\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
