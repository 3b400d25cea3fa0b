#!/usr/bin/env python3
"""Writes capstan/data/unicode_table.cpp: the letters and numbers of Unicode as ranges of code points.

    pip install unicodedata2==16.0.0 && tools/make_unicode_table.py > capstan/data/unicode_table.cpp

Version 16 is what Hugging Face's tokenizers split by; another version would cut some rare scripts differently.
"""

import sys

import unicodedata2

PER_LINE = 5


def ranges(kind):
    found = []
    for code in range(sys.maxunicode + 1):
        if unicodedata2.category(chr(code))[0] != kind:
            continue
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return found


def array(name, kind):
    entries = [f"{{0x{first:x}, 0x{last:x}}}" for first, last in ranges(kind)]
    lines = [", ".join(entries[i:i + PER_LINE]) for i in range(0, len(entries), PER_LINE)]
    body = ",\n    ".join(lines)
    return f"constexpr std::array<CodeRange, {len(entries)}> {name} = {{{{\n    {body}}}}};\n"


def main():
    print(f"""// Made by tools/make_unicode_table.py from Unicode {unicodedata2.unidata_version}.
#include "capstan/data/unicode_table.h"

#include <array>

namespace capstan::data {{
namespace {{

// clang-format off
{array("kLetterRanges", "L")}
{array("kNumberRanges", "N")}// clang-format on

}}  // namespace

std::span<const CodeRange> letter_ranges() {{ return kLetterRanges; }}
std::span<const CodeRange> number_ranges() {{ return kNumberRanges; }}

}}  // namespace capstan::data""")


if __name__ == "__main__":
    main()
