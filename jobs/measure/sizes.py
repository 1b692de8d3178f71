"""Parse and format sizes in bytes as options take them: "32M"."""

from __future__ import annotations

import math
import re

from meshrun.runner.errors import UserError

MIB = 1 << 20
UNITS = {"": 1, "k": 1 << 10, "m": MIB, "g": 1 << 30}


def parse_nccl_tests_size(text: str) -> int:
    """Parse "8", "32M", "1.5g" or "1e6" as nccl-tests; K, M, G: powers of 1024. Raises UserError."""
    number = (
        r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"  # one way to read each text, or a long one takes minutes
    )
    match = re.fullmatch(rf"({number})\s*([kmgKMG]?)", text.strip())
    size = float(match[1]) * UNITS[match[2].lower()] if match else math.inf
    if math.isinf(size):
        raise UserError(
            "a size does not parse",
            got=repr(text),
            expected="a number, or one with K, M or G (powers of 1024)",
        )
    return int(size)


def size_text(size: int) -> str:
    """Format a size exactly, as options take it: "32M"."""
    unit = next((unit for unit in reversed(UNITS) if size % UNITS[unit] == 0 and size), "")
    return f"{size // UNITS[unit]}{unit.upper()}"
