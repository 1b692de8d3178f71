"""`meshrun.validate`: a validation from a notebook or a program, as a command of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

import click

from meshrun.jobs.validate.baseline import compare as baseline
from meshrun.jobs.validate.cli import FILES
from meshrun.jobs.validate.cli import validate as command
from meshrun.jobs.validate.health.known_rates import known_rates
from meshrun.jobs.validate.report.formats import json as documents
from meshrun.jobs.validate.report.formats import terminal
from meshrun.jobs.validate.run.outputs import Outputs, check_writable
from meshrun.jobs.validate.simulation.spec import parse_fleet
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.report.record import STDOUT
from meshrun.runner.run.python_call import PROGRAM, check_ranks
from meshrun.runner.run.record.printed import ShownRecord
from meshrun.runner.spelling import python_caller
from meshrun.runner.system.launcher import detect_launcher

# Options of the command that write to its standard output, which is the record here, or show its traceback.
LEFT_OUT = ("help", "json", "nagios", "debug")


class ValidateRecord(ShownRecord):
    """The document of `meshrun validate -J FILE`. Its `str` is the report, which notebooks show."""

    def __str__(self) -> str:
        return terminal.text(documents.read(self))


def validate(*, ranks: int | None = None, **options: Any) -> ValidateRecord:
    """Check whether the GPUs of this machine and their links are healthy, and name the part that is not.

    It starts the ranks of `meshrun -n RANKS validate` and waits for them. To validate a cluster, run the
    command under its launcher.

    Parameters
    ----------
    ranks : int, optional
        Number of ranks, one per GPU. Default: 1. A simulated fleet needs none.
    **options : object
        Options of `meshrun validate`, with underscores: `simulate="hosts=4,gpus=8"`, `rungs="gpu,pairs"`,
        `quick=True`, `keep_going=False`, `budget="60s"`, `device="cpu"`, `html="page.html"`. `json`, `nagios`
        and `debug` are not among them.

    Returns
    -------
    ValidateRecord
        The JSON document as a dict. `record["status"]` is "ok", "warning", "critical" or "unknown",
        `record["line"]` the verdict in one line, and `record["findings"]` the parts that it names, each with
        its `part` and `sentence`. Rates are in B/s, seconds in s; `record["units"]` has the others. Printed,
        or in a notebook, it shows the report.

    Raises
    ------
    UserError
        An option is unknown or has a wrong value, or an MPI launcher has started this program.
    RunError
        The command has ended without a verdict.

    Examples
    --------
    >>> record = meshrun.validate(simulate="hosts=4,gpus=8,fault=nic:h3:1:0.6")
    >>> record["status"]
    'critical'
    """
    if detect_launcher() is not None:
        raise UserError(
            "meshrun.validate: an MPI launcher has started this program",
            hint="type meshrun validate -J FILE under the launcher, in place of this program",
        )

    # Check what was asked for as the command does, before it starts.
    words = list(words_of(options))
    try:
        typed = command.make_context("validate", list(words)).params
    except click.ClickException as reason:
        raise UserError("meshrun.validate: wrong options", why=spelled(reason)) from None
    if typed["simulate"] is not None:
        parse_fleet(typed["simulate"])
    known_rates(typed["rates"])
    if typed["baseline"] is not None:
        baseline.read(typed["baseline"])
    if typed["save_baseline"] is not None:
        baseline.check_saving(typed["save_baseline"])
    check_writable(Outputs(**{name: typed[name] for name in FILES}), typed["save_baseline"])
    with python_caller():
        number = check_ranks(ranks)

    # Run the command, whose status is that of its verdict, and read its document.
    started = [*PROGRAM, *(() if number is None else ("-n", str(number))), "validate", *words, "--json=-"]
    done = subprocess.run(
        started,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="backslashreplace",
        check=False,
    )
    try:
        return ValidateRecord(json.loads(done.stdout))
    except ValueError:
        lines = [line.removeprefix("meshrun: ") for line in done.stderr.splitlines() if "meshrun: " in line]
        raise RunError(
            "meshrun.validate: the command has ended without a verdict",
            why=lines[-1] if lines else f"its exit status is {done.returncode}",
        ) from None


def spelled(reason: click.ClickException) -> str:
    """What click says of wrong options, with their names as keywords."""
    cause = reason.__cause__
    if isinstance(cause, click.BadParameter) and cause.param is not None:
        return f"{cause.param.name}: {cause.message.rstrip('.')}"
    return reason.message


def words_of(options: dict[str, Any]) -> Iterator[str]:
    """The command's words for keywords. Raises UserError for one that it does not have."""
    known = {one.name or "": one for one in command.params if one.name not in LEFT_OUT}
    for name, value in options.items():
        if name not in known:
            close = get_close_matches(name, known, 1)
            raise UserError(
                f"meshrun.validate has no option {name}",
                expected=", ".join(sorted(known)),
                hint=f"{close[0]}={value!r}" if close else None,
            )
        flag = known[name]
        if value is None:
            continue
        if isinstance(flag, click.Option) and flag.is_flag:
            if not isinstance(value, bool):
                raise UserError(f"meshrun.validate: {name} is wrong", got=value, expected="True or False")
            yield from (flag.opts if value else flag.secondary_opts)[:1]
        elif name in FILES and value == STDOUT:
            raise UserError(f"meshrun.validate: {name} is wrong", got=value, expected="the name of a file")
        else:
            yield f"{max(flag.opts, key=len)}={value}"
