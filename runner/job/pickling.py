"""Functions and jobs as bytes, for other processes.

A process can import what is in a module. It cannot import what a notebook or a program has defined, or a file
of jobs that was loaded by its path: of these, functions travel by value.
"""

from __future__ import annotations

import importlib
import io
import sys
import sysconfig
import threading
from collections import ChainMap
from collections.abc import Callable
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import cloudpickle

from meshrun.runner.job.declaration import Job
from meshrun.runner.job.discover import USER_FILE

LIBRARIES = tuple(sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib", "purelib", "platlib"))
# Ways to name a global or an attribute that the code does not show.
NAMING = frozenset(
    (
        "getattr",
        "setattr",
        "hasattr",
        "vars",
        "globals",
        "eval",
        "exec",
        "attrgetter",
        "methodcaller",
        "__dict__",
    )
)
REGISTRY = threading.RLock()  # cloudpickle's list of modules is the program's


def dumps(value: Any, *modules: ModuleType) -> bytes:
    """Return a value, with the functions that it uses, as bytes for `cloudpickle.loads`.

    Jobs, and functions of `modules`, are sent by value, with the globals that they name as they are now. Of
    these modules themselves, only what the functions name is sent.
    """
    with REGISTRY, ExitStack() as stack:
        loaded = [module for name, module in list(sys.modules.items()) if name.startswith(USER_FILE)]
        for module in {*modules, *loaded}:
            if module.__name__ not in cloudpickle.list_registry_pickle_by_value():
                cloudpickle.register_pickle_by_value(module)
                stack.callback(cloudpickle.unregister_pickle_by_value, module)
        with io.BytesIO() as file:
            _dump(value, file)
            return file.getvalue()


def user_modules() -> list[ModuleType]:
    """Return the modules that the program has imported from the user's own files: not installed packages."""
    return [module for name, module in list(sys.modules.items()) if _is_own(name, module)]


def _is_own(name: str, module: Any) -> bool:
    """Return whether a module, of a name in `sys.modules`, is a file of the user. The program itself is not
    one: it is always sent by value."""
    file = getattr(module, "__file__", None)
    if not isinstance(module, ModuleType) or not isinstance(file, str) or module.__name__ != name:
        return False
    if name == "__main__" or name.partition(".")[0] == "meshrun":
        return False
    return file.endswith(".py") and not _is_installed(file)


def _is_installed(file: str) -> bool:
    """Return whether a file is of the standard library or of an installed package, here or elsewhere on
    the import path."""
    folders = Path(file).parts
    if "site-packages" in folders or "dist-packages" in folders:
        return True
    return file.startswith(LIBRARIES)


def reduced_job(job: Job) -> tuple[Any, ...]:
    """Reduce a job for any pickler: by its name in its module if a process can import that, else by value."""
    module = getattr(job.function, "__module__", None) or ""
    by_value = {"__main__", *cloudpickle.list_registry_pickle_by_value()}
    if module in sys.modules and module not in by_value and not module.startswith(USER_FILE):
        for name, value in list(vars(sys.modules[module]).items()):
            if value is job:
                return _job_at, (module, name)
    return cloudpickle.loads, (dumps(job),)


def _job_at(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _reduced_by_value(job: Job) -> tuple[Any, ...]:
    return object.__new__, (type(job),), vars(job)


class _WithModules:
    """A value, and after it what its functions use of the modules that they name."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _UsedValues:
    """What the functions that were sent until now use of modules, and was not sent."""


class _Sent:
    """What one value's pickle has sent until now.

    names: those that the functions' code names: globals, attributes, and texts, for `getattr`. modules: those
    whose values are sent. values: sent ones, each by its module and name. all_names: a function is called
    whose code is not sent.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.modules: dict[str, ModuleType] = {}
        self.values: set[tuple[str, str]] = set()
        self.all_names = False

    def code(self, code: CodeType) -> tuple[Any, ...]:
        """Reduce as cloudpickle does, but keep the file: errors name it, and version 3.1.3 leaves it out."""
        self.names.update(code.co_names, (one for one in code.co_consts if isinstance(one, str)))
        return _code_of_file, (code.co_filename, *cloudpickle.Pickler.dispatch_table[CodeType](code))

    def with_cache(self, function: Any) -> Any:
        """Reduce a function of `functools.lru_cache`, which the other process imports."""
        self.all_names = True
        return function.__reduce__()

    def module(self, module: ModuleType) -> tuple[Any, ...]:
        """Reduce a module that is sent by value: it is imported, and at the end gets the values of now."""
        name = module.__name__
        if name not in cloudpickle.list_registry_pickle_by_value() or name.startswith(USER_FILE):
            reduced: tuple[Any, ...] = cloudpickle.Pickler.dispatch_table[ModuleType](module)
            return reduced
        self.modules[name] = module
        return _module_called, (name,)

    def with_modules(self, whole: _WithModules) -> tuple[Any, ...]:
        return _first, (whole.value, _UsedValues())

    def used_values(self, _: _UsedValues) -> tuple[Any, ...]:
        """Reduce what is used of modules, and after it what that uses."""
        every = self.all_names or not self.names.isdisjoint(NAMING)
        used = [
            (module, name, value)
            for module in self.modules.values()
            for name, value in list(vars(module).items())
            if (every or name in self.names) and not name.startswith("__")
            if (module.__name__, name) not in self.values
        ]
        if not used:
            return tuple, ()
        self.values.update((module.__name__, name) for module, name, _ in used)
        return _set_values, (used, _UsedValues())


def _first(value: Any, _: Any) -> Any:
    return value


def _module_called(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError:  # made by the program
        return sys.modules.setdefault(name, ModuleType(name))


def _set_values(values: list[tuple[ModuleType, str, Any]], _: Any) -> None:
    for module, name, value in values:
        vars(module)[name] = value


def _code_of_file(file: str, make: Callable[..., CodeType], arguments: tuple[Any, ...]) -> CodeType:
    return make(*arguments).replace(co_filename=file)


class _Table(ChainMap[type, Any]):
    """How to reduce objects, by type: a job of any class by value."""

    def __missing__(self, kind: type) -> Any:
        if issubclass(kind, Job):
            return _reduced_by_value
        raise KeyError(kind)


def _dump(value: Any, file: io.BytesIO) -> None:
    sent = _Sent()
    own: dict[type, Any] = {
        CodeType: sent.code,
        ModuleType: sent.module,
        type(lru_cache(int)): sent.with_cache,
        _WithModules: sent.with_modules,
        _UsedValues: sent.used_values,
    }
    table = _Table(own, cloudpickle.Pickler.dispatch_table)
    pickler: Any = type("_Pickler", (cloudpickle.Pickler,), {"dispatch_table": table})
    pickler(file).dump(_WithModules(value))
