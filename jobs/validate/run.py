"""A validation by all ranks, or rehearsed over a model: measured, judged, told, kept."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import runner
from jobs.measure.record_file import recorded_environment
from jobs.measure.status_line import CLEAR
from jobs.validate import outputs
from jobs.validate.asked import Asked
from jobs.validate.baseline import compare as baseline
from jobs.validate.climbing import Climbing, Told, measured
from jobs.validate.ended import FROM_OUTSIDE, say, sentence
from jobs.validate.fallen import fallen, stay
from jobs.validate.health.alarms import unjudged
from jobs.validate.limits import gather, limits
from jobs.validate.plan import RungName
from jobs.validate.probe import Probe
from jobs.validate.ranks import probe as ranks
from jobs.validate.report.formats import json as json_format
from jobs.validate.report.model import Member, Report
from jobs.validate.report.wording import headline
from jobs.validate.verdict import EXIT, Status
from runner import World


def run(world: World, handler: runner.FailureHandler, asked: Asked, door: Any) -> dict[str, Any]:
    """Measure and tell; the completion record. Raises BadResult, on every rank, unless all is well."""
    asked = world.control.broadcast(asked)
    world.on_root(lambda: outputs.check(asked.outputs, asked.save_baseline))
    climbing = Climbing(asked, environment(world))
    if world.rank == 0:
        handler.before_exit = lambda: leave(handler, climbing, door, world)
        note(handler, climbing.cut_short("the run ended before anything was measured", guilty=False))
    verdict: tuple[Status, str] | None = None
    with (
        watching(world, handler, asked) as trail,
        ranks.opened(world, trail, counters(world)) as probe,
    ):
        climbing.plan = ranks.suited(world, asked.plan)
        if (usual := climbing.plan.critical) < asked.plan.critical:
            climbing.notes.append(
                f"ranks on CPUs: only a part below {100 * usual:.0f} % of its siblings is called slow"
            )
        facts = gather(world)
        if world.rank:
            handler.before_exit = stay
            try:
                probe.follow()
            finally:
                handler.before_exit = None
        else:
            with probe.lead():
                climbing.members = members_of(world, probe)
                climbing.limits = limits(facts, probe.places)
                refuse(asked, climbing.members)
                report = measured(climbing, probe, noting(handler, climbing, progress(door)), runner.tell)
            handler.before_exit = None
            report = tell(report, asked, door)
            if handler.status is not None:
                handler.status.save_answer("")
            verdict = report.verdict.status, headline(report)
    status, line = world.control.broadcast(verdict)
    if status != "ok":
        raise runner.BadResult(line, EXIT[status])
    return {"command": "validate", "status": status, "ranks": world.size}


def rehearse(asked: Asked, door: Any) -> int:
    """The same over the simulated fleet that was asked for; the exit status."""
    assert asked.simulate is not None
    fleet = runner.SimulatedFleet(runner.parse_fleet(asked.simulate))
    climbing = Climbing(asked, {"meshrun": version("meshrun")}, plan=asked.plan)
    climbing.members = tuple(
        Member(place.rank, fleet.hosts[place.host], place.gpu, "simulated", kind="simulated")
        for place in fleet.places
    )
    outputs.check(asked.outputs, asked.save_baseline)
    refuse(asked, climbing.members)
    report = measured(climbing, fleet, progress(door), runner.tell)
    report = tell(report, asked, door)
    return EXIT[report.verdict.status]


def environment(world: World) -> dict[str, Any]:
    """What figures depend on, as rank 0 finds it. driver: of NVIDIA's kernel module."""
    driver = Path("/sys/module/nvidia/version")
    found = {"driver": driver.read_text().strip()} if driver.exists() else {}
    return runner.versions(world) | found | {"settings": recorded_environment(runner.environment())}


def refuse(asked: Asked, members: Sequence[Member]) -> None:
    """UserError for files that this fleet cannot be compared with or kept in, before anything is measured."""
    if asked.baseline is not None:
        baseline.check(asked.baseline, members, asked.simulate or "")
    if asked.save_baseline is not None:
        baseline.check_saving(asked.save_baseline)


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


def counters(world: World) -> ranks.Read:
    device, local = world.here.device, world.here.local
    return lambda: runner.read_counters(device.uuid if device.kind == "cuda" else None, local)


def leave(handler: runner.FailureHandler, climbing: Climbing, door: Any, world: World | None = None) -> None:
    """Tell and write what is known when rank 0 ends before its time. The process that started it tells it."""
    if handler.failed:
        status, why = handler.failed
        report = climbing.cut_short(sentence(why), guilty=status == EXIT["critical"])
    else:
        report = climbing.cut_short(FROM_OUTSIDE, guilty=False)
    if not note(handler, report) and world and not handler.failed and (dead := fallen(world)):
        report = climbing.cut_short(f"died: {'; '.join(dead)}", guilty=True)
    with suppress(runner.UserError):  # of files that were refused
        outputs.check(climbing.asked.outputs, climbing.asked.save_baseline)
        outputs.write(report, climbing.asked.outputs)
    if handler.status is None:
        clear(door)
        say(report, climbing.asked.nagios, door.colour)


def unopened(handler: runner.FailureHandler, asked: Asked, door: Any) -> None:
    """The same before ranks know each other."""
    leave(handler, Climbing(asked, {}), door)


def note(handler: runner.FailureHandler, report: Report) -> bool:
    """Keep the report for the process that started the ranks; whether that has it, and says why it ended."""
    return handler.status is not None and handler.status.save_answer(json_format.text(report))


@contextmanager
def watching(
    world: World, handler: runner.FailureHandler, asked: Asked
) -> Iterator[runner.MeasurementProgress]:
    """Where this rank is, watched: a rank that hangs ends the run and is named, in the report too."""
    if not asked.timeout:
        yield runner.MeasurementProgress()
        return

    def report(text: str) -> None:
        handler.report_single(runner.RunError(text), "", world.rank)

    names = [str(rank) for rank in world.ranks]
    dog = runner.Watchdog(
        world.control, names, asked.timeout, on_report=report, end=world.control.abort
    )  # fmt: skip
    for warning in dog.warnings if world.rank == 0 else ():
        runner.tell(f"warning: {warning}")
    try:
        yield dog
    finally:
        dog.stop()


def noting(handler: runner.FailureHandler, climbing: Climbing, told: Told) -> Told:
    """Before each rung the reports are written: a launcher may kill rank 0 for another rank's death."""

    def noted(rung: RungName) -> None:
        report = climbing.so_far(rung)
        note(handler, report)
        outputs.write(report, climbing.asked.outputs, last=False)
        told(rung)

    return noted


def progress(door: Any) -> Told:
    """A line on the terminal that the next one replaces; nothing where there is no terminal."""

    def told(rung: RungName) -> None:
        if door.columns:
            sys.stderr.write(f"{CLEAR}{rung}"[: door.columns + len(CLEAR) - 1])
            sys.stderr.flush()

    return told


def tell(report: Report, asked: Asked, door: Any) -> Report:
    """Write and tell; what is told: unknown, where a report cannot be written."""
    clear(door)
    if failed := outputs.write(report, asked.outputs):
        report = replace(report, verdict=unjudged(report.verdict, "; ".join(failed)))
        outputs.write(report, asked.outputs)
    say(report, asked.nagios, door.colour)
    return report


def clear(door: Any) -> None:
    """Remove the line of `progress`."""
    if door.columns:
        sys.stderr.write(CLEAR)
