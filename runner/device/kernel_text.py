"""Texts of CUDA kernels."""

from __future__ import annotations

import re
from pathlib import Path

from meshrun.runner.device.api import HEADERS

INCLUDE = re.compile(r'^#include "([^"]+)"\n', re.MULTILINE)


def with_headers(path: Path) -> str:
    """Return the text of a file of CUDA C++ with the headers that it includes in their places, each once."""
    seen = set[Path]()

    def text_of(file: Path) -> str:
        return INCLUDE.sub(included, file.read_text(encoding="utf-8").replace("#pragma once\n", ""))

    def included(line: re.Match[str]) -> str:
        files = [folder / line[1] for folder in (path.parent, HEADERS)]
        header = next((file for file in files if file.is_file()), None)
        if header is None:  # of CUDA's
            return line[0]
        if header in seen:
            return ""
        seen.add(header)
        return text_of(header)

    return text_of(path)
