"""The preflight: gather the surveys of all ranks and check them before any work."""

from __future__ import annotations

import os
from collections.abc import Sequence

from meshrun.runner.comm.api import Control
from meshrun.runner.comm.collective_call import gather_calls, on_root
from meshrun.runner.device.api import Backend
from meshrun.runner.errors import UserError
from meshrun.runner.system.launcher import Started
from meshrun.runner.world.preflight.problem import Problem
from meshrun.runner.world.preflight.survey import Survey, survey
from meshrun.runner.world.world import Check, Rank


class PreflightFailed(UserError):
    """The ranks cannot run the job; the message has every failure and its remedy."""

    def __init__(self, failures: Sequence[Problem]) -> None:
        first = failures[0]
        super().__init__(first.what, got=first.got, expected=first.expected, hint=first.hint, everywhere=True)
        self.failures = tuple(failures)

    def __reduce__(self) -> tuple[type[PreflightFailed], tuple[Sequence[Problem]]]:
        return type(self), (self.failures,)

    def __str__(self) -> str:
        return "\n  also: ".join(map(str, self.failures))


def gather_surveys(control: Control, ranks: Sequence[Rank], backend: Backend) -> list[Survey]:
    """Every rank's survey, on every rank; an error of one rank is raised on all. Collective."""
    here = ranks[control.rank]
    runtime = backend.xp.cuda.runtime.runtimeGetVersion() if backend.device.kind == "cuda" else 0
    return gather_calls(
        control, lambda: survey(here, control.library, cuda_runtime=runtime), here, names_rank=True
    )


def find_problems(
    control: Control, surveys: Sequence[Survey], started: Started, *, oversubscribe: bool = False
) -> list[Problem]:
    """The problems that `surveys` show, the same on every rank. Collective."""

    def found() -> list[Problem]:
        from meshrun.runner.world.preflight.checks import check_surveys

        return check_surveys(surveys, started, oversubscribe=oversubscribe)

    return on_root(control, found)


def raise_failures(problems: Sequence[Problem]) -> None:
    """Raise PreflightFailed if any problem is more than a warning."""
    if failures := [problem for problem in problems if not problem.warning]:
        raise PreflightFailed(failures)


def preflight(started: Started, *, oversubscribe: bool = False) -> Check:
    """A check for `open_world`: raises PreflightFailed, returns warnings. A single rank is not checked.

    An unbound rank is moved to the cores near its GPU, before NCCL starts its threads.
    """

    def check(control: Control, ranks: Sequence[Rank], backend: Backend) -> list[str]:
        if control.size == 1:
            return []
        surveys = gather_surveys(control, ranks, backend)
        found = find_problems(control, surveys, started, oversubscribe=oversubscribe)
        raise_failures(found)
        if near := cores_near_gpu(surveys[control.rank]):
            os.sched_setaffinity(0, near)
        return [str(problem) for problem in found]

    return check


def cores_near_gpu(here: Survey) -> tuple[int, ...]:
    """The cores near the GPU, if the rank may run on these and on others; else empty.

    A launcher's binding to other cores is left alone.
    """
    near = here.gpu.cpus if here.gpu else ()
    return near if set(near) < set(here.cpus) else ()
