"""`meshrun status`: what the ranks of runs on this host do now, asked from another terminal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from meshrun.runner.recorder.snapshot import RankSnapshot
    from meshrun.runner.world.metrics.families import RankReading
    from meshrun.runner.world.stuck.status import RunState


@click.command()
@click.argument("run", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print all facts as JSON.")
@click.option(
    "--last", type=click.IntRange(0, 1000), default=0, metavar="N", help="Also the last N operations."
)
def status(run: str | None, as_json: bool, last: int) -> int:
    """Show what each rank of your runs on this host is doing, and which rank waits for which.

    \b
    meshrun status                 all runs of this user on this host
    meshrun status 5f0c12 --last 5 one run, by the beginning of its id

    Reads the ranks' flight recorders and asks each rank for its line of Python, and NVML for what its GPU
    does; the runs continue. Exit status 0, or 1 if there is no such run.
    """
    from meshrun.runner.errors import RunError
    from meshrun.runner.world.stuck.status import running

    known = running()
    runs = [one for one in known if one.run_id.startswith(run or "")]
    if not runs:
        raise RunError(
            f"no run {run} of this user on this host" if run else "no run of this user on this host",
            expected=", ".join(one.run_id for one in known) or None,
            hint="meshrun status" if known else "meshrun status on a host of the run",
        )
    if as_json:
        from meshrun.runner.recorder.snapshot import to_json
        from meshrun.runner.world.metrics.families import families, plain

        shown = []
        for one in runs:
            ranks = [to_json(rank) for rank in one.ranks]
            shown.append({**one.about, "ranks": ranks, "metrics": plain(families(one.read_ranks()))})
        click.echo(json.dumps(shown))
        return 0
    for one in runs:
        _show(one, last)
    return 0


def _show(run: RunState, last: int) -> None:
    from meshrun.runner.report.table import table
    from meshrun.runner.report.units import counted, seconds_text
    from meshrun.runner.world.metrics.families import steps_taken

    click.echo(f"run {run.run_id}: {run.command}, {counted(run.size, 'rank')}, for {seconds_text(run.age)}")
    heads = ["rank", "process", "in", "for", "bytes", "operations", "at"]
    rows = [*map(_row, run.ranks)]
    readings = {reading.rank: reading for reading in run.read_ranks()}
    if any(steps_taken(reading.recording) for reading in readings.values()):
        heads += ["steps", "waited"]
        rows = [(*row, *_work(readings.get(rank.rank))) for row, rank in zip(rows, run.ranks, strict=True)]
    if any(rank.gpu is not None for rank in run.ranks):
        heads.append("GPU")
        rows = [(*row, _gpu(rank)) for row, rank in zip(rows, run.ranks, strict=True)]
    for line in table(heads, rows, left=range(len(heads))):
        click.echo(line)
    for line in run.remarks:
        click.echo(f"  {line}")
    for rank in run.ranks if last else ():
        click.echo(f"  rank {rank.rank}, last operations, latest first:")
        for operation in run.last_operations(rank.rank, last):
            took = "not left" if operation.left is None else seconds_text(operation.entered - operation.left)
            click.echo(f"    {seconds_text(operation.entered)} ago  {operation}  {took}")


def _row(rank: RankSnapshot) -> tuple[str, ...]:
    from meshrun.runner.report.units import bytes_text, seconds_text

    operation = rank.current
    return (
        str(rank.rank),
        rank.state,
        str(operation or "-"),
        seconds_text(operation.entered if operation else rank.idle),
        bytes_text(operation.moved) if operation and operation.moved else "-",
        f"{rank.total:,}",
        str(rank.at or "-"),
    )


def _work(reading: RankReading | None) -> tuple[str, str]:
    """Return the steps that a rank has taken, and its time in waits; "-" if it has ended meanwhile."""
    from meshrun.runner.report.units import seconds_text
    from meshrun.runner.world.metrics.families import steps_taken, waits

    if reading is None:
        return "-", "-"
    return f"{steps_taken(reading.recording):,}", seconds_text(sum(waits(reading.recording).values()))


def _gpu(rank: RankSnapshot) -> str:
    """Return a GPU's readings; "?" if there are none, for a reason that is told below."""
    from meshrun.runner.world.stuck.gpu_states import readings_text

    return "-" if rank.gpu is None else readings_text([rank.gpu]) or "?"
