"""Discover jobs: by the name of an entry point, in a user's file by path, or in a module by name."""

from __future__ import annotations

import difflib
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import keyword
import os
import re
import sys
import types
from collections.abc import Collection, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import ClassVar

from meshrun.runner.errors import Importing, UserError
from meshrun.runner.job.declaration import Job

ENTRY_POINTS = "meshrun.jobs"
LISTED = 5  # functions of a file without a job
DECORATORS = "@meshrun.distribute, or @meshrun.map_blocks for blocks,"
USER_FILE = "meshrun_user_"  # begin of the name of a module that `load_file` has made: nothing can import it


def find(name: str) -> Job:
    """Return the job `name`: an entry point (built-in jobs too), `file.py:name` or `package.module:name`.

    `file.py` alone, or `package.module:`, is enough if it declares exactly one job.
    """
    path, colon, attribute = name.rpartition(":")
    if not colon:
        path, attribute = name, ""
    if path.endswith(".py"):
        return _find_in_file(Path(path), attribute)
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        if entry.name == name:
            with Importing(f"job {name} ({entry.value})"):
                found = entry.load()
            if not isinstance(found, Job):
                raise UserError(f"job {name} ({entry.value}) is not a job", got=type(found).__name__)
            return found
    if _is_module_name(path) and colon:
        return _find_in_module(path, attribute)
    hint = f"{path}:NAME" if _names_module(path) else _file_hint(path, attribute)
    close = next(iter(difflib.get_close_matches(name, names(), 1)), None)
    raise UserError(
        "unknown job",
        got=name,
        expected=f"{', '.join(names())}, FILE.py:NAME or MODULE:NAME",
        hint=hint or close or "meshrun jobs",
    )


def names() -> list[str]:
    """Return the names of all installed jobs."""
    return sorted({entry.name for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)})


def _find_in_file(path: Path, attribute: str) -> Job:
    return _job_of(load_file(path), attribute, str(path), str(path))


def _job_of(module: types.ModuleType, attribute: str, name: str, place: str, hint: str | None = None) -> Job:
    """Return a module's job; the only one if `attribute` is empty.

    name: the module as the user gave it. place: the module in error messages. hint: of the error for a
    missing job.
    """
    jobs = {key: value for key, value in vars(module).items() if isinstance(value, Job)}
    if not attribute and len(jobs) == 1:
        return next(iter(jobs.values()))
    if attribute in jobs:
        return jobs[attribute]
    if not attribute and jobs:
        listed = ", ".join(f"{name}:{key}" for key in jobs)
        raise UserError(f"{place} declares {len(jobs)} jobs", expected=f"one of {listed}", hint=hint)
    why, advice = _instead(module, attribute, jobs)
    close = difflib.get_close_matches(attribute, jobs, 1)
    raise UserError(
        f"{place} declares no job{f' {attribute!r}' if attribute else ''}",
        why=why,
        hint=f"{name}:{close[0]}" if close else hint or advice,
    )


def _instead(module: types.ModuleType, attribute: str, jobs: Collection[str]) -> tuple[str, str | None]:
    """Say what a module has in place of the job `attribute`, "" for any job, and what to do."""
    own = vars(module)
    if attribute in own and not isinstance(own[attribute], types.FunctionType):
        return f"`{attribute}` is an object of {type(own[attribute]).__name__}", None
    if jobs and attribute not in own:
        return f"its {'jobs are' if len(jobs) > 1 else 'job is'} {', '.join(jobs)}", None
    functions = [key for key, value in own.items() if isinstance(value, types.FunctionType)]
    plain = [attribute] if attribute in own else [
        key for key in functions if own[key].__module__ == module.__name__ and not key.startswith("_")
    ]  # fmt: skip
    if len(plain) == 1:
        return (
            f"function `{plain[0]}` has no decorator",
            f"put {DECORATORS} above it",
        )
    if not plain:
        return "it has no function", "a function under @meshrun.distribute, map_blocks, reduce_blocks or job"
    listed = ", ".join(f"`{key}`" for key in plain[:LISTED]) + (", ..." if len(plain) > LISTED else "")
    return (
        f"functions {listed} have no decorator",
        f"put {DECORATORS} above one of them",
    )


def _is_module_name(text: str) -> bool:
    return all(word.isidentifier() and not keyword.iskeyword(word) for word in text.split("."))


def _names_module(text: str) -> bool:
    """Whether `text` may be a module in a package that is installed or in the working directory."""
    if "." not in text or not _is_module_name(text) or Path(text).exists():
        return False
    places = [*sys.path, os.getcwd()]
    return importlib.machinery.PathFinder.find_spec(text.partition(".")[0], places) is not None


def _find_in_module(name: str, attribute: str) -> Job:
    """Return a job of a module that is installed or in the working directory.

    The working directory is appended to the import path: see `load_file`.
    """
    _append_to_path(os.getcwd())
    with Importing(f"module {name}"):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as reason:
            if reason.name is None or not f"{name}.".startswith(f"{reason.name}."):
                raise  # the module's own import
            raise UserError(
                f"module {name} does not exist",
                got=f"{name}:{attribute}",
                expected=f"a module that is installed or in {os.getcwd()}",
                hint=_file_hint(name, attribute) or "meshrun jobs",
            ) from reason
    file = getattr(module, "__file__", None)
    place = f"module {name} ({file})" if file else f"module {name}"
    hint = _file_hint(name, attribute)
    other = hint is not None and Path(hint.partition(":")[0]).resolve() != Path(file or "").resolve()
    return _job_of(module, attribute, name, place, hint if other else None)


def _file_hint(name: str, attribute: str) -> str | None:
    """Return FILE.py:NAME if the working directory has such a file; a module may not shadow it."""
    file = Path(f"{name if '/' in name else name.replace('.', '/')}.py")
    return f"{file}:{attribute or 'NAME'}" if file.is_file() else None


def load_file(path: Path) -> types.ModuleType:
    """Run a user's Python file as a module of its own, by path.

    Its folder is appended to the import path, so that the file can import its neighbours. At the end of the
    path, a neighbour called like a module of the standard library shadows nothing.
    """
    if not path.is_file():
        from meshrun.runner.files import check_exists, working_directory  # help needs none of it

        if not path.is_absolute():
            working_directory()  # raises UserError if it is gone with the file
        check_exists(path)
        raise UserError(f"{path} is no file", expected="FILE.py:NAME")
    _append_to_path(str(path.resolve().parent))
    module_name = USER_FILE + re.sub(r"\W", "_", path.stem)
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    with Importing(str(path)):
        spec.loader.exec_module(module)
    return module


class _StandardNames:
    """Import finder that does not look for modules of the standard library in the folders of jobs.

    Appending the folders is not enough: the library tries to import modules of other systems (subprocess
    imports msvcrt) and would find a neighbour of that name.
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
