"""Compiles `runner/comm/collectives/_batch.c` into the wheel.

Without a C compiler, or with MESHRUN_PURE_WHEEL set, the wheel is pure Python.

Only the time between two measured calls depends on it, and `meshrun bench` says which it uses.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("runner", "comm", "collectives", "_batch.c")
FLAGS = ("-shared", "-fPIC", "-O2")


class CustomBuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or os.environ.get("MESHRUN_PURE_WHEEL"):
            return
        source = Path(self.root, SOURCE)
        name = f"{source.stem}.abi3.so"
        # An editable installation imports from the tree.
        self._folder = None if version == "editable" else tempfile.mkdtemp()
        made = Path(self._folder or source.parent, name)
        if not compiled(source, made):
            self.app.display_warning(f"{SOURCE} was not compiled: measured calls are made from Python")
            return
        build_data["pure_python"] = False
        # The limited API of Python 3.10, as the source says.
        build_data["tag"] = f"cp310-abi3-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        if self._folder:
            build_data["force_include"][str(made)] = str(SOURCE.with_name(name))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if getattr(self, "_folder", None):
            shutil.rmtree(self._folder)


def compiled(source: Path, made: Path) -> bool:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux") or sys.maxsize < 1 << 32:
        return False
    include = sysconfig.get_path("include")
    words = [compiler, *FLAGS, f"-I{include}", str(source), "-o", str(made)]
    done = subprocess.run(words, capture_output=True, check=False)
    return done.returncode == 0
