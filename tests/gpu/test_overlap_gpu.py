"""`meshrun bench overlap` on all GPUs of this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

cupy = pytest.importorskip("cupy", reason="needs CuPy")


@pytest.mark.parametrize(
    ("operation", "kernel", "communicators"),
    [
        ("all_reduce", "product", 2),
        ("all_reduce", "copy", 4),
        ("alltoall", "product", 3),
        ("broadcast", "copy", 1),
    ],
)
def test_all_at_once_with_the_right_data(
    tmp_path: Path, operation: str, kernel: str, communicators: int
) -> None:
    file = tmp_path / "overlap.json"
    words = ["bench", "overlap", operation, "-b", "64", "-e", "64M", "-f", "1024", "-d", "int32"]
    words += ["--communicators", str(communicators), "--kernel", kernel, "-J", str(file), "-T", "60"]
    gpus = str(cupy.cuda.runtime.getDeviceCount())
    subprocess.run([sys.executable, "-m", "meshrun", "-n", gpus, *words], check=True, timeout=120)
    record = json.loads(file.read_text())
    assert [row["size"] for row in record["rows"]] == [64, 64 << 10, 64 << 20]
    for row in record["rows"]:
        assert row["wrong"] == 0
        assert row["kernel"] > row["kernel_beside"] / 1.5 > 0
        assert row["beside"] > row["alone"] / 1.5
        assert row["hidden"] < 1.5
        if communicators > 1:  # not less than one of them alone takes
            assert row["together"] > row["alone"] / 1.5
    if kernel == "product" and cupy.cuda.runtime.getDeviceCount() > 1:
        # Long messages need few of the multiprocessors: some of their time is hidden.
        assert record["rows"][-1]["hidden"] > 0.2
