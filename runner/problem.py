"""What a preflight finds wrong, and how it names the ranks: one sentence for thousands of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from runner.errors import UserError
from runner.survey import Survey
from runner.watch_report import ranges

NAMED = 4  # at most so many hosts, values or variables by name in one sentence
Value = TypeVar("Value", bound=Hashable)


@dataclass(frozen=True)
class Problem:
    """One thing wrong, on all the ranks that have it; the words are those of MeshrunError.

    warning: the run may go on.
    """

    what: str
    got: str
    expected: str
    hint: str
    ranks: tuple[int, ...]
    warning: bool = False

    def __str__(self) -> str:
        return str(UserError(self.what, got=self.got, expected=self.expected, hint=self.hint))


def numbers(surveys: Iterable[Survey]) -> tuple[int, ...]:
    """Their ranks, ascending."""
    return tuple(sorted(survey.rank for survey in surveys))


def by_host(surveys: Iterable[Survey]) -> list[list[Survey]]:
    """Those of each host, in the order of hosts' first ranks."""
    hosts: dict[str, list[Survey]] = {}
    for survey in surveys:
        hosts.setdefault(survey.host_id, []).append(survey)
    return list(hosts.values())


def who(surveys: Sequence[Survey]) -> str:
    """Such as "ranks 0-3, 8 (hosts n1, n3)"."""
    return f"rank{'s' * (len(surveys) > 1)} {ranges(numbers(surveys))} ({which_hosts(surveys)})"


def which_hosts(surveys: Iterable[Survey]) -> str:
    """Such as "hosts n1, n3"."""
    names = [host[0].host for host in by_host(surveys)]
    return f"host{'s' * (len(names) > 1)} {few(names)}"


def few(texts: Sequence[str], separator: str = ", ") -> str:
    """The first NAMED of them, and how many more."""
    rest = len(texts) - NAMED
    return separator.join(texts[:NAMED]) + (f" and {rest} more" if rest > 0 else "")


def groups(values: Iterable[tuple[Value, Survey]]) -> dict[Value, list[Survey]]:
    """Who has each value, the most common first, of equals rank 0's."""
    found: dict[Value, list[Survey]] = {}
    for value, survey in sorted(values, key=lambda pair: pair[1].rank):
        found.setdefault(value, []).append(survey)
    return dict(sorted(found.items(), key=lambda group: -len(group[1])))


def spread(groups: Mapping[str, Sequence[Survey]]) -> str:
    """Such as "2.28.9 on ranks 0-7 (host n1); 2.27.3 on rank 8 (host n2)"."""
    return few([f"{value} on {who(surveys)}" for value, surveys in groups.items()], "; ")


def minority(groups: Mapping[Value, Sequence[Survey]]) -> tuple[int, ...]:
    """The ranks outside the largest group."""
    return numbers(survey for others in list(groups.values())[1:] for survey in others)
