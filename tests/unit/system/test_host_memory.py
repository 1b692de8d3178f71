"""What of the host's memory is free, and what control groups leave of it, of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.device.cpu import CpuBackend
from runner.system.host_memory import free_host_memory, host_memory

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


def test_what_files_may_give_up_is_no_part_of_the_whole(tmp_path: Path) -> None:
    files = {"memory.max": "700", "memory.current": "600", "memory.stat": "inactive_file 250"}
    assert host_memory(*host(tmp_path, "0::/\n", files)) == 700


def test_this_machine_has_some() -> None:
    assert 1 << 20 < free_host_memory() <= host_memory()
    assert 1 << 20 < CpuBackend().free_memory() <= host_memory()
