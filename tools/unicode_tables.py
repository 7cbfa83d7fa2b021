#!/usr/bin/env python3
"""Writes src/text/unicode_tables.cpp: general categories, white space, and the data of normalisation form C.

usage: pip install unicodedata2==16.0.0 && tools/unicode_tables.py > src/text/unicode_tables.cpp   (needs perl)

Two versions of Unicode are in play, because ids have to equal those of Hugging Face's tokenizers: their regular
expressions know the categories of Unicode 16.0, their NFC the marks and compositions of Unicode 9.0. A character's
decomposition and combining class never change once it is assigned, so "NFC of 9.0" is the data of 16.0 restricted to
the characters that 9.0 had; Perl knows which those are.
"""
import subprocess
import sys

import unicodedata2 as unicode

CLASSES = "16.0.0"
NFC = "9.0"
CATEGORIES = ("Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co").split()
WHITE_SPACE = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F}
WHITE_SPACE.add(0x3000)
HANGUL_SYLLABLES = range(0xAC00, 0xD7A4)
HANGUL_VOWELS_AND_TRAILERS = {*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)}
PAGE = 256  # code points per entry of the page index
LIMIT = 0x110000


def assigned_in(version):
    """Code points that a version of Unicode has."""
    program = "for (0..0xD7FF, 0xE000..0x10FFFF) { print qq($_\\n) if chr($_) =~ /\\p{Present_In=%s}/ }"
    out = subprocess.run(["perl", "-e", program % version], check=True, capture_output=True, text=True).stdout
    return {int(line) for line in out.split()}


def decomposition(cp):
    """Canonical decomposition of one step, as a list of one or two code points."""
    text = unicode.decomposition(chr(cp))
    return [] if not text or text.startswith("<") else [int(x, 16) for x in text.split()]


def rows(values, width, per_line):
    text = [f"{v:#0{width}x}" for v in values]
    return "\n".join("    " + ", ".join(text[i : i + per_line]) + "," for i in range(0, len(text), per_line))


def array(name, kind, values, width, per_line):
    return f"const std::array<{kind}, {name}Size> {name} = {{\n{rows(values, width, per_line)}\n}};\n"


def main():
    if unicode.unidata_version != CLASSES:
        sys.exit(f"unicodedata2 has Unicode {unicode.unidata_version}: pip install unicodedata2=={CLASSES}")
    known = assigned_in(NFC)
    parts = {cp: decomposition(cp) for cp in sorted(known) if cp not in HANGUL_SYLLABLES and decomposition(cp)}
    # A pair composes when NFC keeps the composed character (it is not excluded from composition).
    composed = {cp: p for cp, p in parts.items() if len(p) == 2 and unicode.normalize("NFC", chr(cp)) == chr(cp)}
    combining = {cp: unicode.combining(chr(cp)) for cp in sorted(known) if unicode.combining(chr(cp))}
    changes = {p[1] for p in composed.values()} | (parts.keys() - composed.keys()) | HANGUL_VOWELS_AND_TRAILERS

    runs, last = [], None
    for cp in range(LIMIT):
        value = CATEGORIES.index(unicode.category(chr(cp)))
        value |= (cp in WHITE_SPACE) << 5 | (cp in changes) << 6 | (cp in combining) << 7
        if value != last:
            runs.append(cp << 8 | value)
        last = value
    starts = [r >> 8 for r in runs]
    pages, run = [], 0
    for page in range(0, LIMIT, PAGE):  # the run that holds each page's first code point
        while run + 1 < len(starts) and starts[run + 1] <= page:
            run += 1
        pages.append(run)

    classes = [cp << 8 | c for cp, c in combining.items()]
    decompose = [cp << 42 | p[0] << 21 | (p[1] if len(p) == 2 else 0) for cp, p in parts.items()]
    order = {cp: i for i, cp in enumerate(parts)}
    compose = [order[cp] for cp in sorted(composed, key=lambda cp: composed[cp])]
    print(f"""// Unicode data: categories of version {CLASSES}, normalisation of version {NFC}. Written by
// tools/unicode_tables.py; what the bits mean is said in unicode_tables.h.
// clang-format off
#include "text/unicode_tables.h"

namespace onebit::unicode_tables {{

{array("kRuns", "uint32_t", runs, 8, 24)}
{array("kPages", "uint16_t", pages, 0, 40)}
{array("kCombining", "uint32_t", classes, 8, 24)}
{array("kDecompositions", "uint64_t", decompose, 18, 12)}
{array("kCompositions", "uint16_t", compose, 0, 40)}
}}  // namespace onebit::unicode_tables""")


if __name__ == "__main__":
    main()
