"""The preflight as a command of its own: all facts shown, whatever is wrong with them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from runner.backend import Backend
from runner.comm import Control
from runner.failure import FailureHandler
from runner.inspection import find_problems, gather_surveys, raise_failures
from runner.launcher import Started
from runner.problem import Problem
from runner.rank_process import run_as_rank
from runner.report.record import write
from runner.report.survey_table import rows, table
from runner.storage import check_place
from runner.survey import Survey
from runner.world import DeviceChoice, Rank, World

SCHEMA = 1


def main(
    started: Started, device: DeviceChoice, file: Path | None = None, debug: bool = False, mpi: str = ""
) -> int:
    """Run as one rank of `meshrun doctor`; the exit status. UserError where `file` could not be written.

    mpi: the library that ranks would load, where this process is alone and loads none.
    """
    if file is not None:
        check_place(file, "record")
    found: list[tuple[list[Survey], list[Problem]]] = []

    def look(control: Control, ranks: Sequence[Rank], backend: Backend) -> list[str]:
        surveys = [replace(one, mpi=one.mpi or mpi) for one in gather_surveys(control, ranks, backend)]
        found.append((surveys, find_problems(control, surveys, started)))
        return []

    def body(world: World, handler: FailureHandler) -> dict[str, Any]:
        surveys, problems = found[0]
        record = {
            "schema": SCHEMA,
            "ranks": rows(surveys),
            "problems": [asdict(problem) for problem in problems],
        }
        if world.rank == 0:
            sys.stdout.write(table(surveys))
            for problem in problems:
                print(f"{'warning' if problem.warning else 'FAILURE'}: {problem}")
            if not problems:
                print("nothing is wrong")
            sys.stdout.flush()
            if file is not None:
                write(record, file)
        raise_failures(problems)
        return record

    return run_as_rank(body, device=device, oversubscribe=True, started=started, debug=debug, check=look)
