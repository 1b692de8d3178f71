"""The facts of all ranks brought together and judged, before any work; collective."""

from __future__ import annotations

import os
from collections.abc import Sequence

from runner.backend import Backend
from runner.comm import Control
from runner.comm.collective_call import gather_calls, on_root
from runner.errors import UserError
from runner.launcher import Started
from runner.problem import Problem
from runner.survey import Survey, survey
from runner.world import Check, Rank


class Unfit(UserError):
    """The ranks cannot do what is asked: every failure with its fix, not only the first."""

    def __init__(self, failures: Sequence[Problem]) -> None:
        first = failures[0]
        super().__init__(first.what, got=first.got, expected=first.expected, hint=first.hint, everywhere=True)
        self.failures = tuple(failures)

    def __reduce__(self) -> tuple[type[Unfit], tuple[Sequence[Problem]]]:
        return type(self), (self.failures,)

    def __str__(self) -> str:
        return "\n  also: ".join(map(str, self.failures))


def inspect(control: Control, ranks: Sequence[Rank], backend: Backend) -> list[Survey]:
    """Every rank's facts, on every rank; where one cannot find its own, that error on every rank."""
    here = ranks[control.rank]
    runtime = backend.xp.cuda.runtime.runtimeGetVersion() if backend.device.kind == "cuda" else 0
    place = (here.number, here.host, here.host_id, here.local, here.device)
    return gather_calls(control, lambda: survey(*place, control.library, cuda_runtime=runtime), f"[{here}]")


def judge(
    control: Control, surveys: Sequence[Survey], started: Started, *, oversubscribe: bool = False
) -> list[Problem]:
    """What is wrong with them, the same on every rank."""

    def found() -> list[Problem]:
        from runner.preflight import Expected, problems

        planned = Expected(started.ranks, started.hosts, started.per_host, started.network, oversubscribe)
        return problems(surveys, planned)

    return on_root(control, found)


def refuse(problems: Sequence[Problem]) -> None:
    """Raise Unfit where there is more than warnings."""
    if failures := [problem for problem in problems if not problem.warning]:
        raise Unfit(failures)


def preflight(started: Started, *, oversubscribe: bool = False) -> Check:
    """A check for `open_world`: raises Unfit, and returns warnings. A rank alone is not checked.

    A rank that may run anywhere is moved to the cores near its GPU, before NCCL starts its threads.
    """

    def check(control: Control, ranks: Sequence[Rank], backend: Backend) -> list[str]:
        if control.size == 1:
            return []
        surveys = inspect(control, ranks, backend)
        found = judge(control, surveys, started, oversubscribe=oversubscribe)
        refuse(found)
        if near := cores_near_gpu(surveys[control.rank]):
            os.sched_setaffinity(0, near)
        return [str(problem) for problem in found]

    return check


def cores_near_gpu(here: Survey) -> tuple[int, ...]:
    """The cores to move to: NVML's for the GPU, if the rank may run on those and on others.

    Empty where nothing is to be done: a launcher that has bound the rank elsewhere has the say.
    """
    near = here.gpu.cpus if here.gpu else ()
    return near if set(near) < set(here.cpus) else ()
