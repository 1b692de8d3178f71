"""Checks that ranks agree: on versions, and on the settings of communication libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from meshrun.runner.world.preflight.problem import (
    Problem,
    abbreviate,
    describe_groups,
    describe_ranks,
    group_by_value,
    minority,
)
from meshrun.runner.world.preflight.survey import Survey

SAME_INSTALLATION = "the same environment (venv or image) on every host, python by its absolute path"
SAME_DRIVER = "the same driver on every host"

# Name, a rank's value ("" if it has none), remedy, whether a difference only warns.
VERSIONS: tuple[tuple[str, Callable[[Survey], str], str, bool], ...] = (
    ("meshrun", lambda survey: survey.meshrun, SAME_INSTALLATION, False),
    ("the MPI library", lambda survey: survey.mpi, SAME_INSTALLATION, False),
    ("NCCL", lambda survey: survey.nccl[0] if survey.nccl else "", SAME_INSTALLATION, False),
    ("the CUDA runtime", lambda survey: survey.gpu.cuda if survey.gpu else "", SAME_INSTALLATION, False),
    ("Python", lambda survey: survey.python, SAME_INSTALLATION, True),
    ("the NVIDIA driver", lambda survey: survey.gpu.driver if survey.gpu else "", SAME_DRIVER, True),
)

# Specific to a host or rank: an identity, or files that two ranks should not both write.
OWN = ("NCCL_HOSTID", "NCCL_DEBUG_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE", "UCX_LOG_FILE")
# Names of hardware, and log settings: a difference may be intended, but is more often an oversight.
MAY_DIFFER = (
    "FI_LOG_LEVEL",
    "NCCL_DEBUG",
    "NCCL_DEBUG_SUBSYS",
    "NCCL_IB_HCA",
    "NCCL_SOCKET_IFNAME",
    "UCX_LOG_LEVEL",
    "UCX_NET_DEVICES",
)


def versions(surveys: Sequence[Survey]) -> Iterator[Problem]:
    """Problems: software that differs in version between ranks."""
    for name, value, hint, warning in VERSIONS:
        found = group_by_value((value(survey), survey) for survey in surveys if value(survey))
        if len(found) > 1:
            yield Problem(
                f"ranks have different versions of {name}",
                got=describe_groups(found),
                expected="one version",
                hint=hint,
                ranks=minority(found),
                warning=warning,
            )


def settings(surveys: Sequence[Survey]) -> Iterator[Problem]:
    """Problems: environment variables that differ; one problem for all that differ between the same ranks."""
    names = {name for survey in surveys for name in survey.settings}
    together: dict[tuple[bool, tuple[tuple[int, ...], ...]], list[str]] = {}
    for name in sorted(names.difference(OWN)):
        found = group_by_value((survey.settings.get(name), survey) for survey in surveys)
        if len(found) > 1:
            parts = tuple(sorted(tuple(survey.rank for survey in part) for part in found.values()))
            together.setdefault((name in MAY_DIFFER, parts), []).append(name)
    for (warning, _), alike in together.items():
        yield _different(surveys, alike, warning)


def _different(surveys: Sequence[Survey], names: Sequence[str], warning: bool) -> Problem:
    found = group_by_value((tuple(survey.settings.get(name) for name in names), survey) for survey in surveys)
    worded = [f"{_worded(names, values)} on {describe_ranks(having)}" for values, having in found.items()]
    return Problem(
        f"ranks have different settings of {abbreviate(names)}",
        got=abbreviate(worded, "; "),
        expected="one value on every rank",
        hint="set the variable before the launcher and forward it: mpirun -x NAME (Open MPI forwards none by "
        "itself), srun --export=ALL",
        ranks=minority(found),
        warning=warning,
    )


def _worded(names: Sequence[str], values: Sequence[str | None]) -> str:
    """Such as "NCCL_ALGO=Ring NCCL_PROTO not set"; "not set" if none is set."""
    if not any(value is not None for value in values):
        return "not set"
    pairs = zip(names, values, strict=True)
    return abbreviate(
        [f"{name} not set" if value is None else f"{name}={value}" for name, value in pairs], " "
    )
