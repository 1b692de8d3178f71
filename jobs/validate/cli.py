"""`meshrun validate`: the command line."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from meshrun.jobs.measure.exit_codes import Finite, Parsed, StrictCommand
from meshrun.jobs.validate.ladder.budget import load_seconds, parse_duration
from meshrun.jobs.validate.ladder.budget import quick as quick_plan
from meshrun.jobs.validate.plan import RUNGS, Plan, RungName
from meshrun.jobs.validate.run.options import ValidateOptions
from meshrun.jobs.validate.run.outputs import Outputs, check_writable
from meshrun.runner.errors import Exit, UserError
from meshrun.runner.report.record import STDOUT, stdout_for
from meshrun.runner.system.launcher import default_variable
from meshrun.runner.world.failure import FailureHandler
from meshrun.runner.world.rank_process import run_as_rank

FILES = ("json", "html", "junit", "prometheus")


class ValidateUsageError(click.UsageError):
    exit_code = Exit.VALIDATE_UNKNOWN


class ValidateCommand(StrictCommand):
    bad_usage = ValidateUsageError

    def conclude(
        self, words: Sequence[str], status: int, why: str, kept: int | None, answer: str | None, files: bool
    ) -> int:
        """Report a run that ended without a verdict. Called by `launch.cli.plugins.conclude`."""
        from meshrun.jobs.validate.run.early_end import conclude, written_by_rank_0

        try:
            typed = self.make_context("validate", list(words)).params
        except (click.ClickException, click.exceptions.Exit):
            typed = {"nagios": "--nagios" in words}
        elsewhere = None if files else written_by_rank_0(typed.get("json"))
        if elsewhere is not None:  # the file is here too, and rank 0 may not have known how the run ended
            answer, files = elsewhere, True
        named = Outputs(**{name: typed.get(name) for name in FILES})
        named = named if files else named.without_files()
        if kept is None:
            status = max(status, Exit.VALIDATE_UNKNOWN)
        elif status == 1:  # the runner's; no rank failed first, but a launcher or a host
            status = kept
        try:
            check_writable(named, typed.get("save_baseline"))
        except UserError:  # already reported when they were refused
            named = named.without_files()
        return conclude(words, status, why, answer, named, typed["nagios"])


def parse_rungs(text: str) -> tuple[RungName, ...]:
    """Parse comma-separated names of rungs, in any order. Raises ValueError."""
    words = [word.strip().replace("-", " ").replace("_", " ") for word in text.split(",")]
    if unknown := [word for word in words if word not in RUNGS]:
        raise ValueError(f"{unknown[0]!r} is not one of {', '.join(RUNGS)}")
    return tuple(name for name in RUNGS if name in words)


DURATION = Parsed("duration", parse_duration)
FILE = click.Path(path_type=Path)


@click.command(cls=ValidateCommand)
@click.option(
    "--rungs",
    type=Parsed("rungs", parse_rungs),
    metavar="NAME,...",
    help=f"Measure only these rungs: {', '.join(RUNGS)}. The verdict is unknown if one cannot be.",
)
@click.option(
    "--keep-going/--stop-at-first",
    default=True,
    show_default=True,
    help="After a broken rung, measure the later ones too, or stop.",
)
@click.option("--quick", is_flag=True, help="Take fewer samples of smaller sizes; on CPUs, end within 30 s.")
@click.option("--budget", type=DURATION, metavar="TIME", help="Reduce sizes and repeats to fit, such as 60s.")
@click.option("--soak", type=DURATION, metavar="TIME", help="Repeat for this time, such as 1h.")
@click.option(
    "--expect-gpus",
    type=click.IntRange(min=1),
    metavar="N",
    help="Each host must have N GPUs; any other number is critical.",
)
@click.option(
    "--simulate",
    metavar="FLEET",
    help="Rehearse on a model, such as hosts=8,gpus=8,fault=nic:h3:1:0.6.",
)
@click.option("--baseline", type=FILE, metavar="FILE", help="Compare with earlier runs: .json or .sqlite.")
@click.option("--save-baseline", type=FILE, metavar="FILE", help="Save this run there if it is healthy.")
@click.option("--rates", type=FILE, metavar="FILE", help="Also use the known rates of your site (.json).")
@click.option("-J", "--json", metavar="FILE", help="Write all results as JSON; - is standard output.")
@click.option("--html", metavar="FILE", help="Write all results as a page that opens offline.")
@click.option("--junit", metavar="FILE", help="Write JUnit XML, a test case for each rung.")
@click.option("--prometheus", metavar="FILE", help="Write metrics for node_exporter's textfile collector.")
@click.option("--nagios", is_flag=True, help="Print one line in the format of a monitoring plugin.")
@click.option(
    "-T",
    "--timeout",
    type=Finite(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Abort after SECONDS without progress; 0: never.",
)
@click.option(
    "--device",
    type=click.Choice(("auto", "cpu", "cuda")),
    default="auto",
    show_default=True,
    help="Device to validate.",
)
@click.option("--oversubscribe", is_flag=True, help="Let ranks share a GPU.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_obj
def validate(
    cli_context: Any,
    /,
    rungs: tuple[RungName, ...] | None,
    keep_going: bool,
    quick: bool,
    device: Any,
    oversubscribe: bool,
    debug: bool,
    **words: Any,
) -> int:
    """Check whether these GPUs and the links between them are healthy, and name the part that is not.

    \b
    meshrun -n 8 validate                            the GPUs of this machine
    mpirun -np 64 meshrun validate --html page.html  a cluster; likewise srun
    meshrun validate --simulate hosts=64,gpus=8,fault=nic:h3:1:0.6

    Exit status: 0 ok, 1 warning, 2 critical, 3 unknown, for example if a measurement is missing.
    """
    files = {name: words.pop(name) for name in FILES}
    expected_gpus = words.pop("expect_gpus")
    plan = replace(quick_plan() if quick else Plan(), keep_going=keep_going, expected_gpus=expected_gpus)
    plan = replace(plan, quick=quick and words["budget"] is None and words["soak"] is None)
    if rungs is not None:
        plan = replace(plan, rungs=rungs, by_name=True)
    if words["simulate"] is None:  # a model has no tensor cores
        plan = replace(plan, tensor_seconds=load_seconds(quick, words["budget"], words["soak"]))
    ranks = cli_context.started.ranks
    typed = (*(() if ranks is None else ("-n", str(ranks))), *cli_context.words)
    options = ValidateOptions(plan, outputs=Outputs(**files), words=typed, **words)
    if options.nagios and options.outputs.on_stdout:
        raise click.UsageError(
            f"--nagios and --{options.outputs.on_stdout} - both write to standard output; write one to a file"
        )
    if options.simulate is not None:
        from meshrun.jobs.validate.run.run import rehearse_once

        return rehearse_once(options, cli_context)
    from meshrun.jobs.validate.run.run import report_before_world, run

    # Otherwise NCCL sends to another rail through the NIC of that rail, and the wrong NIC would be named.
    # NCCL reads it when the first communicator is made.
    own_nics = default_variable("NCCL_P2P_PXN_LEVEL", "0") if device != "cpu" else nullcontext()
    handler = FailureHandler(
        debug=debug,
        usage_exit_status=Exit.VALIDATE_UNKNOWN,
        failure_exit_status=Exit.VALIDATE_CRITICAL,
        interrupt_message="interrupted",
    )
    handler.before_exit = partial(report_before_world, handler, options, cli_context)
    with own_nics, stdout_for(options.outputs.on_stdout and STDOUT):
        return run_as_rank(
            lambda world, handler: run(world, handler, options, cli_context),
            handler,
            device=device,
            oversubscribe=oversubscribe,
            started=cli_context.started,
            command="validate",
        )
