"""Maps the folders of the sources to packages, compiles the modules in C, and adds the pages of docs/.

`runner/`, `jobs/` and `launch/` are installed as `meshrun.runner`, `meshrun.jobs` and `meshrun.launch`. In a
checkout, links in meshrun/ lead to them, so that an editable installation and tools that read sources find
the same names.

Without a C compiler, or with MESHRUN_PURE_WHEEL set, the wheel is pure Python.

Only times depend on the modules in C: between two measured calls (`_batch`; `meshrun bench` says which it
uses), and of an entry in the flight recorder (`_record`).
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

FOLDERS = ("runner", "jobs", "launch")
SOURCES = (Path("runner", "comm", "collectives", "_batch.c"), Path("runner", "recorder", "_record.c"))
MADE = (".pyc", ".so")  # endings of what is made from the sources
FLAGS = ("-shared", "-fPIC", "-O2")


class CustomBuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        # An editable installation imports from the tree, and reads docs/ itself.
        if version != "editable":
            included = build_data["force_include"]
            sources = (path for folder in FOLDERS for path in sorted(Path(self.root, folder).rglob("*")))
            for path in sources:
                if path.is_file() and path.suffix not in MADE:
                    included[str(path)] = f"meshrun/{path.relative_to(self.root).as_posix()}"
            docs = Path(self.root, "docs")
            for page in sorted(docs.rglob("*.md")):
                included[str(page)] = f"meshrun/launch/pages/{page.relative_to(docs).as_posix()}"
        if os.environ.get("MESHRUN_PURE_WHEEL"):
            return
        self._folder = None if version == "editable" else tempfile.mkdtemp()
        for path in SOURCES:
            source = Path(self.root, path)
            name = f"{source.stem}.abi3.so"
            made = Path(self._folder or source.parent, name)
            if not compiled(source, made):
                self.app.display_warning(f"{path} was not compiled: Python does the same, but slower")
                return
            if self._folder:
                build_data["force_include"][str(made)] = f"meshrun/{path.with_name(name).as_posix()}"
        build_data["pure_python"] = False
        # The limited API of Python 3.10, as the sources say.
        build_data["tag"] = f"cp310-abi3-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

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
