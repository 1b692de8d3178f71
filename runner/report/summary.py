"""The summary printed at the end of a run (stderr) and the job's result (stdout)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from meshrun.runner.errors import show
from meshrun.runner.report.record import Record
from meshrun.runner.report.table import table
from meshrun.runner.report.units import (
    bytes_text,
    cells_text,
    counted,
    figure,
    percent_text,
    rate_text,
    seconds_text,
)
from meshrun.runner.spelling import option

LINES_OF_WAITS = 3  # lines besides loops that are shown
COLUMNS = ("phase", "slowest rank", "fastest rank", "bytes", "GB/s a rank", "of limit")


def render(record: Record, *, brief: bool = False) -> str:
    """The summary as text. brief: without the table of phases and what explains the speed."""
    if brief:
        return "\n".join([_headline(record), *_longest_phase(record), *_notes(record, brief=True)]) + "\n"
    rows = [_row(record, name, phase) for name, phase in record["phases"].items()]
    lines = [_headline(record), "", *table(COLUMNS, rows), "", *_notes(record)]
    return "\n".join(lines) + "\n"


def render_comparison(rows: Sequence[Mapping[str, Any]]) -> str:
    """The times of a run's stages beside those of its forecast, whose rows are `rows`."""
    found = [
        (
            row["stage"],
            bytes_text(row["bytes"]) if row["bytes"] else "-",
            rate_text(row["bytes_per_second"]) if row["bytes_per_second"] else "-",
            "-" if row["forecast_seconds"] is None else seconds_text(row["forecast_seconds"]),
            seconds_text(row["seconds"]),
            "-" if row["fraction"] is None else percent_text(row["fraction"]),
        )
        for row in rows
    ]
    heads = ("stage", "bytes", "rate", "forecast", "measured", "forecast / measured")
    return "\n".join(table(heads, found)) + "\n"


def show_result(result: Any, stream: TextIO) -> None:
    """Write a job's result."""
    with contextlib.suppress(BrokenPipeError):  # the reader has closed the pipe (`| head -1`)
        show(result_text(result), stream)


def result_text(result: Any) -> str:
    """Return a job's result, one `name: value` per line; a value without a name is the `result`."""
    if result is None:
        return ""
    named = result if isinstance(result, dict) else {"result": result}
    return "".join(f"{name}: {value}\n" for name, value in named.items())


def _headline(record: Record) -> str:
    hosts, ranks = len(record["hosts"]), record["ranks"]
    kind = "GPU" if record["devices"][0]["kind"] == "cuda" else "CPU"
    shape = "x".join(map(str, record["shape"])) or "a single"
    array = f"{shape} {record['dtype']}" if record["dtype"] else counted(record["shape"][0], "image")
    return (
        f"{record['job']} on {array}: {counted(ranks, 'rank')} on {counted(hosts, 'host')} "
        f"({kind}), {seconds_text(record['seconds'])}"
    )


def _row(record: Record, name: str, phase: dict[str, Any]) -> tuple[str, ...]:
    rate, fraction = phase["bytes_per_second"], phase["fraction_of_limit"]
    return (
        name,
        f"{seconds_text(phase['seconds'])} {_place(record, phase['slowest_rank'])}",
        f"{seconds_text(phase['seconds_fastest'])} {_place(record, phase['fastest_rank'])}",
        bytes_text(phase["bytes"]) if phase["bytes"] else "-",
        figure(rate / 1e9) if rate else "-",
        f"{figure(100 * fraction)} %" if fraction else "-",
    )


def _place(record: Record, rank: int) -> str:
    device = record["devices"][rank]
    gpu = f":gpu{device['index']}" if device["kind"] == "cuda" else ""
    return f"({rank} {device['host']}{gpu})"


def _stream_notes(stream: Record) -> list[str]:
    if stream["rows"] is None:
        text = f"  {counted(stream['chunks'], 'image')}"
    else:
        text = f"  in {counted(stream['chunks'], 'chunk')} of {counted(stream['rows'], 'row')}"
    if stream["resumed"]:
        text += f", {stream['resumed']} of them finished by an earlier run"
    if taken := sum(stream["taken_over"]):
        text += f", {taken} taken over from slower ranks"
    return [text, f"  {stream['limited_by']}"]


def _step_notes(steps: Record, ranks: int) -> list[str]:
    taken = steps["steps"] - steps["first"]
    text = f"  {counted(steps['steps'], 'step')}"
    if steps["first"]:
        text += f", of which {steps['first']:,} by an earlier run"
    if steps["cells_per_second"]:
        each = steps["seconds"] / max(taken, 1)
        text += f", {seconds_text(each)} a step, {cells_text(steps['cells_per_second'])}"
    notes = [text]
    if steps["fraction_of_copy"]:
        notes.append(
            f"  {figure(steps['bytes_per_second'] / 1e9)} GB/s a rank, "
            f"{figure(100 * steps['fraction_of_copy'])} % of a copy's "
            f"{figure(steps['copy_bytes_per_second'] / 1e9)}, fields read and written once a step"
        )
    if steps.get("steps_per_kernel", 1) > 1:
        notes.append(
            f"  {counted(steps['steps_per_kernel'], 'step')} in each kernel, between one read and one write"
        )
    if steps.get("kernel_choice"):
        notes += _choice_notes(steps["kernel_choice"])
    if steps.get("copies") == 1:
        notes.append(f"  fields in memory once ({option('copies', 'one')})")
    if steps["passes"]:
        each = counted(steps["steps_per_exchange"], "step")
        several = "es" if steps["passes"] > 1 else ""
        notes.append(f"  {steps['passes']:,} pass{several} over the chunks, {each} in each")
    if ranks > 1 and steps["exchanges"]:
        between = steps["steps_per_exchange"]
        text = (
            f"  {counted(steps['exchanges'], 'halo exchange')}, one after {counted(between, 'step')}, "
            f"{bytes_text(steps['exchange_bytes'])} a rank each"
        )
        if steps["exchange_fraction"] is not None:
            text += f", {figure(100 * steps['exchange_fraction'])} % of the loop's time"
        notes.append(text)
        notes += _halo_notes(steps)
    return notes


def _choice_notes(choice: Record) -> list[str]:
    """Say how the kernel of several steps was chosen, unless it was predicted, as in most runs."""
    notes = []
    if choice["ignored"]:
        notes.append(f"  {choice['ignored']} does not keep a choice for this kernel, and is ignored")
    if choice["source"] == "kept":
        notes.append("  kernel: the fastest that an earlier run measured")
    elif choice["source"] == "measured":
        text = f"  kernel: measured, {choice['compared']} of {choice['rivals']} choices"
        notes.append(f"{text}, {choice['speedup']:.2f} times as fast as the predicted one")
    return notes


def _step_results(steps: Record) -> list[str]:
    """Say why the steps ended, and what was written between them."""
    notes = []
    if steps["until"]:
        notes += _until_notes(steps["until"])
    if steps["checkpoints"]:
        notes.append(f"  {counted(steps['checkpoints'], 'checkpoint')} written")
    if steps["frames"]:
        text = f"  {counted(steps['frames'], 'frame')} written"
        text += f", from step {steps['first_frame']:,} on" if steps["first_frame"] else ""
        if merged := steps["merged_frames"]:
            kept = steps["frames"] - merged
            text += f"; {kept:,} in the file, which stores equal frames in a row once and shows them longer"
        notes.append(text)
    return notes


def _loop_note(loop: Record, waited: Mapping[int, float], *, of_steps: bool) -> str:
    """Say how often a loop of the function ran, and how long the host waited for its condition.

    waited: seconds, by the line of the loop.
    """
    text = f"  loop in line {loop['line']}: {counted(loop['iterations'], 'iteration')}"
    if of_steps:
        text += f", {loop['last']:,} of them the last time"
    if loop["waits"]:
        text += f"; line {loop['line']} waits for a value in each of its iterations"
    if loop["line"] in waited:
        text += f", {seconds_text(waited[loop['line']])} in all"
    return text


def _wait_notes(record: Record) -> list[str]:
    """Say which other lines of the program waited for values, and how long: those that did for longest."""
    loops = {loop["line"] for loop in record.get("loops", ())}
    others = [one for one in record.get("waits", ()) if one["file"] or one["line"] not in loops]
    return [
        f"  line {one['line']}{' of ' + Path(one['file']).name if one['file'] else ''} waited for "
        f"{counted(one['times'], 'value')}, {seconds_text(one['seconds'])} in all"
        for one in others[:LINES_OF_WAITS]
    ]


def _slow_notes(record: Record) -> list[str]:
    """Say which parts have made a watched run slower."""
    notes = []
    for part in record.get("slow", ()):
        longer = f"made each step {part['delay']:.0%} longer"
        notes.append(f"  slow: {part['part']} {longer}: {part['kind']}, {part['evidence']}")
    if record.get("slow") == []:
        notes.append("  watched: no rank, GPU or host was slow")
    return notes


def _until_notes(until: Record) -> list[str]:
    """Say whether the run ended before its last step."""
    change, tolerance = until["change"], f"{until['tolerance']:.3g}"
    if "field" not in until:
        names = ", ".join(until["fields"])
        if change is None:
            return [
                f"  not known whether a step changes {names} by at most {tolerance}: none was checked "
                f"({option('every', metavar='N')})"
            ]
        verdict = "reached" if until["reached"] else "not reached"
        return [f"  largest change {change:.3g} in a step, of {names}: {tolerance} {verdict}"]
    over, name = counted(until["over"], "step"), until["field"]
    if change is None:
        return [f"  not known to be steady: the {name} is compared every {over}; take more steps"]
    changed = f"the {name} changed by {change:.3g} of itself in {over}"
    if until["reached"]:
        return [f"  steady: {changed}, at most {tolerance}"]
    return [
        f"  not steady: {changed}, more than {tolerance}",
        "  it needs more steps, or never becomes steady: a wake that sheds vortices does not",
    ]


def _fusion_notes(fused: Record) -> list[str]:
    if fused["compiler"]:
        operations = counted(fused["operations"], "operation")
        return [f"  one kernel by {fused['compiler']}: {operations} for each cell"]
    if fused["quiet"]:
        return []
    place = f"line {fused['line']} " if fused["line"] else ""
    hint = f"; write {fused['hint']}" if fused["hint"] else ""
    return [f"  not one kernel: {place}{fused['why']}{hint}"]


def _halo_notes(steps: Record) -> list[str]:
    """Say how halos were exchanged, where it is not the only way."""
    if steps["halo"] == "direct":
        text = "  halos stored into the neighbours' memory"
        if steps["exchange_fraction"] is None:
            text += " by the kernels that compute them"
        if steps["graph"]:
            text += "; steps in CUDA graphs"
        if steps["graph_reason"]:
            text += f"; each step launched by itself: {steps['graph_reason']}"
        return [text]
    if steps["halo"] in ("nccl", "staged"):
        return [f"  halos by messages ({steps['halo']}), not stored directly: {steps['halo_reason']}"]
    return []


def _checksum_notes(found: Record) -> list[str]:
    which = "1 in 64" if found["mode"] == "sample" else "all"
    if not found["messages"]:
        return [f"  checksums ({which}): no message between ranks was checked"]
    arrays = f"{counted(found['messages'], 'message')} between ranks, {bytes_text(found['bytes'])}"
    return [f"  checksums ({which}): {arrays}, arrived as sent"]


def _longest_phase(record: Record) -> list[str]:
    """Say which phase took longest, and how to see the others; nothing for a run without phases."""
    if not record["phases"]:
        return []
    name, phase = max(record["phases"].items(), key=lambda item: float(item[1]["seconds"]))
    return [f"  longest phase: {name}, {seconds_text(phase['seconds'])} (-v shows all of them)"]


def _notes(record: Record, *, brief: bool = False) -> list[str]:
    notes = [] if brief else _speed_notes(record)
    if record.get("fused") and not (brief and record["fused"]["compiler"]):
        notes += _fusion_notes(record["fused"])
    if record.get("stages"):
        numbers = list(map(str, record["stages"]))
        has = f"line {numbers[0]} has" if len(numbers) == 1 else f"lines {' and '.join(numbers)} are"
        whole = "step" if record.get("steps") else "pass"
        notes += [
            f"  {has} stages of a {whole}: beyond the edges, a stage is made from cells that the boundary",
            f"  {record['boundary']} made before the {whole}; docs/steps.md: steps of several stages",
        ]
    for name, nbytes in (record.get("held_whole") or {}).items():
        notes.append(f"  {name}: {bytes_text(nbytes)} on every rank")
    if record.get("split_dependent"):
        notes.append("  split-dependent: other ranks, chunks or memory may give other numbers")
    if not brief and record["plan"] and record["plan"][-1]["source"].startswith("measured"):  # not a guess
        notes += ["", *("  " + line for line in render_comparison(record["plan"]).splitlines()), ""]
    if record.get("steps"):
        speed = _step_notes(record["steps"], record["ranks"])
        notes += [*(speed[:1] if brief else speed), *_step_results(record["steps"])]
    waited = {one["line"]: one["seconds"] for one in record.get("waits", ()) if not one["file"]}
    of_steps = bool(record.get("steps"))
    notes += [_loop_note(one, waited, of_steps=of_steps) for one in record.get("loops", ())]
    notes += _wait_notes(record)
    notes += _slow_notes(record)
    if record["stream"]:
        notes += _stream_notes(record["stream"])
    if record.get("checksum"):
        notes += _checksum_notes(record["checksum"])
    if record["verify"]:
        check = record["verify"]
        plural = "" if check.get("boxes") == 1 else "es"
        seen = f", {check['cells']:,} cells in {check['boxes']:,} box{plural}" if "cells" in check else ""
        notes.append(f"  verified ({check['mode']}{seen}) against {check['against']}")
    if record["output"]:
        notes.append(f"  wrote {', '.join(one['path'] for one in record['outputs'])}")
    return notes


def _speed_notes(record: Record) -> list[str]:
    """Say what the rates of the table are compared with."""
    notes = []
    limits = {
        phase["limit_source"]: f"{phase['limit_bytes_per_second'] / 1e9:.0f} GB/s ({phase['limit_source']})"
        for phase in record["phases"].values()
        if phase["limit_source"]
    }
    if limits:
        notes.append(f"  limit: {', '.join(limits.values())}, read plus written")
    if record["overlap"]:
        notes.append("  the exchange overlapped the kernel and is included in its time")
    return notes
