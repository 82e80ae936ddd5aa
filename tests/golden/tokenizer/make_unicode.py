"""Asks the reference, the tokenizers package from PyPI, for the class of every Unicode code point.

    python3 -m venv /tmp/reference && /tmp/reference/bin/pip install tokenizers==0.23.3
    /tmp/reference/bin/python tests/golden/tokenizer/make_unicode.py

Run it from the repository's root, after a change of the pinned version. It writes

    runtime/data/tokenizer/text/unicode_ranges.cc   the table that the splitters use
    runtime/data/tokenizer/text/punctuation.cc      \\p{P} of the engine that runs the patterns
    tests/golden/tokenizer/unicode_classes.txt      the same classes, for the test that compares every code point
    tests/golden/tokenizer/nfc.txt                  for each 4,096 code points a digest of what NFC makes of them

Letters, numbers and whitespace are those of the engine that runs the patterns of pre-tokenizers. Word characters are
those of the engine that decides where an added token stands as a single word. Neither product nor tests need it.
"""

import hashlib
import json
import pathlib

import tokenizers
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

VERSION = "0.23.3"
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
BLOCK = 4096
LETTER, NUMBER, SPACE, WORD, UPPER, LOWER, MARK, OTHER_DIGIT = 1, 2, 4, 8, 16, 32, 64, 128

SOURCE = """#include "runtime/data/tokenizer/text/unicode_ranges.h"

namespace megascale::tokenizer {{

// Made by tests/golden/tokenizer/make_unicode.py from the PyPI package tokenizers {version}.
// clang-format off
const UnicodeRange kUnicodeRanges[] = {{
{rows}
}};
// clang-format on
const int kNumUnicodeRanges = sizeof(kUnicodeRanges) / sizeof(kUnicodeRanges[0]);

}}  // namespace megascale::tokenizer
"""


PUNCTUATION = """#include "runtime/data/tokenizer/text/unicode_ranges.h"

namespace megascale::tokenizer {{

// Made by tests/golden/tokenizer/make_unicode.py from the PyPI package tokenizers {version}.
// clang-format off
const CodePoints kPunctuation[] = {{
{rows}
}};
// clang-format on
const int kNumPunctuation = sizeof(kPunctuation) / sizeof(kPunctuation[0]);

}}  // namespace megascale::tokenizer
"""


def blocks():
    for first in range(0, 0x110000, BLOCK):
        yield first, [c for c in range(first, first + BLOCK) if not 0xD800 <= c < 0xE000]


def members(pattern):
    """The code points that match a pattern of one character."""
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    found = set(CODE_POINTS)
    for _, block in blocks():
        for piece, _ in split.pre_tokenize_str("".join(map(chr, block))):
            found -= set(map(ord, piece))
    return found


def word_characters():
    """The code points beside which an added token is no single word."""
    tokenizer = Tokenizer.from_str(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": None,
        "post_processor": None, "decoder": None,
        "added_tokens": [{"id": 1, "content": "@", "single_word": True, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": False}],
        "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}))
    found = set()
    for _, block in blocks():
        block = [c for c in block if c not in (ord("@"), ord("a"))]
        text = "".join(" @" + chr(c) for c in block)
        offsets = {begin for begin, _ in tokenizer.encode(text).offsets}
        found |= {c for i, c in enumerate(block) if 3 * i + 1 not in offsets}
    return found | {ord("a")}


def digits_of(block):
    """Whether the pre-tokenizer Digits cuts at a code point."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    for c in block:
        yield c, len(digits.pre_tokenize_str("a" + chr(c))) > 1


def classes():
    letters, numbers, spaces = members(r"\p{L}"), members(r"\p{N}"), members(r"\s")
    assert not (letters & numbers or letters & spaces or numbers & spaces)
    assert members(r"[^\s\p{L}\p{N}]") == set(CODE_POINTS) - letters - numbers - spaces
    assert members(r"[^\r\n\p{L}\p{N}]") == set(CODE_POINTS) - letters - numbers - {10, 13}
    words = word_characters()
    upper, lower, marks = members(r"[\p{Lu}\p{Lt}]"), members(r"\p{Ll}"), members(r"\p{M}")
    assert upper <= letters and lower <= letters and not (upper & lower or marks & (letters | numbers | spaces))
    assert members(r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]") == (letters - lower) | marks
    assert members(r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]") == (letters - upper) | marks
    digits = {c for _, block in blocks() for c, found in digits_of(block) if found}
    result = [0] * 0x110000
    for bit, found in ((LETTER, letters), (NUMBER, numbers), (SPACE, spaces), (WORD, words), (UPPER, upper),
                       (LOWER, lower), (MARK, marks), (OTHER_DIGIT, digits ^ numbers)):
        for c in found:
            result[c] |= bit
    return result


def write_table(name, template, items):
    """Writes a source of the product: the items, as many in a line as fit."""
    rows, row = [], "   "
    for item in items:
        if len(row) + len(item) + 2 > 100:
            rows.append(row)
            row = "   "
        row += f" {item},"
    rows.append(row)
    pathlib.Path("runtime/data/tokenizer/text", name).write_text(
        template.format(version=VERSION, rows="\n".join(rows)))


def write_classes():
    by_code_point = classes()
    ranges = [(c, by_code_point[c]) for c in range(0x110000) if c == 0 or by_code_point[c] != by_code_point[c - 1]]
    write_table("unicode_ranges.cc", SOURCE, [f"{{0x{first:X}, {bits}}}" for first, bits in ranges])
    letters = {0: "-", LETTER: "L", NUMBER: "N", SPACE: "S"}
    pathlib.Path("tests/golden/tokenizer/unicode_classes.txt").write_text(
        "".join(f"{first:X} {letters[bits & 7]}{'w' if bits & WORD else '-'}"
                f"{'u' if bits & UPPER else 'l' if bits & LOWER else 'm' if bits & MARK else '-'}"
                f"{'d' if bits & OTHER_DIGIT else '-'}\n" for first, bits in ranges))


def write_punctuation():
    ranges = []
    for c in sorted(members(r"\p{P}")):
        if ranges and ranges[-1][1] == c - 1:
            ranges[-1][1] = c
        else:
            ranges.append([c, c])
    write_table("punctuation.cc", PUNCTUATION, [f"{{0x{first:X}, 0x{last:X}}}" for first, last in ranges])


def write_nfc():
    """Alone, after a letter, and between marks, so that composition and the order of marks both show."""
    nfc = normalizers.NFC()
    lines = []
    for first, block in blocks():
        digest = hashlib.sha256()
        for c in block:
            for text in (chr(c), "A" + chr(c), "A\u0345" + chr(c), chr(c) + "\u0334", chr(c) + "\u0301"):
                digest.update(nfc.normalize_str(text).encode() + b"\n")
        lines.append(f"{first:X} {digest.hexdigest()[:16]}\n")
    pathlib.Path("tests/golden/tokenizer/nfc.txt").write_text("".join(lines))


assert tokenizers.__version__ == VERSION, f"needs tokenizers {VERSION}, found {tokenizers.__version__}"
write_classes()
write_punctuation()
write_nfc()
