#!/usr/bin/env python3
"""Writes src/model/unicode_*_table.cpp from Python's own unicodedata.

Run with a Python whose unicodedata is Unicode 14.0 (Python 3.11), the version of PCRE2 10.42, so that the hand-written
pre-tokenizer scanners and the PCRE2 patterns agree on every character. The output is committed.
"""
import pathlib
import unicodedata

MODEL = pathlib.Path(__file__).resolve().parent.parent / "src" / "model"
ALL = range(0x110000)
HEADER = """// {what} of Unicode {version}. Made by scripts/make_unicode_tables.py.
// Read-only data, usable from any thread; read through unicode.h only.
#include "model/unicode_tables.h"

namespace takt::unicode_tables {{
"""


def runs(wanted):
    """Maximal runs [first, last] of code points for which wanted(code point) is true."""
    out = []
    first = None
    for cp in range(0x110001):
        inside = cp < 0x110000 and wanted(cp)
        if inside and first is None:
            first = cp
        if not inside and first is not None:
            out.append((first, cp - 1))
            first = None
    return out


def body(name, kind, rows):
    cells = ["{" + ", ".join(f"0x{v:X}" if v >= 0 else str(v) for v in row) + "}," for row in rows]
    lines, line = [], "   "
    for cell in cells:
        if len(line) + 1 + len(cell) > 118:
            lines.append(line)
            line = "   "
        line += " " + cell
    lines.append(line)
    text = "\n".join(lines)
    return (f"\nconst {kind} {name}_rows[] = {{\n{text}\n}};\n"
            f"const std::span<const {kind}> {name}{{{name}_rows}};\n")


def write(stem, what, parts):
    text = HEADER.format(what=what, version=unicodedata.unidata_version)
    text += "".join(parts) + "\n}  // namespace takt::unicode_tables\n"
    (MODEL / f"unicode_{stem}_table.cpp").write_text(text)


def category_table():
    letters = runs(lambda cp: unicodedata.category(chr(cp))[0] == "L")
    numbers = runs(lambda cp: unicodedata.category(chr(cp))[0] == "N")
    write("category", "Letters (categories L*) and numbers (N*)",
          [body("letters", "Range", letters), body("numbers", "Range", numbers)])


def canonical_tables():
    rows = []
    for cp in ALL:
        text = unicodedata.decomposition(chr(cp))
        if text and not text.startswith("<"):
            parts = [int(part, 16) for part in text.split()]
            # A pair is a primary composite if NFC leaves the composed form alone.
            kept = unicodedata.normalize("NFC", chr(cp)) == chr(cp)
            rows.append((cp, parts[0], parts[1] if len(parts) > 1 else 0, 1 if kept else 0))
    half = [row for row in rows if row[0] < 0x2000], [row for row in rows if row[0] >= 0x2000]
    write("decomposition_low", "Canonical decompositions below U+2000", [body("decompositions_low", "Decomposition", half[0])])
    write("decomposition_high", "Canonical decompositions from U+2000", [body("decompositions_high", "Decomposition", half[1])])
    classes = []
    for cp in ALL:
        value = unicodedata.combining(chr(cp))
        if not value:
            continue
        if classes and classes[-1][1] == cp - 1 and classes[-1][2] == value:
            classes[-1][1] = cp
        else:
            classes.append([cp, cp, value])
    write("combining", "Canonical combining classes", [body("combining_classes", "CombiningRange", classes)])


def case_rows(mapping):
    """Runs {first, last, stride, delta} of single-character case mappings."""
    rows = []
    for cp in ALL:
        to = mapping(chr(cp))
        if len(to) != 1 or ord(to) == cp:
            continue
        delta = ord(to) - cp
        if rows and rows[-1][3] == delta and (cp - rows[-1][1] == rows[-1][2] or
                                              (rows[-1][0] == rows[-1][1] and cp - rows[-1][1] <= 2)):
            rows[-1][2] = cp - rows[-1][1]
            rows[-1][1] = cp
        else:
            rows.append([cp, cp, 1, delta])
    return rows


def case_tables():
    write("case", "Single-character upper and lower case mappings",
          [body("to_upper", "CaseRange", case_rows(str.upper)), body("to_lower", "CaseRange", case_rows(str.lower))])


if __name__ == "__main__":
    category_table()
    canonical_tables()
    case_tables()
