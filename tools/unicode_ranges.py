#!/usr/bin/env python3
"""Writes src/data/tokenizer/unicode_ranges.cpp: which characters are letters, numbers, space, part of a word, or may change under NFC.

Needs the PyPI package `unicodedata2` of the wanted Unicode version: 16.0.0, which the regular expressions of the PyPI package
`tokenizers` follow. Run from the repository root: python3 tools/unicode_ranges.py
"""
import unicodedata2 as ud

LETTER, NUMBER, SPACE, WORD, UNSETTLED = 1, 2, 4, 32, 64
# White_Space and the letters that are symbols (Other_Alphabetic outside of the marks): not in the package.
SPACES = {*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}
ROUND = {*range(0x24B6, 0x24EA), *range(0x1F130, 0x1F14A), *range(0x1F150, 0x1F16A), *range(0x1F170, 0x1F18A)}


def second_characters():
    """Characters that NFC joins to the one before: seconds of pairs that it composes, and the Hangul vowels and finals."""
    found = {*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)}
    for code in range(0x110000):
        parts = ud.decomposition(chr(code)).split()
        if len(parts) == 2 and parts[0][0] != "<" and ud.normalize("NFC", chr(code)) == chr(code):
            found.add(int(parts[1], 16))
    return found


def kinds(code, seconds):
    c = chr(code)
    category = ud.category(c)
    kind = 0
    if category[0] == "L":
        kind |= LETTER
    if category[0] == "N":
        kind |= NUMBER
    if code in SPACES:
        kind |= SPACE
    if category[0] in "LM" or category in ("Nd", "Nl", "Pc") or code in (0x200C, 0x200D) or code in ROUND:
        kind |= WORD
    if category != "Cs" and (ud.combining(c) or ud.normalize("NFC", c) != c or code in seconds):
        kind |= UNSETTLED
    return kind


def main():
    seconds = second_characters()
    ranges = []
    for code in range(0x80, 0x110000):
        kind = kinds(code, seconds)
        if ranges and ranges[-1][1] == code - 1 and ranges[-1][2] == kind:
            ranges[-1][1] = code
        elif kind:
            ranges.append([code, code, kind])
    lines, line = [], ""
    for first, last, kind in ranges:
        item = "{0x%x, 0x%x, %d}, " % (first, last, kind)
        if len(line) + len(item) > 136:
            lines.append(line.rstrip())
            line = ""
        line += item
    lines.append(line.rstrip())
    with open("src/data/tokenizer/unicode_ranges.cpp", "w") as out:
        out.write("// Made by tools/unicode_ranges.py from Unicode %s: change it there.\n" % ud.unidata_version)
        out.write('#include "data/tokenizer/unicode_ranges.h"\n\nnamespace cairn::data {\nnamespace {\n\n')
        out.write("// clang-format off\nconstexpr UnicodeRange kRanges[] = {\n")
        out.write("".join("    %s\n" % text for text in lines))
        out.write("};\n// clang-format on\n\n}  // namespace\n\n")
        out.write("std::span<const UnicodeRange> unicode_ranges() { return kRanges; }\n\n}  // namespace cairn::data\n")


main()
