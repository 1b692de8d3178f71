"""The decorator of functions of whole arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, overload

from meshrun.runner.run.declare import DeclaredJob, _declare, _fed_arrays, _output_names


@overload
def distribute(function: Callable[..., Any], /) -> DeclaredJob: ...
@overload
def distribute(
    *, outputs: int | Sequence[str] = 1, feeds: Sequence[str | None] | None = None, name: str | None = None
) -> Callable[[Callable[..., Any]], DeclaredJob]: ...
def distribute(
    function: Callable[..., Any] | None = None,
    *,
    outputs: int | Sequence[str] = 1,
    feeds: Sequence[str | None] | None = None,
    name: str | None = None,
) -> DeclaredJob | Callable[[Callable[..., Any]], DeclaredJob]:
    """Declare a function of whole arrays, which any number of ranks compute as NumPy does.

    The function means what it means when NumPy calls it with the whole arrays: it writes edges by index,
    shifts with `np.roll`, updates the interior through slices. On any number of ranks, CPU or GPU, the bits
    are those that NumPy computes with the whole arrays. What cannot be computed so is refused, with its line.

    Parameters ---------- outputs: names of the results, or their number. A function that returns nothing
    returns its changed inputs. feeds: of each result, the input that it becomes in the next step, or None.
    Default: the input of its name,
        else the input at its place.
    name: of the job. Default: the function's.

    Raises
    ------
    UserError: for a function that could not be called like this.

    Examples
    --------
    >>> @distribute
    ... def cool(u, *, rate: float = 0.1):
    ...     u[1:-1] += rate * (u[2:] - 2 * u[1:-1] + u[:-2])
    ...     u[0] = u[-1] = 0
    >>> cool.run("u.npy", "after.npy", steps=100, ranks=4)  # doctest: +SKIP
    """

    def declare(function: Callable[..., Any]) -> DeclaredJob:
        declared = _declare(function, "map", name)
        names = _output_names(declared.name, outputs)
        fed = feeds
        if fed is None and set(names) & set(declared.arrays):
            fed = [one if one in declared.arrays else None for one in names]
        return replace(declared, whole=True, output_names=names, feeds=_fed_arrays(declared, names, fed))

    return declare if function is None else declare(function)
