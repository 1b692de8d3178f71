"""How a job is declared. Knows nothing of MPI or GPUs.

A job is a plain function over a plain array. The decorators attach what the runner must know to
cut the array and keep the function itself callable: `edges.function(block)` in a unit test,
`edges(array)` for the whole array, `edges.run("in.npy", "out.npy")` from a file to a file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, overload

from runner.declaration import Halo, Job, Trials
from runner.errors import UserError
from runner.halo import BOUNDARIES
from runner.signature import Kind, read_signature


class DeclaredJob(Job):
    """A job as the decorators make it: with the ways to run it."""

    def __call__(self, array: Any, /, **parameters: Any) -> Any:
        """Apply the job to a whole array on this process alone; returns the result."""
        from runner.apply import apply

        return apply(self, array, parameters)

    def run(self, input: Any, output: Any = None, **parameters: Any) -> Any:
        """Run on a file over every rank of this program; collective. Returns the run's record.

        `device`, `verify`, `grid`, `boundary`, ... are the command's options of those names.
        """
        from runner.execute import Options, run

        options = {
            name: parameters.pop(name) for name in list(parameters) if name in Options.__dataclass_fields__
        }
        return run(self, input, output, parameters, Options(**options))


@overload
def map_blocks(function: Callable[..., Any], /) -> DeclaredJob: ...
@overload
def map_blocks(
    *,
    halo: Halo = 0,
    boundary: str = "reflect",
    cval: float = 0.0,
    out: Callable[..., Any] | None = None,
    reference: Callable[..., Any] | None = None,
    ulps: float = 16.0,
    check: Callable[..., None] | None = None,
    trials: Trials = (),
    name: str | None = None,
) -> Callable[[Callable[..., Any]], DeclaredJob]: ...
def map_blocks(
    function: Callable[..., Any] | None = None,
    *,
    halo: Halo = 0,
    boundary: str = "reflect",
    cval: float = 0.0,
    out: Callable[..., Any] | None = None,
    reference: Callable[..., Any] | None = None,
    ulps: float = 16.0,
    check: Callable[..., None] | None = None,
    trials: Trials = (),
    name: str | None = None,
) -> DeclaredJob | Callable[[Callable[..., Any]], DeclaredJob]:
    """Declare a function from a block with its halo to that block's result.

    The function is given the block, a C-contiguous NumPy or CuPy array; it may name `out` (the
    result's array, to fill), `xp` (numpy or cupy) and `here` (where this block is); its other
    keyword parameters become options. It is called for any cut of the array, also several times
    a rank, so that each result cell may depend on no more than its neighbourhood.

    Parameters
    ----------
    halo: cells needed beyond the block: one number for every axis, or one number or (low, high)
        pair per leading axis, or a function of the job's parameters that returns either.
    boundary: what lies beyond the array: reflect, mirror, nearest, constant or wrap, as scipy.ndimage.
    cval: the constant of boundary="constant".
    out: (shape, dtype, **parameters) -> (shape, dtype) of the result for a block of that shape,
        without halo. Default: the same shape; the dtype that the function returns, or, when it
        names `out`, the input's.
    reference: (block, **parameters) -> expected result, all float64, by another way than the
        function's own; `--verify` compares with it. May return (expected, tolerance).
    ulps: tolerance of floating-point results where `reference` gives none, in units of the
        result dtype's epsilon times the largest magnitude in the block.
    check: (shape, dtype, **parameters) -> None; raises UserError for input that the job cannot take.
    trials: (shape, dtype, parameters) of arrays that `meshrun selftest` verifies the job on.
    """

    def declare(function: Callable[..., Any]) -> DeclaredJob:
        if boundary not in BOUNDARIES:
            raise UserError("unknown boundary", got=boundary, expected=", ".join(BOUNDARIES))
        declared = _declare(function, "map", name)
        return replace(
            declared,
            halo=halo,
            boundary=boundary,
            cval=cval,
            out=out,
            reference=reference,
            ulps=ulps,
            check=check,
            trials=trials,
        )

    return declare if function is None else declare(function)


@overload
def reduce_blocks(function: Callable[..., Any], /, *, combine: Callable[[Any, Any], Any]) -> DeclaredJob: ...
@overload
def reduce_blocks(
    *,
    combine: Callable[[Any, Any], Any],
    finish: Callable[..., Any] | None = None,
    check: Callable[..., None] | None = None,
    trials: Trials = (),
    name: str | None = None,
) -> Callable[[Callable[..., Any]], DeclaredJob]: ...
def reduce_blocks(
    function: Callable[..., Any] | None = None,
    *,
    combine: Callable[[Any, Any], Any],
    finish: Callable[..., Any] | None = None,
    check: Callable[..., None] | None = None,
    trials: Trials = (),
    name: str | None = None,
) -> DeclaredJob | Callable[[Callable[..., Any]], DeclaredJob]:
    """Declare a function from a block to a small partial result, combined over all blocks.

    The array is cut into tiles of a fixed number of elements, whatever the number of ranks, and
    the partial results are combined pairwise in an order that depends on the tiles alone: the
    same bits for any number of ranks.

    Parameters
    ----------
    combine: (partial, partial) -> partial, on the host; the earlier block's comes first.
    finish: (partial, **parameters) -> result, applied once at the end.
    check, trials: as in `map_blocks`.
    """

    def declare(function: Callable[..., Any]) -> DeclaredJob:
        return replace(
            _declare(function, "reduce", name), combine=combine, finish=finish, check=check, trials=trials
        )

    return declare if function is None else declare(function)


@overload
def job(function: Callable[..., Any], /) -> DeclaredJob: ...
@overload
def job(
    *, reference: Callable[..., Any] | None = None, trials: Trials = (), name: str | None = None
) -> Callable[[Callable[..., Any]], DeclaredJob]: ...
def job(
    function: Callable[..., Any] | None = None,
    *,
    reference: Callable[..., Any] | None = None,
    trials: Trials = (),
    name: str | None = None,
) -> DeclaredJob | Callable[[Callable[..., Any]], DeclaredJob]:
    """Declare a function that does anything, given the `world` (and `input`, `output` if it names them).

    It runs on every rank; what it returns on rank 0, a mapping of names to numbers, texts or
    lists, is the run's result. output: a path with OUTPUT's suffix, at which the job has to make a file
    or folder; that gets OUTPUT's name when every rank has returned. reference: (array, **parameters) -> the
    mapping to expect, or (mapping, {name: absolute tolerance}).
    trials: as in `map_blocks`.
    """

    def declare(function: Callable[..., Any]) -> DeclaredJob:
        return replace(_declare(function, "job", name), reference=reference, trials=trials)

    return declare if function is None else declare(function)


def _declare(function: Callable[..., Any], kind: Kind, name: str | None) -> DeclaredJob:
    parameters, services = read_signature(function, kind)
    return DeclaredJob(name or function.__name__, kind, function, parameters, services)
