"""Ranks compare what their functions compute: each process has variables and random numbers of its own.

`noise = np.random.rand(512)` outside of a function gives each rank other numbers. So do `hash("wave")`, the
order of a set of strings, the time and the rank's number. Each rank would compute its cells by another
function, and the result would depend on the number of ranks.
"""

from __future__ import annotations

import hashlib
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrun.runner.compiler.function_key import value_texts
from meshrun.runner.compiler.result_type import hide_output
from meshrun.runner.compiler.samples import samples
from meshrun.runner.device.api import Backend
from meshrun.runner.errors import UserError
from meshrun.runner.job.block_context import BlockContext
from meshrun.runner.job.declaration import Job
from meshrun.runner.maps.reduce import to_host
from meshrun.runner.maps.split_probe import SampleCalls
from meshrun.runner.plan.task import Task
from meshrun.runner.region import HostArray, Shape
from meshrun.runner.world.world import World

if TYPE_CHECKING:
    from meshrun.runner.compiler.whole.program import WholeProgram

LAST_BITS = 4  # units in the last place by which numbers of two hosts' libraries may differ
MOST_COMPARED = 64 << 20  # bytes of numbers
NUMBER = re.compile(r"(constant (?:float|complex)\d+) .*")  # of a program's text, with its value
ROUNDING = 64  # times the epsilon of a result's dtype: how far the arithmetic of two hosts may differ
SHOWN = 3  # names of variables in a message
# Cells of the array on which a reduction's functions are called: most along an axis, and different ones.
SAMPLE_LENGTH, SAMPLE_PERIOD = 19, 127


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


def whole_program(job: Job) -> WholeProgram | None:
    """Return what a function of whole arrays computes; None of another function."""
    found: WholeProgram | None = job.program or getattr(job.function, "whole", None)
    return found


def summary_of(task: Task, backend: Backend) -> ValueSummary:
    """Return what the ranks compare of a task. A function of blocks is called on a small array."""
    job, program = task.job, whole_program(task.job)
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


def summary_of_reduction(
    job: Job, parameters: dict[str, Any], shape: Shape, dtype: np.dtype[Any], backend: Backend
) -> ValueSummary:
    """Return what the ranks compare of a `reduce_blocks` job. Its functions are called on a small array.

    Nothing is compared of a function that raises on it: the run shows its error.
    """
    if 0 in shape or dtype.kind not in "biufc":
        return ValueSummary()
    rest = shape[1:] if job.whole_rows else tuple(min(n, SAMPLE_LENGTH) for n in shape[1:])
    lengths = (min(shape[0], SAMPLE_LENGTH), *rest) if shape else ()
    cells = (np.arange(math.prod(lengths)) % SAMPLE_PERIOD / 16 + 0.125).astype(dtype).reshape(lengths)
    starts, xp = (0,) * len(lengths), backend.xp
    services = {"xp": xp, "here": BlockContext(0, 1, "", starts, lengths, lengths, backend.stream, xp)}
    wanted = {name: service for name, service in services.items() if name in job.services}
    with hide_output(failures=False), np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            partial, other = (
                to_host(job.function(xp.array(cells), **wanted, **parameters)) for _ in range(2)
            )
            found = [*_arrays_in(partial)]
            assert job.combine is not None
            combined = job.combine(partial, other)
            found += _arrays_in(combined)
            found += _arrays_in(job.finish(combined, **parameters) if job.finish else None)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a user's function may raise anything
            return ValueSummary()
    return ValueSummary(sums=tuple(_sum(one) for one in found if one.dtype.kind in "biufc"))


def _arrays_in(partial: Any) -> Iterator[HostArray]:
    """Yield copies of the numbers and arrays of a partial result, which `combine` may change."""
    if isinstance(partial, dict):
        partial = list(partial.values())
    if isinstance(partial, (tuple, list)):
        for one in partial:
            yield from _arrays_in(one)
    elif partial is not None:
        yield np.array(partial)


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


def refuse_other_values(
    world: World, job: Job, summaries: Sequence[ValueSummary | None], program: WholeProgram | None = None
) -> None:
    """Raise UserError on every rank if a rank's function is not that of rank 0. Collective if so.

    The error names the variables outside of the function that have other values there, and the hosts. Numbers
    that differ in their last bits alone, as those of `np.exp` do on another processor or with another NumPy,
    are a warning.

    program: of a function of whole arrays.
    """
    rank = differing_rank(summaries)
    if rank is None:
        return
    texts = {
        name: text
        for function in (job.function, job.combine, job.finish)
        if function is not None
        for name, text in value_texts(function).items()
    }
    everyone = world.control.allgather((world.here.host, texts))
    (here, mine), (there, its) = everyone[0], everyone[rank]
    names = [name for name, text in mine.items() if its.get(name, text) != text]
    listed = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
    hosts = f" (hosts {here} and {there})" if here != there else ""
    if _differ_in_last_bits(world, program):
        what = listed or "a number that it computes"
        world.warn(
            f"job {job.name}: {what} differs in its last bits between rank 0 and rank {rank}{hosts}, so the "
            "result's last bits depend on the number of ranks"
        )
        return
    why = "random numbers, the time, hash(), a set's order or the rank's number are different in each process"
    if names:
        why = f"{listed} of each process {'has' if len(names) == 1 else 'have'} other values"
    raise UserError(
        f"job {job.name} computes something else on rank {rank} than on rank 0",
        why=f"{why}{hosts}",
        hint="random numbers with a seed, np.random.default_rng(7), or an input of the function",
        everywhere=True,
    )


def _differ_in_last_bits(world: World, program: WholeProgram | None) -> bool:
    """Return whether all ranks' programs are that of rank 0, but for the last bits of numbers. Collective."""
    own = None if program is None else _numbers_of(program)
    first = world.control.broadcast(own if world.rank == 0 else None)
    alike = False
    if own is not None and first is not None:
        alike = own[0] == first[0] and all(map(_are_close, own[1], first[1]))
    return all(world.control.allgather(alike))


def _numbers_of(program: WholeProgram) -> tuple[str, list[HostArray]] | None:
    """Return the text of a program without its floating-point numbers, and these; None if they are many."""
    nodes = program.listing.nodes
    numbers = [np.asarray(node.value) for node in nodes if node.op == "constant" and node.dtype.kind in "fc"]
    picked = [one for one in program.graph.picked if isinstance(one, np.ndarray)]
    numbers += [one for one in picked if one.dtype.kind in "fc"]
    numbers += [one.values for one in program.constants if one.values.dtype.kind in "fc"]
    if sum(one.nbytes for one in numbers) > MOST_COMPARED:
        return None
    text = NUMBER.sub(r"\1", "\n".join((program.listing.text(), program.tape.text())))
    others = [*program.graph.points, *(one for one in picked if one.dtype.kind not in "fc")]
    others += [one.values for one in program.constants if one.values.dtype.kind not in "fc"]
    exact = hashlib.sha256(b"".join(np.ascontiguousarray(one).tobytes() for one in others)).hexdigest()
    return text + exact, [np.array(one) for one in numbers]


def _are_close(one: HostArray, other: HostArray) -> bool:
    """Return whether two arrays differ in the last bits of their elements alone."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    with np.errstate(all="ignore"):
        most = np.maximum(np.abs(one), np.abs(other))
        close = np.abs(one - other) <= LAST_BITS * np.spacing(most)
    return bool((close | (one == other) | (np.isnan(one) & np.isnan(other))).all())
