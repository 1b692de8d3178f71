"""What is read from /proc: of this process, and of files like the kernel's."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshrun.runner.processes import ProcessStat, mapped_files, process_stat


def test_this_process() -> None:
    found = process_stat(os.getpid())
    assert found is not None
    assert (found.state, found.has_ended) == ("R", False)
    assert found.name == Path("/proc/self/comm").read_text().strip()
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - found.start / os.sysconf("SC_CLK_TCK")
    assert 0 <= age < 24 * 3600


def test_a_process_that_has_ended_and_one_that_there_is_not() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    found = process_stat(child.pid)
    assert found is not None
    assert (found.state, found.has_ended) == ("Z", True)
    child.wait()
    assert process_stat(child.pid) is None


@pytest.mark.parametrize("name", [b"python3", b"a ) T) (", b"\xff\xfe", b"two words"])
def test_a_name_may_contain_anything(tmp_path: Path, name: bytes) -> None:
    (tmp_path / "7").mkdir()
    numbers = " ".join(str(number) for number in range(4, 53))
    (tmp_path / "7" / "stat").write_bytes(b"7 (" + name + b") D " + numbers.encode())
    assert process_stat(7, tmp_path) == ProcessStat(name.decode(errors="replace"), "D", 22)


MAPS = """\
55d0c0000000-55d0c0001000 r--p 00000000 08:01 131 /usr/bin/python3.11
7f2b40000000-7f2b40021000 rw-p 00000000 00:00 0
7f2b54000000-7f2b54100000 r--p 00000000 08:01 262 /opt/my lib/libnccl.so.2.28.9
7f2b54100000-7f2b64100000 r-xp 00100000 08:01 262 /opt/my lib/libnccl.so.2.28.9
7f2b70000000-7f2b70001000 r--p 00000000 08:01 263 /a/libm.so.6 (deleted)
7f2b72000000-7f2b72001000 rw-p 00000000 00:00 0 [heap]
7ffd10000000-7ffd10021000 r--p 00000000 08:01 265 [stack]
"""


def test_mapped_files(tmp_path: Path) -> None:
    (tmp_path / "maps").write_text(MAPS)
    expected = ["/a/libm.so.6 (deleted)", "/opt/my lib/libnccl.so.2.28.9", "/usr/bin/python3.11"]
    assert mapped_files(tmp_path / "maps") == expected


def test_a_file_is_mapped_while_it_is(tmp_path: Path) -> None:
    path = tmp_path / "with a blank"
    path.write_bytes(b"content")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        assert str(path) in mapped_files()
    assert str(path) not in mapped_files()
