"""Valid files and texts, damaged: bits flipped, cut short, spliced, with huge numbers in place of others."""

from __future__ import annotations

import re

from hypothesis import strategies as st

NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
NUMBERS = (
    b"0", b"-1", b"1e999", b"-1e-400", b"NaN", b"Infinity", b"1" * 5000, b"9223372036854775808",
    b"4294967296",
    b"99999999999999999999999",
    b"true", b"null", b"\xd9\xa3", b"\xc2\xb2", b"[" * 100_000, b'{"a":' * 20_000,
    b'"x"', b"[]", b"{}", b"1_000", b"0x10", b" ", b"",
)  # fmt: skip
WORDS = (
    b"\x00",
    b"\xff",
    b"\xff\xff\xff\xff",
    b"\xff" * 8,
    b"\x7f" * 8,
    b"\x00" * 8,
    b"\n",
    b"\r",
    b"\xf0\x9f",
    b"(",
    b":",
    b",",
)


@st.composite
def mutated(draw: st.DrawFn, valid: bytes, most: int = 4) -> bytes:
    """Draw `valid` with up to `most` changes."""
    content = valid
    for _ in range(draw(st.integers(0, most))):
        at = draw(st.integers(0, len(content)))
        change = draw(
            st.sampled_from(["flip", "byte", "cut", "drop", "splice", "insert", "number", "number"])
        )
        if change == "flip" and at < len(content):
            flipped = content[at] ^ (1 << draw(st.integers(0, 7)))
            content = content[:at] + bytes([flipped]) + content[at + 1 :]
        elif change == "byte":
            content = content[:at] + draw(st.binary(max_size=4)) + content[at + 1 :]
        elif change == "cut":
            content = content[:at]
        elif change == "drop":
            content = content[:at] + content[at + draw(st.integers(1, 64)) :]
        elif change == "splice":
            of = draw(st.integers(0, len(content)))
            content = content[:at] + content[of : of + draw(st.integers(1, 64))] + content[at:]
        elif change == "insert":
            content = content[:at] + draw(st.sampled_from(WORDS)) + content[at:]
        else:
            found = list(NUMBER.finditer(content[: 1 << 16]))
            if found:
                one = found[draw(st.integers(0, len(found) - 1))]
                content = content[: one.start()] + draw(st.sampled_from(NUMBERS)) + content[one.end() :]
    return content
