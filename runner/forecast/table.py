"""A plan, and the rates of a machine, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshrun.runner.report.table import table
from meshrun.runner.report.units import bytes_text, counted, percent_text, rate_text, seconds_text
from meshrun.runner.spelling import option


def render(record: Mapping[str, Any]) -> str:
    """The record of a plan: of a map job, of time steps or of another job."""
    if "steps" in record:
        return _render_steps(record)
    if "facts" in record:
        return _render_job(record)
    stages = [
        (
            row["name"],
            row["of"],
            bytes_text(row["bytes"]) if row["bytes"] else "-",
            rate_text(row["rate"]) if row["rate"] else "-",
            row["source"],
            seconds_text(row["seconds"]),
        )
        for row in record["stages"]
    ]
    lines = [
        _headline(record),
        "",
        *table(("stage", "of a", "bytes", "rate", "from", "time"), stages, left=(0, 1, 4)),
        "",
        *_pieces(record),
        *_floor(record),
    ]
    if len(record["by_ranks"]) > 1:
        lines += ["", *_by_ranks(record)]
    return "\n".join([*lines, *(f"  {note}" for note in record.get("notes", ()))]) + "\n"


def _render_job(record: Mapping[str, Any]) -> str:
    """A plan of a job that exchanges arrays among all ranks."""
    beside = sum(row["beside"] for row in record["stages"]) > 1
    stages = [
        (
            row["name"] + (" *" if row["beside"] and beside else ""),
            bytes_text(row["amount"]) if row["unit"] == "bytes" else f"{row['amount']:.3g} {row['unit']}",
            rate_text(row["rate"]) if row["unit"] == "bytes" else f"{row['rate'] / 1e12:.3g} T/s",
            row["source"],
            seconds_text(row["seconds"]),
        )
        for row in record["stages"]
    ]
    share = percent_text(record["memory"] / record["memory_limit"])
    lines = [
        _headline(record),
        "",
        *(f"  {name}: {value}" for name, value in record["facts"].items()),
        f"  memory: {bytes_text(record['memory'])} of arrays on a rank, {share} of what it may use",
        "",
        *table(("stage of a rank", "amount", "rate", "from", "time"), stages, left=(0, 3)),
        *(["  * beside each other, in parts"] if beside else []),
        "",
        f"  floor in time: {seconds_text(record['seconds'])}; "
        f"without files: {seconds_text(record['in_memory_seconds'])}",
    ]
    if len(record["by_ranks"]) > 1:
        rows = [
            (str(row["ranks"]), str(row["hosts"]), row["refused"], "", "", "")
            if "refused" in row
            else (
                str(row["ranks"]),
                str(row["hosts"]),
                bytes_text(row["memory"]),
                seconds_text(row["exchange_seconds"]),
                seconds_text(row["in_memory_seconds"]),
                seconds_text(row["seconds"]),
            )
            for row in record["by_ranks"]
        ]
        heads = ("ranks", "hosts", "memory of one", "exchange", "without files", "time")
        lines += ["", *table(heads, rows)]
    notes = [f"  {note}" for note in record.get("notes", ())]
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def _render_steps(record: Mapping[str, Any]) -> str:
    """A plan of time steps."""
    gpu = record["machine"]["kind"] == "cuda"
    where = f"{counted(record['ranks'], 'rank')} on {counted(record['hosts'], 'host')}"
    if "inputs" in record:
        what = f"{_shape(record['shape'])} {record['dtype']}"
    else:
        what = f"{_shape(record['shape'][::-1])} cells of {record['dtype']}"
    enough = record["enough_ranks"] if gpu else record["enough_hosts"]
    least = f"{counted(enough, 'GPU' if gpu else 'host')} would do" if enough else ""
    share = percent_text(record["memory"] / record["memory_limit"])
    copies, other = ("one copy", "two copies") if record["copies"] == 1 else ("two copies", "one copy")
    word = other.split()[0]
    several = record["steps_per_kernel"]
    unit = f"{several} steps" if several > 1 else "step"
    rows = [
        ("memory of a rank", bytes_text(record["memory"]), f"{share} of what it may use; {least}"),
        ("bytes of a cell", f"{record['bytes_per_cell']:.1f}", f"with halos, {copies} of what steps change"),
        (
            f"in {other}",
            bytes_text(record["memory_by_copies"][word]),
            f"of a rank: {option('copies', word)}",
        ),
        ("steps", f"{record['steps']:,}", f"{several} in a kernel" if several > 1 else "one by one"),
    ]
    if record["operations"] is not None:
        rows.append(("operations of a cell and step", f"{record['operations']:,}", "outside branches"))
    rows += [
        (f"bytes of a rank and {unit}", bytes_text(record["moved_bytes"]), "read and written"),
        ("halos of a rank and step", bytes_text(record["exchange_bytes"]), "received from other ranks"),
        (
            "a step",
            seconds_text(record["step_seconds"]),
            f"at {rate_text(record['rate'])}, {record['rate_source']}",
        ),
        ("all steps", seconds_text(record["seconds"]), "floor: without halos, forces, frames and arithmetic"),
    ]
    grid = "x".join(map(str, record["grid"]))
    return (
        "\n".join(
            [
                f"{record['job']} on {what}: {where}, grid {grid} ({record['machine']['name']})",
                "",
                *table(("", "", ""), rows, left=(0, 2)),
                *([""] if record.get("notes") else []),
                *(f"  {note}" for note in record.get("notes", ())),
            ]
        )
        + "\n"
    )


def render_rates(rates: Mapping[str, float]) -> str:
    """Rates in bytes per second, by name."""
    rows = [(name, rate_text(rate)) for name, rate in rates.items()]
    return "\n".join(table(("measured", "rate"), rows)) + "\n"


def _headline(record: Mapping[str, Any]) -> str:
    machine = record["machine"]
    kind = machine["name"] if machine["kind"] == "cuda" else f"CPU, {machine['name']}"
    rates = (
        f"rates measured on {machine['host']}, {machine['measured']}"
        if machine["measured"]
        else "nominal rates"
    )
    *inputs, result = (
        f"{_shape(each['shape'])} {each['dtype']}" for each in (*record["inputs"].values(), record["result"])
    )
    arrays = f"{' and '.join(dict.fromkeys(inputs))} to {result}"
    where = f"{counted(record['ranks'], 'rank')} on {counted(record['hosts'], 'host')}"
    return f"{record['job']} on {arrays}: {where} ({kind}; {rates})"


def _pieces(record: Mapping[str, Any]) -> list[str]:
    memory = record["memory"]
    taken = f"{bytes_text(memory['host'])} of host memory"
    if record["machine"]["kind"] == "cuda":
        taken += f", {bytes_text(memory['device'])} of the GPU's"
    how = "in one piece"
    if record["streamed"]:
        rows = counted(record["chunk_rows"], "row")
        how = f"streamed, {counted(record['chunks'], 'chunk')} of {rows}, {record['depth']} under way at once"
    return [f"  each rank: {how}; {taken}"]


def _floor(record: Mapping[str, Any]) -> list[str]:
    limit = next(row for row in record["stages"] if row["name"] == record["limit"])
    rate = f", {rate_text(limit['rate'])} of a {limit['of']}" if limit["rate"] else ""
    parts = "one stage after another"
    if record["streamed"]:
        filled = seconds_text(record["fill_seconds"])
        parts = f"{seconds_text(limit['seconds'])}, and {filled} to fill the pipeline and empty it"
    start = seconds_text(record["start_seconds"])
    return [
        f"  floor in time: {seconds_text(record['seconds'])} ({parts}), after {start} to start",
        f"  limited by: {limit['name']}{rate} ({limit['source']})",
    ]


def _by_ranks(record: Mapping[str, Any]) -> list[str]:
    times = record["by_ranks"]
    rows = [
        (
            str(one["ranks"]),
            str(one["hosts"]),
            "streamed" if one["streamed"] else "one piece",
            seconds_text(one["seconds"]),
            seconds_text(one["seconds"] + one["start_seconds"]),
            one["limit"],
        )
        for one in times
    ]
    heads = ("ranks", "hosts", "as", "run", "with start", "limited by")
    return [*table(heads, rows, left=(2, 5)), "", f"  {_advice(record)}"]


def _advice(record: Mapping[str, Any]) -> str:
    ranks, fewest = record["ranks"], record["enough_ranks"]
    if fewest == ranks:
        return f"no smaller number of ranks is as fast as {ranks}"
    total = {one["ranks"]: one["seconds"] + one["start_seconds"] for one in record["by_ranks"]}
    few, many = (seconds_text(total[count]) for count in (fewest, ranks))
    thing = "GPU" if record["machine"]["kind"] == "cuda" else "rank"
    verb = "is" if fewest == 1 else "are"
    return f"{counted(fewest, thing)} {verb} enough: {few} with start, {many} with {ranks}"


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
