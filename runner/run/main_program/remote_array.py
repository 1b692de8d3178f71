"""A distributed array of a program whose ranks are other processes: what the program has of it.

Every operation is sent to the ranks, which have the cells. `ranks` is a `rank_processes.ProcessWorld`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from meshrun.runner.arrays.distributed_array import DistributedArray
from meshrun.runner.errors import UserError
from meshrun.runner.region import HostArray, Shape

# Attributes that are of one rank.
OF_A_RANK = ("local", "interior", "block", "region", "partition", "layout", "valid", "world", "exchange")


def of_one_rank(name: str, hint: str) -> UserError:
    """Return the error of a program that asks for what only a rank has."""
    what = f"{name} is of one rank, and this program is none: its ranks are other processes"
    return UserError(what, hint=hint)


class RemoteIterator:
    """What yields the results of `job.iterate(..., every=N)`."""

    number: int

    def __init__(self, ranks: Any) -> None:
        self.ranks = ranks

    def __iter__(self) -> RemoteIterator:
        return self

    def __next__(self) -> Any:
        return self.ranks.call("next", self)


class RemoteArray(np.lib.mixins.NDArrayOperatorsMixin):
    """A distributed array on ranks that are other processes. It is used as one of a rank's own program is.

    Attributes
    ----------
    shape : tuple of int
        Of the whole array.
    dtype : numpy.dtype
        Of its cells.
    """

    number: int
    __hash__ = object.__hash__

    def __init__(self, ranks: Any, shape: Shape, dtype: np.dtype[Any]) -> None:
        self.ranks, self.shape, self.dtype = ranks, shape, dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Cells of the whole array."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return self.size * self.dtype.itemsize

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        return self.ranks.call(getattr(ufunc, method), *inputs, **options)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return self.ranks.call(function, *args, **kwargs)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> HostArray:
        found: HostArray = self.ranks.call("method __array__", self, dtype, copy)
        return found

    def __getattr__(self, name: str) -> Any:
        if name in OF_A_RANK:
            hint = "u.gather() for all cells, or mpirun -n N python3 FILE.py for a program that uses it"
            raise of_one_rank(f"u.{name}", hint)
        known = None if name.startswith("_") else getattr(DistributedArray, name, None)
        if known is None:
            raise AttributeError(f"a distributed array has no attribute {name!r}", name=name)
        if isinstance(known, property):
            return self.ranks.call(f"get {name}", self)
        return partial(self.ranks.call, f"method {name}", self)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<distributed array of {self.dtype}, shape {self.shape}, on {self.ranks.size} ranks>"

    def __str__(self) -> str:
        return repr(self) if self.shape else str(self.item())

    def __format__(self, form: str) -> str:
        return str(self) if self.shape and not form else format(self.item(), form)

    def __reduce__(self) -> Any:
        return np.asarray(self).__reduce__()


def _forwarded(name: str) -> Callable[..., Any]:
    """Return a method that Python looks up in the class, of all ranks."""

    def call(self: RemoteArray, *arguments: Any) -> Any:
        return self.ranks.call(f"method {name}", self, *arguments)

    return call


for _name in ("getitem", "setitem", "iter", "bool", "float", "int", "complex", "index"):
    setattr(RemoteArray, f"__{_name}__", _forwarded(f"__{_name}__"))


def ranks_of(values: Sequence[Any]) -> Any:
    """Return the ranks of the first array that is on other processes; None if there is none."""
    return next((one.ranks for one in values if isinstance(one, RemoteArray)), None)
