"""Run a validation on all ranks, or rehearse it on a model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from meshrun import World
from meshrun.jobs.measure.record_file import recorded_environment
from meshrun.jobs.measure.status_line import StatusLine
from meshrun.jobs.measure.watchdog import watching
from meshrun.jobs.validate.baseline import compare as baseline
from meshrun.jobs.validate.health.alarms import with_not_judged
from meshrun.jobs.validate.health.hardware_limits import compute_limits, gather_facts
from meshrun.jobs.validate.health.known_rates import known_rates, simulated_facts, with_known, with_shares
from meshrun.jobs.validate.ladder.ladder import OnRung
from meshrun.jobs.validate.plan import QUICK_ON_CPUS, Plan, RungName, for_hosts
from meshrun.jobs.validate.probe import gather
from meshrun.jobs.validate.probe.api import Probe
from meshrun.jobs.validate.probe.buffers import fit_to_devices
from meshrun.jobs.validate.probe.gpu_places import nvml_place
from meshrun.jobs.validate.probe.rank_probe import open_probe
from meshrun.jobs.validate.report.formats import json as json_format
from meshrun.jobs.validate.report.model import Member, Report
from meshrun.jobs.validate.report.wording import headline
from meshrun.jobs.validate.run import outputs
from meshrun.jobs.validate.run.early_end import ENDED_FROM_OUTSIDE, one_line, print_report, process_start
from meshrun.jobs.validate.run.options import ValidateOptions
from meshrun.jobs.validate.run.progress import Progress
from meshrun.jobs.validate.run.validation import Validation, measure
from meshrun.jobs.validate.simulation.fleet import SimulatedFleet
from meshrun.jobs.validate.simulation.spec import parse_fleet
from meshrun.jobs.validate.verdict import EXIT, Status
from meshrun.runner.comm.collective_call import on_root
from meshrun.runner.errors import BadResult, RunError, UserError, tell
from meshrun.runner.recorder.process import process_state
from meshrun.runner.system import launcher
from meshrun.runner.system.counters.read import read_counters
from meshrun.runner.system.host_settings import Setting, host_settings
from meshrun.runner.world.failure import FailureHandler

LEAST_SECONDS = 1.0  # of the measurements of --quick on CPUs, even if the start has taken all of its time
GRACE = 0.5  # seconds for rank 0 to find dead ranks; launchers give a rank at least one second to end


def run(world: World, handler: FailureHandler, options: ValidateOptions, cli_context: Any) -> dict[str, Any]:
    """Measure and report. Returns the completion record.

    Collective. Raises BadResult on every rank unless the verdict is ok.
    """
    options = world.control.broadcast(options)
    world.on_root(lambda: outputs.check_writable(options.outputs, options.save_baseline))
    world.on_root(lambda: known_rates(options.rates))
    validation = Validation(options, run_environment(world))
    if world.rank == 0:
        handler.before_exit = lambda: report_early_end(handler, validation, cli_context, world)
        send_to_parent(
            handler, validation.early_report("the run ended before anything was measured", critical=False)
        )
    verdict: tuple[Status, str] | None = None
    uuid = world.here.device.uuid if world.here.device.kind == "cuda" else None
    number = None if uuid is None else nvml_place(uuid)[0]
    number = world.here.local if number is None else number
    with (
        watching(world, handler, options.timeout, failure=RunError) as progress,
        open_probe(world, progress, partial(read_counters, uuid, number)) as probe,
    ):
        validation.plan = fit_to_devices(world, for_hosts(options.plan, len(world.hosts)))
        if validation.plan.even_shares:
            left = max(validation.plan.seconds - (time.time() - process_start()), LEAST_SECONDS)
            validation.plan = replace(validation.plan, seconds=left)
        validation.notes += limits_of_cpus(validation.plan, options.plan)
        facts = gather_facts(world)
        settings = gather_settings(world, probe)
        if world.rank:
            handler.before_exit = stay_alive
            try:
                probe.follow()
            finally:
                handler.before_exit = None
        else:
            lines = Progress(cli_context.columns, validation.plan.rungs, silent=options.nagios)
            with probe.lead(), lines:
                validation.members = members_of(world, probe)
                validation.compare_settings(settings)
                known = known_rates(options.rates)
                models = [rank.device.name for rank in world.ranks]
                facts = [with_known(one, model, known) for one, model in zip(facts, models, strict=True)]
                validation.limits = with_shares(compute_limits(facts, probe.places), known)
                check_baseline(options, validation.members)
                on_rung = write_before_rung(handler, validation, lines.show)
                report = measure(validation, probe, on_rung, tell)
            handler.before_exit = None
            report = publish(report, options, cli_context)
            if handler.status is not None:
                handler.status.note_exit_status(EXIT[report.verdict.status])
                handler.status.save_answer("")
            verdict = report.verdict.status, headline(report)
    status, line = world.control.broadcast(verdict)
    if status != "ok":
        raise BadResult(line, EXIT[status])
    return {"command": "validate", "status": status, "ranks": world.size}


def limits_of_cpus(plan: Plan, asked: Plan) -> Iterator[str]:
    """Yield what cannot be detected with ranks on CPUs. plan: `asked`, for the ranks of this run."""
    if plan.even_shares:
        yield QUICK_ON_CPUS
    if plan.critical < asked.critical:
        sharing = f"{plan.ranks_per_core:.3g} ranks share a core, so " if plan.ranks_per_core > 1 else ""
        share = f"{100 * plan.critical:.0f} %"
        yield f"ranks on CPUs: {sharing}only a part below {share} of its siblings counts as slow"


def rehearse(options: ValidateOptions, cli_context: Any) -> int:
    """Measure and report the simulated fleet. Returns the exit status."""
    assert options.simulate is not None
    fleet = SimulatedFleet(parse_fleet(options.simulate))
    outputs.check_writable(options.outputs, options.save_baseline)
    report = measure_simulated(fleet, options, StatusLine(cli_context.columns).show, tell)
    report = publish(report, options, cli_context)
    return EXIT[report.verdict.status]


def rehearse_once(options: ValidateOptions, cli_context: Any) -> int:
    """Rehearse on rank 0 of the processes that a launcher has started; its exit status, or error, on all."""
    launched = launcher.detect_launcher()
    if launched is None or launched.size == 1 or launched.unconnected:
        return rehearse(options, cli_context)
    from meshrun.runner.comm.mpi import MpiComm

    return on_root(MpiComm(), lambda: rehearse(options, cli_context))


def measure_simulated(
    fleet: SimulatedFleet, options: ValidateOptions, on_rung: OnRung, on_round: Callable[[str], None]
) -> Report:
    """Measure a simulated fleet; parameters as of `measure`."""
    validation = Validation(
        options, {"meshrun": version("meshrun")}, plan=for_hosts(options.plan, len(fleet.hosts))
    )
    validation.members = tuple(
        Member(place.rank, fleet.hosts[place.host], place.gpu, "simulated", kind="simulated")
        for place in fleet.places
    )
    check_baseline(options, validation.members)
    known = known_rates(options.rates)
    facts = simulated_facts(fleet.places, known)
    validation.limits = with_shares(compute_limits(facts, fleet.places), known)
    return measure(validation, fleet, on_rung, on_round)


def run_environment(world: World) -> dict[str, Any]:
    """Return versions and settings that rates depend on, as seen by rank 0. driver: NVIDIA kernel module."""
    driver = Path("/sys/module/nvidia/version")
    found = {"driver": driver.read_text().strip()} if driver.exists() else {}
    return world.versions() | found | {"settings": recorded_environment(launcher.environment())}


def gather_settings(world: World, probe: Probe) -> dict[str, dict[Setting, str]]:
    """Gather the settings of all hosts, by name, on rank 0; elsewhere {}. Collective."""
    # The first rank of each host reads them.
    mine = None if world.here.local else [*host_settings().items()]
    found = gather.values(world.control, mine)
    return {
        probe.hosts[place.host]: {(part, what): value for (part, what), value in rows}
        for place, rows in zip(probe.places, found, strict=world.rank == 0)
        if rows is not None
    }


def check_baseline(options: ValidateOptions, members: Sequence[Member]) -> None:
    """Raise UserError if a baseline cannot be used with these members."""
    if options.baseline is not None:
        baseline.check(options.baseline, members, options.simulate or "")
    if options.save_baseline is not None:
        baseline.check_saving(options.save_baseline)


def members_of(world: World, probe: Probe) -> tuple[Member, ...]:
    return tuple(
        Member(
            place.rank,
            probe.hosts[place.host],
            place.gpu if place.number is None else place.number,
            device.name,
            device.uuid,
            device.bus_id,
            device.kind,
            place.nic,
        )
        for place, device in zip(probe.places, (rank.device for rank in world.ranks), strict=True)
    )


def report_early_end(
    handler: FailureHandler, validation: Validation, cli_context: Any, world: World | None = None
) -> None:
    """Write the report when rank 0 ends early; print it unless the parent process does."""
    if handler.failed:
        status, why = handler.failed
        report = validation.early_report(one_line(why), critical=status == EXIT["critical"])
    else:
        report = validation.early_report(ENDED_FROM_OUTSIDE, critical=False)
    if not send_to_parent(handler, report) and world and not handler.failed and (dead := dead_ranks(world)):
        report = validation.early_report(f"died: {'; '.join(dead)}", critical=True)
    with suppress(UserError):  # files that were refused earlier
        outputs.check_writable(validation.options.outputs, validation.options.save_baseline)
        outputs.write_files(report, validation.options.outputs)
    if handler.status is None:
        StatusLine(cli_context.columns).clear()
        print_report(report, validation.options.outputs, validation.options.nagios, cli_context.colour)


def report_before_world(handler: FailureHandler, options: ValidateOptions, cli_context: Any) -> None:
    """Report an early end before the world is open."""
    report_early_end(handler, Validation(options, {}), cli_context)


def send_to_parent(handler: FailureHandler, report: Report) -> bool:
    """Send the report to the process that started the ranks, which adds why the run ended.

    Returns whether there is such a process.
    """
    return handler.status is not None and handler.status.save_answer(json_format.text(report))


def write_before_rung(handler: FailureHandler, validation: Validation, show: OnRung) -> OnRung:
    """Return an `on_rung` that writes the reports first, in case a launcher kills rank 0 during the rung."""

    def on_rung(rung: RungName) -> None:
        report = validation.interim_report(rung)
        send_to_parent(handler, report)
        outputs.write_files(report, validation.options.outputs, last=False)
        show(rung)

    return on_rung


def publish(report: Report, options: ValidateOptions, cli_context: Any) -> Report:
    """Write the files and print the report; the verdict is at least unknown if a file cannot be written."""
    StatusLine(cli_context.columns).clear()
    if failed := outputs.write_files(report, options.outputs):
        report = replace(report, verdict=with_not_judged(report.verdict, "; ".join(failed)))
        outputs.write_files(report, options.outputs)
    print_report(report, options.outputs, options.nagios, cli_context.colour)
    return report


def dead_ranks(world: World) -> list[str]:
    """Return the full names of the ranks on this host whose processes have ended.

    Processes on other hosts are not visible; the launcher names them.
    """
    return [str(rank) for rank in world.beside if process_state(rank.pid) == "dead"]


def stay_alive() -> None:
    """Delay the end of a healthy rank, so that rank 0 does not count it as dead."""
    time.sleep(GRACE)
