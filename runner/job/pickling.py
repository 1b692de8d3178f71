"""Functions and jobs as bytes, for other processes.

A process can import what is in a module. It cannot import what a notebook or a program has defined, or a file
of jobs that was loaded by its path: of these, functions travel by value.
"""

from __future__ import annotations

import importlib
import io
import sys
import threading
from collections import ChainMap
from collections.abc import Callable
from contextlib import ExitStack
from types import CodeType, ModuleType
from typing import Any

import cloudpickle

from meshrun.runner.job.declaration import Job
from meshrun.runner.job.discover import USER_FILE

REGISTRY = threading.RLock()  # cloudpickle's list of modules is the program's


def dumps(value: Any, *modules: ModuleType) -> bytes:
    """Return a value, with the functions that it uses, as bytes for `cloudpickle.loads`.

    Jobs, and functions of `modules`, are sent by value, with the globals that they name as they are now.
    """
    with REGISTRY, ExitStack() as stack:
        loaded = [module for name, module in list(sys.modules.items()) if name.startswith(USER_FILE)]
        for module in {*modules, *loaded}:
            if module.__name__ not in cloudpickle.list_registry_pickle_by_value():
                cloudpickle.register_pickle_by_value(module)
                stack.callback(cloudpickle.unregister_pickle_by_value, module)
        with io.BytesIO() as file:
            _Pickler(file).dump(value)
            return file.getvalue()


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


def _reduced_code(code: CodeType) -> tuple[Any, ...]:
    """Reduce as cloudpickle does, but keep the file: errors name it, and version 3.1.3 leaves it out."""
    return _code_of_file, (code.co_filename, *cloudpickle.Pickler.dispatch_table[CodeType](code))


def _code_of_file(file: str, make: Callable[..., CodeType], arguments: tuple[Any, ...]) -> CodeType:
    return make(*arguments).replace(co_filename=file)


class _Table(ChainMap[type, Any]):
    """How to reduce objects, by type: a job of any class by value."""

    def __missing__(self, kind: type) -> Any:
        if issubclass(kind, Job):
            return _reduced_by_value
        raise KeyError(kind)


_TABLE = _Table({CodeType: _reduced_code}, cloudpickle.Pickler.dispatch_table)
_Pickler: Any = type("_Pickler", (cloudpickle.Pickler,), {"dispatch_table": _TABLE})
