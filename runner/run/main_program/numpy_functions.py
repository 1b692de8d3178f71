"""NumPy's functions of distributed arrays that have no implementation of their own: traced, as in a function.

Those that functions of whole arrays may call, such as `np.gradient` and `np.pad`, are called with stand-ins
once, and computed as a job's function is. Others are refused as they are there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from meshrun.runner.arrays.operations.reductions import partitioned
from meshrun.runner.arrays.operations.split_array import SplitArray, begin
from meshrun.runner.arrays.operations.table import FUNCTIONS, OTHER, implements
from meshrun.runner.arrays.tools.table import NUMPY_FUNCTIONS
from meshrun.runner.errors import UserError
from meshrun.runner.job.declaration import Job
from meshrun.runner.run.main_program.prepared_function import call_plainly, prepare

GROUP = "meshrun.arrays"  # entry points: modules that enter functions in the table
# This package's own, which a checkout that is not installed has no entry points for.
OWN = ("meshrun.jobs.linalg.distributed", "meshrun.jobs.transforms.distributed")


def _of_tool(function: Any, tool: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of whole arrays, such as numpy.sort, for arrays and views. Collective."""

    def call(*args: Any, **options: Any) -> Any:
        world = next(one.world for one in (*args, *options.values()) if isinstance(one, SplitArray))
        begin(world, function.__name__, *args, *options.values())
        given = [partitioned(one) if isinstance(one, SplitArray) else one for one in args]
        return tool(*given, **options)

    return call


for of_numpy, whole_array_tool in NUMPY_FUNCTIONS.items():
    FUNCTIONS.setdefault(of_numpy, _of_tool(of_numpy, whole_array_tool))


@lru_cache(1)
def load_further_functions() -> None:
    """Import the modules that implement NumPy's functions, such as `np.matmul`: own, and installed ones."""
    for module in dict.fromkeys([*OWN, *(one.module for one in entry_points(group=GROUP))]):
        import_module(module)


@implements(OTHER)
def traced_function(function: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Return a function's result. args, options: its arguments, some of them distributed."""
    load_further_functions()
    if function in FUNCTIONS:
        return FUNCTIONS[function](*args, **options)
    arrays: list[SplitArray] = []
    filled = _with_places(list(args), arrays), _with_places(dict(options), arrays)
    out = options.get("out")
    if out is not None:
        raise UserError(f"numpy.{function.__name__} of distributed arrays takes no out=", everywhere=True)
    name = f"numpy.{function.__name__}"
    text = repr(filled)
    identity = None if "array(" in text else (function, text)
    counts: list[int] = []
    names = tuple(f"array{number}" for number in range(len(arrays)))
    job = Job(name, "map", _called(function, filled, counts), (), frozenset(), names, whole=True)
    try:
        prepared = prepare(job, arrays, {}, identity)
    except UserError as reason:
        if not counts or counts[-1] < 2:
            raise _for_call(name, reason) from reason
    else:
        return call_plainly(prepared, arrays, {}) if prepared.is_plain else prepared(arrays)[0]
    # It has several results.
    outputs = tuple(f"output{number}" for number in range(counts[-1]))
    of_several = None if identity is None else (*identity, len(outputs))
    prepared = prepare(replace(job, output_names=outputs), arrays, {}, of_several)
    return call_plainly(prepared, arrays, {}) if prepared.is_plain else tuple(prepared(arrays))


def _for_call(name: str, reason: UserError) -> UserError:
    """Return an error of tracing as one of this call."""
    why = str(reason.why or "").partition(" (/")[0].removeprefix("it ")
    if not why:
        return reason
    return UserError(f"{name} of distributed arrays {why}", hint=reason.hint, everywhere=True)


@dataclass(frozen=True)
class _Place:
    """Stands for a distributed array among a function's arguments. number: which one."""

    number: int


def _with_places(value: Any, arrays: list[SplitArray]) -> Any:
    """Return arguments with places in place of distributed arrays, which are added to `arrays`."""
    if isinstance(value, SplitArray):
        arrays.append(value)
        return _Place(len(arrays) - 1)
    if isinstance(value, (list, tuple)):
        return type(value)(_with_places(one, arrays) for one in value)
    if isinstance(value, dict):
        return {name: _with_places(one, arrays) for name, one in value.items()}
    return value


def _filled(value: Any, arrays: Sequence[Any]) -> Any:
    if isinstance(value, _Place):
        return arrays[value.number]
    if isinstance(value, (list, tuple)):
        return type(value)(_filled(one, arrays) for one in value)
    if isinstance(value, dict):
        return {name: _filled(one, arrays) for name, one in value.items()}
    return value


def _called(function: Any, filled: tuple[Any, Any], counts: list[int]) -> Callable[..., Any]:
    """Return the call of a function as a function of its arrays. counts: is given the number of results."""

    def call(*arrays: Any) -> Any:
        args, options = filled
        found = function(*_filled(args, arrays), **_filled(options, arrays))
        counts.append(len(found) if isinstance(found, (list, tuple)) else 1)
        return found

    return call
