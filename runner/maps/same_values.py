"""Ranks compare what their functions compute: each process has variables and random numbers of its own.

`noise = np.random.rand(512)` outside of a function gives each rank other numbers. So do `hash("wave")`, the
order of a set of strings, the time and the rank's number. Each rank would compute its cells by another
function, and the result would depend on the number of ranks.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshrun.runner.compiler.function_key import value_texts
from meshrun.runner.compiler.result_type import hide_output
from meshrun.runner.compiler.samples import samples
from meshrun.runner.device.api import Backend
from meshrun.runner.errors import UserError
from meshrun.runner.job.declaration import Job
from meshrun.runner.maps.split_probe import SampleCalls
from meshrun.runner.plan.task import Task
from meshrun.runner.region import HostArray
from meshrun.runner.world.world import World

ROUNDING = 64  # times the epsilon of a result's dtype: how far the arithmetic of two hosts may differ
SHOWN = 3  # names of variables in a message


@dataclass(frozen=True)
class ResultSum:
    """A result for a small array in a few numbers.

    total: its cells, each with a weight of its own, added. size: the magnitudes added likewise. tolerance:
    largest difference of two totals, relative to the size, that rounding explains.
    """

    total: complex
    size: float
    tolerance: float

    def differs(self, other: ResultSum) -> bool:
        """Return whether another rank's result has other cells."""
        return abs(self.total - other.total) > self.tolerance * max(self.size, other.size)


@dataclass(frozen=True)
class ValueSummary:
    """What a rank's function computes, in a few numbers.

    digest: checksum of what a function of whole arrays computes; "" for a function of blocks. sums: of the
    results of a function of blocks; none if it raises on all small arrays.
    """

    digest: str = ""
    sums: tuple[ResultSum, ...] = ()

    def differs(self, other: ValueSummary) -> bool:
        """Return whether another rank's function is another one."""
        pairs = zip(self.sums, other.sums, strict=False)
        return self.digest != other.digest or any(mine.differs(its) for mine, its in pairs)


def summary_of(task: Task, backend: Backend) -> ValueSummary:
    """Return what the ranks compare of a task. A function of blocks is called on a small array."""
    job = task.job
    program = job.program or getattr(job.function, "whole", None)
    if program is not None:
        text = re.sub(r" at 0x[0-9a-f]+", "", "\n".join(program.fingerprint))  # addresses differ
        return ValueSummary(hashlib.sha256(text.encode()).hexdigest())
    if job.split_dependent or any(0 in field.shape for field in task.fields):
        return ValueSummary()
    with hide_output(failures=False), np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for sample in samples(task):
                if (results := SampleCalls(sample, backend, "").whole()) is not None:
                    return ValueSummary(sums=tuple(map(_sum, results)))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # `out=` of a user may raise anything; the run shows it
            pass
    return ValueSummary()


def _sum(result: HostArray) -> ResultSum:
    epsilon = float(np.finfo(result.dtype).eps) if result.dtype.kind in "fc" else 0.0
    cells = np.nan_to_num(result.astype(complex).ravel(), nan=1e3, posinf=1e4, neginf=-1e4)
    weights = np.random.default_rng(0).uniform(0.5, 1, cells.size)
    tolerance = max(ROUNDING * epsilon, 1e-14)
    return ResultSum(complex(cells @ weights), float(np.abs(cells) @ weights), tolerance)


def differing_rank(summaries: Sequence[ValueSummary | None]) -> int | None:
    """Return the first rank whose function is not that of rank 0; None if there is none."""
    first = summaries[0]
    if first is None:
        return None
    return next((n for n, one in enumerate(summaries) if one is not None and one.differs(first)), None)


def refuse_other_values(world: World, job: Job, summaries: Sequence[ValueSummary | None]) -> None:
    """Raise UserError on every rank if a rank's function is not that of rank 0. Collective if so.

    The error names the variables outside of the function that have other values there.
    """
    rank = differing_rank(summaries)
    if rank is None:
        return
    texts = world.control.allgather(value_texts(job.function))
    mine, its = texts[0], texts[rank]
    names = [name for name, text in mine.items() if its.get(name, text) != text]
    listed = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
    why = "random numbers, the time, hash(), a set's order or the rank's number are different in each process"
    if names:
        why = f"{listed} of each process {'has' if len(names) == 1 else 'have'} other values"
    raise UserError(
        f"job {job.name} computes something else on rank {rank} than on rank 0",
        why=why,
        hint="random numbers with a seed, np.random.default_rng(7), or an input of the function",
        everywhere=True,
    )
