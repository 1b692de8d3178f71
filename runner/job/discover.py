"""Discover jobs: by the name of an entry point, or in a user's file by path."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
import types
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import ClassVar

from runner.errors import Importing, UserError
from runner.job.declaration import Job

ENTRY_POINTS = "meshrun.jobs"


def find(name: str) -> Job:
    """Return the job `name`: an entry point (built-in jobs too) or `file.py:name`.

    `file.py` alone is enough if it declares exactly one job.
    """
    path, colon, attribute = name.rpartition(":")
    if not colon:
        path, attribute = name, ""
    if path.endswith(".py"):
        return _find_in_file(Path(path), attribute)
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        if entry.name == name:
            with Importing(f"job {name} ({entry.value})"):
                try:
                    found = entry.load()
                except (ImportError, AttributeError):
                    _refuse_shadow(entry.module.partition(".")[0])
                    raise
            if not isinstance(found, Job):
                raise UserError(f"job {name} ({entry.value}) is not a job", got=type(found).__name__)
            return found
    raise UserError(
        "unknown job", got=name, expected=f"{', '.join(names())}, or file.py:name", hint="meshrun jobs"
    )


def _refuse_shadow(room: str) -> None:
    """Raise UserError if a user's folder was imported in place of our package `room`."""
    places = getattr(sys.modules.get(room), "__path__", ())
    ours = Path(__file__).resolve().parents[2] / room
    for found in places:
        if ours.is_dir() and Path(found).resolve() != ours:
            raise UserError(
                f"{found} hides meshrun's own package {room}",
                expected=ours,
                hint="another name for that folder, or start Python elsewhere",
            )


def names() -> list[str]:
    """Return the names of all installed jobs."""
    return sorted({entry.name for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)})


def _find_in_file(path: Path, attribute: str) -> Job:
    module = load_file(path)
    jobs = {key: value for key, value in vars(module).items() if isinstance(value, Job)}
    if not attribute and len(jobs) == 1:
        return next(iter(jobs.values()))
    if attribute not in jobs:
        what = f"{path} declares no job {attribute!r}" if attribute else f"{path}: name one of its jobs"
        raise UserError(
            what,
            got=f"jobs: {', '.join(jobs) or 'none'}",
            expected=f"{path}:NAME, a function under @meshrun.map_blocks, reduce_blocks or job",
        )
    return jobs[attribute]


def load_file(path: Path) -> types.ModuleType:
    """Run a user's Python file as a module of its own, by path.

    Its folder goes to the end of the import path, so that it may import its neighbours and a
    neighbour called `jobs`, `runner` or as a module of the standard library takes nobody's place.
    """
    if not path.is_file():
        raise UserError(
            "the job's file does not exist", got=path, expected="FILE.py:NAME", hint="meshrun jobs"
        )
    _append_to_path(str(path.resolve().parent))
    module_name = "meshrun_user_" + re.sub(r"\W", "_", path.stem)
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    with Importing(str(path)):
        spec.loader.exec_module(module)
    return module


class _StandardNames:
    """Names of the standard library are not looked for in the folders of jobs.

    The end of the import path is not enough: the library asks for modules that other systems have
    (subprocess for msvcrt), which a neighbour of that name would then be.
    """

    folders: ClassVar[set[str]] = set()

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or name not in sys.stdlib_module_names:
            return None
        places = [place for place in sys.path if place not in cls.folders]
        spec = PathFinder.find_spec(name, places, target)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return spec


def _append_to_path(folder: str) -> None:
    if folder in sys.path:
        return
    sys.path.append(folder)
    _StandardNames.folders.add(folder)
    if _StandardNames not in sys.meta_path:
        sys.meta_path.insert(sys.meta_path.index(PathFinder), _StandardNames)
