"""Run one operation with every algorithm and protocol of NCCL, and find what is faster than its own choice.

Each setting gets its own communicator, for which NCCL reads NCCL_ALGO and NCCL_PROTO again: no process has to
be started. All settings are measured once in every round, because clocks and neighbours change over time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from meshrun import World
from meshrun.jobs.bench.collectives.commands.run import check_files
from meshrun.jobs.bench.collectives.config import BenchOptions
from meshrun.jobs.bench.collectives.measure import kinds, sweep
from meshrun.jobs.bench.collectives.output import tuning as output
from meshrun.jobs.bench.collectives.output.reader import RowKey
from meshrun.jobs.bench.collectives.output.screen import Screen
from meshrun.jobs.bench.collectives.output.tuning import OWN, TuningSweep
from meshrun.jobs.bench.collectives.results import Header, ResultRow
from meshrun.jobs.bench.collectives.session import Bench, check_gpus, colors_of, opened
from meshrun.jobs.bench.collectives.timing import bound_call
from meshrun.jobs.measure.exit_codes import WrongResults
from meshrun.jobs.measure.record_file import open_record
from meshrun.jobs.measure.watchdog import watching
from meshrun.runner.comm.collectives.api import NcclTuning
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.world.failure import FailureHandler

ROUNDS = 4  # without -N
FEWEST_ROUNDS = 3  # fewer tell little about noise
WRONG_DATA = "wrong data"
NCCL_FAILED = 3  # exit status of NCCL's errors
PREFIXES = 22400  # the first NCCL with "allreduce:tree": a setting for one operation

# The kernels of NCCL 2.28 (src/device/generate.py): algorithms by operation, and those with all protocols.
ALGORITHMS = {
    "all_reduce": ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree"),
    "all_gather": ("Ring", "PAT", "NVLS", "CollNetDirect"),
    "reduce_scatter": ("Ring", "PAT", "NVLS", "CollNetDirect"),
    "broadcast": ("Ring",),
    "reduce": ("Ring",),
}
PROTOCOLS = {"Tree": ("LL", "LL128", "Simple"), "Ring": ("LL", "LL128", "Simple")}


def run(world: World, handler: FailureHandler, options: BenchOptions, cli_context: Any) -> dict[str, Any]:
    """Measure every setting; returns the completion record. Raises WrongResults after all is measured."""
    options = world.control.broadcast(options)
    screen = Screen(world.rank == 0, options, cli_context.colour, cli_context.columns)
    operations = tunable(options)
    check_gpus(
        world,
        "--sweep-tuning varies NCCL's algorithms, which need GPUs",
        "without --sweep-tuning, or with --device cuda",
    )
    world.on_root(lambda: check_files(options))
    record_file = open_record(world, options.output_file, screen.line)
    judged = []
    for operation in operations:
        measured = measure_tunings(world, handler, options, operation, screen)
        found = output.verdicts(measured)
        judged.append((measured, found))
        screen.line(output.render(measured, found))
        document = {"program": "tuning", "operations": [output.document(*one) for one in judged]}
        record_file.write(partial(json.dumps, document), last=True)
    record_file.close()
    if options.plot and world.rank == 0:
        output.draw(judged, options.plot)
    wrong = [
        f"{measured.operation}: {output.name(tuning)}: {why}"
        for measured, _ in judged
        for tuning, why in measured.refused.items()
        if why.startswith(WRONG_DATA)
    ]
    if wrong:
        raise WrongResults("; ".join(wrong), everywhere=True)
    return {"command": "bench --sweep-tuning", "operations": list(operations), "ranks": world.size}


def tunable(options: BenchOptions) -> tuple[str, ...]:
    """Return the operations to which NCCL's algorithms apply. Raises UserError for none, or other options."""
    found = tuple(name for name in options.operations if name in ALGORITHMS)
    if not found:
        raise UserError(
            "--sweep-tuning: this operation consists of messages, for which NCCL has no algorithms",
            got=", ".join(options.operations),
            expected=", ".join(ALGORITHMS),
            everywhere=True,
        )
    cycles = options.settings.run_cycles
    if cycles != 1 and cycles < FEWEST_ROUNDS:
        raise UserError(
            "--sweep-tuning measures -N rounds, and fewer tell too little about noise",
            got=f"-N {cycles}",
            expected=f"at least {FEWEST_ROUNDS}, or none for {ROUNDS}",
            everywhere=True,
        )
    return found


def candidates(operation: str, channels: Sequence[int], library: int) -> list[NcclTuning]:
    """Return the settings of an operation, without NCCL's own choice; library: NCCL's version, as 22809.

    Later versions get them for this operation only, so that what is set in the end is what was measured.
    """
    prefix = operation.replace("_", "") + ":" if library >= PREFIXES else ""
    pairs = [
        (f"{prefix}{algorithm}", f"{prefix}{protocol}")
        for algorithm in ALGORITHMS[operation]
        for protocol in PROTOCOLS.get(algorithm, ("Simple",))
    ]
    found = [NcclTuning(algorithm, protocol) for algorithm, protocol in pairs]
    found += [NcclTuning(channels=count) for count in channels]
    return found + [NcclTuning(*pair, count) for count in channels for pair in pairs]


def measure_tunings(
    world: World, handler: FailureHandler, options: BenchOptions, operation: str, screen: Screen
) -> TuningSweep:
    """Measure all settings in every round, each round from another one on; collective."""
    cycles = options.settings.run_cycles
    rounds = ROUNDS if cycles == 1 else cycles
    settings = replace(options.settings, run_cycles=1)
    options = replace(
        options, settings=settings, show_tuning=True, names=False, wide=False, wires=False,
        output_file=None, json_lines=None, csv=None, plot=None,
    )  # fmt: skip
    header, rows, _ = measure_one(world, handler, options, operation, OWN)
    assert header is not None
    result = TuningSweep(operation, header.backend)
    record_rows(result, OWN, rows)
    waiting = candidates(operation, options.channels, header.library)
    done, total = 1, rounds * (len(waiting) + 1)
    for number in range(rounds):
        usable = [OWN, *(tuning for tuning in waiting if tuning not in result.refused)]
        start = number % len(usable)
        for tuning in [*usable[start:], *usable[:start]]:
            if number == 0 and tuning == OWN:
                continue  # measured above
            screen.progress(f"{operation}, {output.name(tuning)}", done, total)
            done += 1
            _, rows, refusal = measure_one(world, handler, options, operation, tuning)
            if refusal:
                result.refused[tuning] = refusal
                result.seconds.pop(tuning, None)
            else:
                record_rows(result, tuning, rows)
    return result


def record_rows(result: TuningSweep, tuning: NcclTuning, rows: Sequence[ResultRow]) -> None:
    for row in rows:
        key = RowKey(row.size, row.count, row.datatype, row.reduction, row.root)
        placed = row.out_of_place
        result.seconds.setdefault(tuning, {}).setdefault(key, []).append(placed.seconds)
        if tuning == OWN:
            result.gigabytes[key] = placed.busbw * placed.seconds
            result.choices[key] = placed.choices or ()


def measure_one(
    world: World, handler: FailureHandler, options: BenchOptions, operation: str, tuning: NcclTuning
) -> tuple[Header | None, list[ResultRow], str]:
    """Measure one setting in a communicator of its own; also returns why it cannot be used, or "".

    Collective. Raises what NCCL's own choice fails with.
    """
    colors = colors_of(world, options)
    with watching(world, handler, options.settings.timeout) as progress, ExitStack() as stack:
        session = opened(world, world.control, options, operation, progress, colors, tuning)
        try:
            header, bench = (entered := stack.enter_context(session)).header, entered.bench
            world.collective_call(lambda: attempt(bench))
        except RunError as failure:
            if tuning == OWN or failure.exit_code != NCCL_FAILED:
                raise
            return None, [], str(failure.why or failure.got)
        rows = list(sweep(bench))
        failures = sum(world.control.allgather(bench.failures))
        wrong = f"{WRONG_DATA}, in {failures} checks on single ranks" if failures else ""
        return header, rows, wrong or other_choice(tuning, rows)


def attempt(bench: Bench) -> None:
    """Make a call of each type and reduction. Raises RunError where NCCL has no such kernel."""
    bench.progress.begin(f"attempting {bench.operation.name}")
    for point in kinds(bench):  # of the largest size: small ones may be rounded to nothing
        bench.group.issue([bench.group.bind(bound_call(bench, point, 0))])
        bench.group.wait()
    bench.progress.done()


def other_choice(tuning: NcclTuning, rows: Sequence[ResultRow]) -> str:
    """Say what NCCL used in place of the setting; "" if it followed, or if its log says nothing."""
    wanted = output.plain(tuning)
    for row in rows:
        for one in row.out_of_place.choices or ():
            for asked, used in ((wanted.algorithm, one.algorithm), (wanted.protocol, one.protocol)):
                if asked is not None and asked != used:
                    return f"NCCL used {one.algorithm}/{one.protocol} for {row.size} B"
    return ""
