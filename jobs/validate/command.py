"""`meshrun validate`: the command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

import runner
from jobs.measure.exit_codes import Finite, StrictCommand
from jobs.validate.asked import Asked
from jobs.validate.budget import quick as quick_plan
from jobs.validate.budget import seconds
from jobs.validate.outputs import Outputs, check
from jobs.validate.plan import RUNGS, Plan, RungName
from jobs.validate.verdict import EXIT

FILES = ("json", "html", "junit", "prometheus")
UNKNOWN = EXIT["unknown"]  # of a check that could not be made: bad words, too


class BadWords(click.UsageError):
    exit_code = UNKNOWN


class ValidateCommand(StrictCommand):
    bad_usage = BadWords

    def conclude(
        self, words: Sequence[str], status: int, why: str, kept: int | None, answer: str | None, files: bool
    ) -> int:
        """Give the verdict of a run that has ended without one; as `launch.further.conclude` asks for it."""
        from jobs.validate.ended import conclude

        try:
            typed = self.make_context("validate", list(words)).params
        except (click.ClickException, click.exceptions.Exit):
            typed = {"nagios": "--nagios" in words}
        named = Outputs(**{name: typed.get(name) for name in FILES}) if files else Outputs()
        if kept is None:
            status = max(status, UNKNOWN)
        elif status == 1:  # of the runner, where no rank has failed first: a launcher's, a host's
            status = kept
        try:
            check(named, typed.get("save_baseline"))
        except runner.UserError:  # told where they were refused
            named = Outputs()
        return conclude(words, status, why, answer, named, typed["nagios"])


class Duration(click.ParamType[float]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return value if isinstance(value, float) else seconds(value)
        except runner.UserError as reason:
            self.fail(str(reason), param, ctx)


class Rungs(click.ParamType[tuple[RungName, ...]]):
    """Names of rungs between commas, in any order."""

    name = "rungs"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[RungName, ...]:
        if isinstance(value, tuple):
            return value
        words = [word.strip().replace("-", " ").replace("_", " ") for word in value.split(",")]
        if unknown := [word for word in words if word not in RUNGS]:
            self.fail(f"{unknown[0]!r} is none of {', '.join(RUNGS)}", param, ctx)
        return tuple(name for name in RUNGS if name in words)


FILE = click.Path(path_type=Path)


@click.command(cls=ValidateCommand)
@click.option(
    "--rungs", type=Rungs(), default=RUNGS, metavar="NAME,...", help=f"Only these: {', '.join(RUNGS)}."
)
@click.option("--keep-going", is_flag=True, help="Measure on after a broken rung.")
@click.option("--quick", is_flag=True, help="Fewer samples, smaller sizes.")
@click.option("--budget", type=Duration(), metavar="TIME", help="Fit sizes and repeats into it, such as 60s.")
@click.option("--soak", type=Duration(), metavar="TIME", help="Again and again for so long, such as 1h.")
@click.option(
    "--simulate",
    metavar="FLEET",
    help="Rehearse over a model, such as hosts=8,gpus=8,fault=nic:h3:1:0.6.",
)
@click.option("--baseline", type=FILE, metavar="FILE", help="Compare with earlier runs: .json or .sqlite.")
@click.option("--save-baseline", type=FILE, metavar="FILE", help="Keep this run there if it is healthy.")
@click.option("-J", "--json", metavar="FILE", help="Write all that was found there.")
@click.option("--html", metavar="FILE", help="The same as a page that opens offline.")
@click.option("--junit", metavar="FILE", help="JUnit XML, a test case for each rung.")
@click.option("--prometheus", metavar="FILE", help="For node_exporter's textfile collector.")
@click.option("--nagios", is_flag=True, help="Print one line, as a monitoring plugin does.")
@click.option(
    "-T",
    "--timeout",
    type=Finite(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="End the run when a rank is stuck for so long; 0: never.",
)
@click.option(
    "--device",
    type=click.Choice(("auto", "cpu", "cuda")),
    default="auto",
    show_default=True,
    help="What is validated.",
)
@click.option("--oversubscribe", is_flag=True, help="Let ranks share a GPU.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_obj
def validate(
    door: Any,
    /,
    rungs: tuple[RungName, ...],
    keep_going: bool,
    quick: bool,
    device: Any,
    oversubscribe: bool,
    debug: bool,
    **words: Any,
) -> int:
    """Say whether these GPUs and the wires between them are healthy, and which part is not.

    \b
    meshrun -n 8 validate                            the GPUs of this machine
    mpirun -np 64 meshrun validate --html page.html  a cluster; likewise srun
    meshrun validate --simulate hosts=64,gpus=8,fault=nic:h3:1:0.6

    Exit status: 0 ok, 1 warning, 2 critical, 3 unknown, which a missing value is at least.
    """
    files = {name: words.pop(name) for name in FILES}
    plan = replace(quick_plan() if quick else Plan(), rungs=rungs, keep_going=keep_going)
    typed = (*(() if door.ranks is None else ("-n", str(door.ranks))), *door.words)
    asked = Asked(plan, outputs=Outputs(**files), words=typed, **words)
    if asked.simulate is not None:
        from jobs.validate.run import rehearse

        if door.ranks not in (None, 1):
            raise click.UsageError("--simulate needs no ranks: without -n")
        return rehearse(asked, door)
    from jobs.validate.run import run, unopened

    return runner.run_as_rank(
        lambda world, handler: run(world, handler, asked, door),
        device=device,
        oversubscribe=oversubscribe,
        started=door.started,
        debug=debug,
        usage_exit_status=UNKNOWN,
        failure_exit_status=EXIT["critical"],
        interrupt_message="interrupted",
        before_exit=lambda handler: unopened(handler, asked, door),
    )
