"""Find the host's C++ compiler."""

from __future__ import annotations

import functools
import hashlib
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from meshrun.runner.errors import RunError
from meshrun.runner.spelling import option
from meshrun.runner.system.launcher import environment
from meshrun.runner.system.sysfs import text

NAMES = ("c++", "g++", "clang++")
SECONDS = 60  # for one run of the compiler


class NotCompiled(RunError):
    """A compiler failed on a kernel that meshrun made of a function.

    reason: the compiler, and its first error. at: the line of the kernel's text that it names; 0 if none.
    line: of the user's file; 0 if unknown.
    """

    def __init__(self, reason: str, at: int = 0) -> None:
        super().__init__(reason, hint=f"{option('fuse', 'off')}, which calls the function as it is")
        self.reason, self.at, self.line = reason, at, 0


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler. path: of the program. version: its --version, and a hash of the kind of processor."""

    path: str
    version: str


def find_compiler(variables: Mapping[str, str] | None = None) -> Compiler | None:
    """Return the compiler that CXX names, or the first of NAMES on the PATH; None if --version fails."""
    given = (environment() if variables is None else variables).get("CXX")
    found = next(filter(None, map(shutil.which, [given] if given else NAMES)), None)
    return None if found is None else _ask(found)


@functools.cache
def _ask(path: str) -> Compiler | None:
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, timeout=SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return Compiler(path, answer.stdout.decode(errors="replace") + _processor())


def _processor(proc: Path = Path("/proc")) -> str:
    """Return a hash that differs between processors for which `-march=native` differs."""
    wanted = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU part")
    lines = text(proc / "cpuinfo").partition("\n\n")[0].splitlines()
    found = [line for line in lines if line.partition(":")[0].strip() in wanted]
    return hashlib.sha256("\n".join(found).encode()).hexdigest()
