"""Runs a validation on all ranks, or rehearses it over a model: measures, judges, reports."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jobs.measure.record_file import recorded_environment
from jobs.measure.status_line import CLEAR
from jobs.validate.baseline import compare as baseline
from jobs.validate.health.alarms import unjudged
from jobs.validate.health.hardware_limits import gather, limits
from jobs.validate.ladder.ladder import OnRung
from jobs.validate.plan import RungName
from jobs.validate.probe.api import Probe
from jobs.validate.probe.buffers import fit_to_devices
from jobs.validate.probe.rank_probe import ReadCounters, open_probe
from jobs.validate.report.formats import json as json_format
from jobs.validate.report.model import Member, Report
from jobs.validate.report.wording import headline
from jobs.validate.run import outputs
from jobs.validate.run.dead_ranks import dead_ranks, stay_alive
from jobs.validate.run.early_end import FROM_OUTSIDE, say, sentence
from jobs.validate.run.options import ValidateOptions
from jobs.validate.run.validation import Validation, measure
from jobs.validate.simulation.fleet import SimulatedFleet
from jobs.validate.simulation.spec import parse_fleet
from jobs.validate.verdict import EXIT, Status
from meshrun import World
from runner.errors import BadResult, RunError, UserError, tell
from runner.run.record_builder import versions
from runner.system import launcher
from runner.system.counters import read_counters
from runner.world.failure import FailureHandler
from runner.world.watchdog.watchdog import MeasurementProgress, Watchdog


def run(world: World, handler: FailureHandler, options: ValidateOptions, cli_context: Any) -> dict[str, Any]:
    """Measure and report; returns the completion record.

    Raises BadResult on every rank unless the verdict is ok.
    """
    options = world.control.broadcast(options)
    world.on_root(lambda: outputs.check(options.outputs, options.save_baseline))
    validation = Validation(options, environment(world))
    if world.rank == 0:
        handler.before_exit = lambda: report_early(handler, validation, cli_context, world)
        hand_over(
            handler, validation.early_report("the run ended before anything was measured", guilty=False)
        )
    verdict: tuple[Status, str] | None = None
    with (
        watching(world, handler, options) as progress,
        open_probe(world, progress, counters(world)) as probe,
    ):
        validation.plan = fit_to_devices(world, options.plan)
        if (usual := validation.plan.critical) < options.plan.critical:
            validation.notes.append(
                f"ranks on CPUs: only a part below {100 * usual:.0f} % of its siblings is called slow"
            )
        facts = gather(world)
        if world.rank:
            handler.before_exit = stay_alive
            try:
                probe.follow()
            finally:
                handler.before_exit = None
        else:
            with probe.lead():
                validation.members = members_of(world, probe)
                validation.limits = limits(facts, probe.places)
                refuse_baseline(options, validation.members)
                on_rung = write_before(handler, validation, show_rung(cli_context))
                report = measure(validation, probe, on_rung, tell)
            handler.before_exit = None
            report = publish(report, options, cli_context)
            if handler.status is not None:
                handler.status.save_answer("")
            verdict = report.verdict.status, headline(report)
    status, line = world.control.broadcast(verdict)
    if status != "ok":
        raise BadResult(line, EXIT[status])
    return {"command": "validate", "status": status, "ranks": world.size}


def rehearse(options: ValidateOptions, cli_context: Any) -> int:
    """Measure and report the simulated fleet that was asked for; returns the exit status."""
    assert options.simulate is not None
    fleet = SimulatedFleet(parse_fleet(options.simulate))
    validation = Validation(options, {"meshrun": version("meshrun")}, plan=options.plan)
    validation.members = tuple(
        Member(place.rank, fleet.hosts[place.host], place.gpu, "simulated", kind="simulated")
        for place in fleet.places
    )
    outputs.check(options.outputs, options.save_baseline)
    refuse_baseline(options, validation.members)
    report = measure(validation, fleet, show_rung(cli_context), tell)
    report = publish(report, options, cli_context)
    return EXIT[report.verdict.status]


def environment(world: World) -> dict[str, Any]:
    """What figures depend on, as rank 0 finds it. driver: version of NVIDIA's kernel module."""
    driver = Path("/sys/module/nvidia/version")
    found = {"driver": driver.read_text().strip()} if driver.exists() else {}
    return versions(world) | found | {"settings": recorded_environment(launcher.environment())}


def refuse_baseline(options: ValidateOptions, members: Sequence[Member]) -> None:
    """Raise UserError for a baseline that does not fit these members, before anything is measured."""
    if options.baseline is not None:
        baseline.check(options.baseline, members, options.simulate or "")
    if options.save_baseline is not None:
        baseline.check_saving(options.save_baseline)


def members_of(world: World, probe: Probe) -> tuple[Member, ...]:
    return tuple(
        Member(
            place.rank,
            probe.hosts[place.host],
            place.gpu,
            device.name,
            device.uuid,
            device.bus_id,
            device.kind,
        )
        for place, device in zip(probe.places, (rank.device for rank in world.ranks), strict=True)
    )


def counters(world: World) -> ReadCounters:
    device, local = world.here.device, world.here.local
    return lambda: read_counters(device.uuid if device.kind == "cuda" else None, local)


def report_early(
    handler: FailureHandler, validation: Validation, cli_context: Any, world: World | None = None
) -> None:
    """Write what is known when rank 0 ends early; print it unless the process that started the ranks does."""
    if handler.failed:
        status, why = handler.failed
        report = validation.early_report(sentence(why), guilty=status == EXIT["critical"])
    else:
        report = validation.early_report(FROM_OUTSIDE, guilty=False)
    if not hand_over(handler, report) and world and not handler.failed and (dead := dead_ranks(world)):
        report = validation.early_report(f"died: {'; '.join(dead)}", guilty=True)
    with suppress(UserError):  # of files that were refused
        outputs.check(validation.options.outputs, validation.options.save_baseline)
        outputs.write(report, validation.options.outputs)
    if handler.status is None:
        clear(cli_context)
        say(report, validation.options.nagios, cli_context.colour)


def report_unopened(handler: FailureHandler, options: ValidateOptions, cli_context: Any) -> None:
    """The same before the world is open."""
    report_early(handler, Validation(options, {}), cli_context)


def hand_over(handler: FailureHandler, report: Report) -> bool:
    """Hand the report to the process that started the ranks, which then says why the run ended.

    Returns whether there is such a process.
    """
    return handler.status is not None and handler.status.save_answer(json_format.text(report))


@contextmanager
def watching(
    world: World, handler: FailureHandler, options: ValidateOptions
) -> Iterator[MeasurementProgress]:
    """Watch this rank's progress: a rank that hangs ends the run and is named, in the report too."""
    if not options.timeout:
        yield MeasurementProgress()
        return

    def report(text: str) -> None:
        handler.report_single(RunError(text), "", world.rank)

    names = [str(rank) for rank in world.ranks]
    watchdog = Watchdog(
        world.control, names, options.timeout, on_report=report, end=world.control.abort
    )  # fmt: skip
    for warning in watchdog.warnings if world.rank == 0 else ():
        tell(f"warning: {warning}")
    try:
        yield watchdog
    finally:
        watchdog.stop()


def write_before(handler: FailureHandler, validation: Validation, show: OnRung) -> OnRung:
    """Write the reports before each rung: a launcher may kill rank 0 when another rank dies."""

    def on_rung(rung: RungName) -> None:
        report = validation.interim_report(rung)
        hand_over(handler, report)
        outputs.write(report, validation.options.outputs, last=False)
        show(rung)

    return on_rung


def show_rung(cli_context: Any) -> OnRung:
    """Show the rung on a line of the terminal that the next one replaces; nothing without a terminal."""

    def show(rung: RungName) -> None:
        if cli_context.columns:
            sys.stderr.write(f"{CLEAR}{rung}"[: cli_context.columns + len(CLEAR) - 1])
            sys.stderr.flush()

    return show


def publish(report: Report, options: ValidateOptions, cli_context: Any) -> Report:
    """Write the files and print the report; unknown where a file cannot be written."""
    clear(cli_context)
    if failed := outputs.write(report, options.outputs):
        report = replace(report, verdict=unjudged(report.verdict, "; ".join(failed)))
        outputs.write(report, options.outputs)
    say(report, options.nagios, cli_context.colour)
    return report


def clear(cli_context: Any) -> None:
    """Remove the line of `show_rung`."""
    if cli_context.columns:
        sys.stderr.write(CLEAR)
