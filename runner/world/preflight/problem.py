"""A problem found by the preflight, and short texts that name up to thousands of affected ranks."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from meshrun.runner.errors import UserError
from meshrun.runner.world.preflight.survey import Survey
from meshrun.runner.world.watchdog.report import ranks_text

MAX_NAMES = 4  # hosts, values or variables that one sentence lists by name
Value = TypeVar("Value", bound=Hashable)


@dataclass(frozen=True)
class Problem:
    """One problem and all the ranks that have it; `what`, `got`, `expected`, `hint` as in MeshrunError.

    warning: the run may continue.
    """

    what: str
    got: str
    expected: str
    hint: str
    ranks: tuple[int, ...]
    warning: bool = False

    def __str__(self) -> str:
        return str(UserError(self.what, got=self.got, expected=self.expected, hint=self.hint))


def rank_numbers(surveys: Iterable[Survey]) -> tuple[int, ...]:
    """The rank numbers of `surveys`, ascending."""
    return tuple(sorted(survey.rank for survey in surveys))


def by_host(surveys: Iterable[Survey]) -> list[list[Survey]]:
    """The surveys of each host, in the order of the hosts' first ranks."""
    hosts: dict[str, list[Survey]] = {}
    for survey in surveys:
        hosts.setdefault(survey.host_id, []).append(survey)
    return list(hosts.values())


def describe_ranks(surveys: Sequence[Survey]) -> str:
    """Such as "ranks 0-3, 8 (hosts n1, n3)"."""
    return f"{ranks_text(rank_numbers(surveys))} ({describe_hosts(surveys)})"


def describe_hosts(surveys: Iterable[Survey]) -> str:
    """Such as "hosts n1, n3"."""
    names = [host[0].host for host in by_host(surveys)]
    return f"host{'s' * (len(names) > 1)} {abbreviate(names)}"


def abbreviate(texts: Sequence[str], separator: str = ", ") -> str:
    """The first MAX_NAMES of `texts`, and the number of the others."""
    rest = len(texts) - MAX_NAMES
    return separator.join(texts[:MAX_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def group_by_value(values: Iterable[tuple[Value, Survey]]) -> dict[Value, list[Survey]]:
    """The surveys with each value, the most common first; equally common ones by their first rank."""
    found: dict[Value, list[Survey]] = {}
    for value, survey in sorted(values, key=lambda pair: pair[1].rank):
        found.setdefault(value, []).append(survey)
    return dict(sorted(found.items(), key=lambda group: -len(group[1])))


def describe_groups(groups: Mapping[str, Sequence[Survey]]) -> str:
    """Such as "2.28.9 on ranks 0-7 (host n1); 2.27.3 on rank 8 (host n2)"."""
    return abbreviate([f"{value} on {describe_ranks(surveys)}" for value, surveys in groups.items()], "; ")


def minority(groups: Mapping[Value, Sequence[Survey]]) -> tuple[int, ...]:
    """The ranks outside the largest group."""
    return rank_numbers(survey for others in list(groups.values())[1:] for survey in others)
