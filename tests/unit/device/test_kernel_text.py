"""Texts of kernels with the headers that they include."""

from __future__ import annotations

from pathlib import Path

from meshrun.runner.device.api import HEADERS
from meshrun.runner.device.kernel_text import with_headers


def test_headers_stand_in_their_places_once(tmp_path: Path) -> None:
    flags = HEADERS / "flags.cuh"
    (tmp_path / "inner.cuh").write_text('#pragma once\n#include "flags.cuh"\nint inner;\n')
    (tmp_path / "outer.cuh").write_text('#pragma once\n#include "inner.cuh"\nint outer;\n')
    (tmp_path / "kernel.cu").write_text(
        '// First\n#include "inner.cuh"\n#include "outer.cuh"\n#include "cuda_fp16.h"\nint last;\n'
    )
    expected = "// First\n" + flags.read_text().replace("#pragma once\n", "")
    expected += 'int inner;\nint outer;\n#include "cuda_fp16.h"\nint last;\n'
    assert with_headers(tmp_path / "kernel.cu") == expected


def test_the_text_of_a_file_changes_with_its_headers(tmp_path: Path) -> None:
    (tmp_path / "kernel.cu").write_text('#include "header.cuh"\n')
    texts = set[str]()
    for number in (1, 2):
        (tmp_path / "header.cuh").write_text(f"int n = {number};\n")
        texts.add(with_headers(tmp_path / "kernel.cu"))
    assert len(texts) == 2
