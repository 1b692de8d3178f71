"""What of the host's memory is free, and what control groups leave of it, of both versions."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.system.host_memory import free_host_memory, host_memory, host_processors

FREE = 1000 << 10


def host(folder: Path, groups: str | None, files: dict[str, str]) -> tuple[Path, Path]:
    """A /proc with FREE available, and a tree of control groups. groups: the lines of this process."""
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/meminfo").write_text(
        "MemTotal: 4000 kB\nMemFree: 7 kB\nMemAvailable:    1000 kB\nMemAvailableTo: 1 kB\n"
    )
    if groups is not None:
        (folder / "proc/self/cgroup").write_text(groups)
    for path, text in files.items():
        (folder / "cgroup" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup" / path).write_text(f"{text}\n")
    return folder / "proc", folder / "cgroup"


@pytest.mark.parametrize(
    ("groups", "files", "free"),
    [
        (None, {}, FREE),
        ("0::/\n", {}, FREE),
        ("0::/\n", {"memory.max": "max", "memory.current": "600"}, FREE),
        ("0::/\n", {"memory.max": "700", "memory.current": "600"}, 100),
        ("0::/\n", {"memory.max": "500", "memory.current": "600"}, 0),
        ("0::/\n", {"memory.max": "500"}, 500),
        ("0::/\n", {"memory.max": "9000000", "memory.current": "600"}, FREE),
        (
            "0::/\n",
            {"memory.max": "700", "memory.current": "600", "memory.stat": "anon 1\ninactive_file 250\nx 3"},
            350,
        ),
        (
            "0::/job/step\n",
            {
                "job/step/memory.max": "700", "job/step/memory.current": "100",
                "job/memory.max": "900", "job/memory.current": "850", "other/memory.max": "1",
            },
            50,
        ),
        (
            "5:cpu,cpuacct:/job\n4:memory:/job\n0::/\n",
            {
                "memory/job/memory.limit_in_bytes": "700", "memory/job/memory.usage_in_bytes": "600",
                "memory/job/memory.stat": "inactive_file 1\ntotal_inactive_file 30",
                "memory/memory.limit_in_bytes": "9223372036854771712", "cpu/memory.max": "1",
            },
            130,
        ),
    ],
)  # fmt: skip
def test_free_memory_minds_control_groups(
    tmp_path: Path, groups: str | None, files: dict[str, str], free: int
) -> None:
    assert free_host_memory(*host(tmp_path, groups, files)) == free


@pytest.mark.parametrize(
    ("groups", "files", "share"),
    [
        (None, {}, None),
        ("0::/\n", {}, None),
        ("0::/\n", {"cpu.max": "max 100000"}, None),
        ("0::/\n", {"cpu.max": "no numbers"}, None),
        ("0::/\n", {"cpu.max": "300000 100000"}, 3),
        ("0::/\n", {"cpu.max": "50000 100000"}, 1),
        ("0::/job/step\n", {"job/step/cpu.max": "max 100000", "job/cpu.max": "250000 100000"}, 2),
        (
            "5:cpu,cpuacct:/job\n4:memory:/job\n0::/\n",
            {"cpu/job/cpu.cfs_quota_us": "400000", "cpu/job/cpu.cfs_period_us": "100000"},
            4,
        ),
        (
            "5:cpu,cpuacct:/\n0::/\n",
            {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000", "memory/cpu.max": "1 1"},
            None,
        ),
    ],
)
def test_processors_mind_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str | None, files: dict[str, str], share: Any
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert host_processors(*host(tmp_path, groups, files)) == (share or 8)


def test_what_files_may_give_up_is_no_part_of_the_whole(tmp_path: Path) -> None:
    files = {"memory.max": "700", "memory.current": "600", "memory.stat": "inactive_file 250"}
    assert host_memory(*host(tmp_path, "0::/\n", files)) == 700


def test_this_machine_has_some() -> None:
    assert 1 << 20 < free_host_memory() <= host_memory()
    assert 1 << 20 < CpuBackend().free_memory() <= host_memory()


KEPT = """
import os, sys
import numpy as np
from meshrun.runner.system.host_memory import keep_freed_memory

def faults():
    before = int(open("/proc/self/stat").read().rsplit(")", 1)[1].split()[7])
    for _ in range(20):
        array = np.ones(1 << 18)  # 2 MiB
        del array
    return int(open("/proc/self/stat").read().rsplit(")", 1)[1].split()[7]) - before

found = keep_freed_memory() if sys.argv[1] == "kept" else None
faults()
print(found, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_temporary_arrays_use_the_same_pages_again() -> None:
    def ran(how: str, **environment: str) -> list[str]:
        variables = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
        command = [sys.executable, "-c", KEPT, how]
        done = subprocess.run(
            command, env=variables | environment, capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    kept, faults = ran("kept")
    assert kept == "True"
    assert int(faults) < 512, "a fault for each page of the first array at the most"
    assert ran("kept", MALLOC_TRIM_THRESHOLD_="131072")[0] == "False", "a user has chosen"
