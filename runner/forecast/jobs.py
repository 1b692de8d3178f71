"""Plan a job that exchanges arrays among all ranks, by the forecast that it declares (`forecast=`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshrun.runner.errors import UserError
from meshrun.runner.forecast.machine import Machine
from meshrun.runner.forecast.model import limits_on
from meshrun.runner.forecast.place import JobForecast, Place, links_of
from meshrun.runner.forecast.record import plan_envelope
from meshrun.runner.job.declaration import Job
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.plan.task import ArrayType
from meshrun.runner.report.record import Record, type_record


def plan_job(
    job: Job,
    arrays: Sequence[ArrayType],
    parameters: dict[str, Any],
    machine: Machine,
    ranks: int,
    hosts: int,
    options: StreamOptions,
    exchange: float | None,
    network: float | None,
) -> Record:
    """Return the forecast of a job as plain values, and of fewer ranks beside it.

    options: only its limits of memory apply. exchange, network: GB/s of a rank to others of its host
    and of other hosts; None: nominal. Raises UserError for what the job refuses.
    """
    local = -(-ranks // hosts)

    def place(count: int) -> Place:
        beside = min(local, count)
        links = links_of(machine, beside, exchange, network)
        limits = limits_on(machine, options, beside)
        memory = limits.device if machine.gpus else limits.host
        return Place(machine, links, count, -(-count // local), memory)

    def forecast(count: int) -> JobForecast:
        assert job.forecast is not None
        found: JobForecast = job.forecast(place(count), arrays, **job.complete(parameters))
        return found

    chosen = forecast(ranks)
    counts = [2**n for n in range(ranks.bit_length()) if 2**n < ranks] + [ranks]
    return plan_envelope(
        job,
        parameters,
        arrays[0],
        machine,
        ranks,
        hosts,
        {
            "inputs": {name: type_record(array) for name, array in zip(job.arrays, arrays, strict=True)},
            "result": {"shape": list(chosen.shape), "dtype": chosen.dtype},
            "facts": dict(chosen.facts),
            "memory": chosen.memory,
            "memory_limit": place(ranks).memory,
            "stages": [
                {
                    "name": stage.name,
                    "amount": stage.amount,
                    "unit": stage.unit,
                    "rate": stage.rate.value,
                    "source": stage.rate.source,
                    "seconds": stage.seconds,
                    "beside": stage.beside,
                }
                for stage in chosen.stages
            ],
            "seconds": chosen.seconds,
            "in_memory_seconds": chosen.in_memory,
            "by_ranks": [_row(count, -(-count // local), forecast) for count in counts],
        },
    )


def _row(count: int, hosts: int, forecast: Any) -> Record:
    try:
        found: JobForecast = forecast(count)
    except UserError as refusal:
        return {"ranks": count, "hosts": hosts, "refused": str(refusal).partition(":")[0]}
    exchange = sum(stage.seconds for stage in found.stages if stage.name == "exchange")
    return {
        "ranks": count,
        "hosts": hosts,
        "memory": found.memory,
        "seconds": found.seconds,
        "in_memory_seconds": found.in_memory,
        "exchange_seconds": exchange,
    }
