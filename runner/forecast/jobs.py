"""Plan a job that exchanges arrays among all ranks, by the forecast that it declares (`forecast=`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshrun.runner.errors import UserError
from meshrun.runner.forecast.place import Place, Stage, place_of
from meshrun.runner.forecast.record import plan_envelope
from meshrun.runner.job.declaration import Job
from meshrun.runner.options.plan_options import PlanOptions
from meshrun.runner.plan.task import ArrayType
from meshrun.runner.report.record import Record, type_record


@dataclass(frozen=True)
class JobForecast:
    """A job's forecast. facts: what it chose, as in the record of its run. memory: bytes of a rank's arrays.
    shape, dtype: of the result. pieces: in which stages that overlap are cut: one of each is beside nothing.
    """

    shape: Sequence[int]
    dtype: str
    facts: Mapping[str, Any]
    memory: int
    stages: Sequence[Stage]
    pieces: int = 1

    @property
    def seconds(self) -> float:
        """Return the time of all stages, with files."""
        return sum(stage.seconds for stage in self.stages if not stage.beside) + self._beside

    @property
    def in_memory(self) -> float:
        """Return the time without files and copies between host and device."""
        files = ("read", "write", "to device", "from device")
        return self.seconds - sum(stage.seconds for stage in self.stages if stage.name in files)

    @property
    def _beside(self) -> float:
        times = [stage.seconds for stage in self.stages if stage.beside]
        if not times:
            return 0.0
        longest = max(times)
        return longest + (sum(times) - longest) / self.pieces


def plan_job(
    job: Job, arrays: Sequence[ArrayType], parameters: dict[str, Any], options: PlanOptions, whole: Place
) -> Record:
    """Return the forecast of a job as plain values, and of fewer ranks beside it.

    arrays: its inputs. whole: of all ranks. Raises UserError for what the job refuses.
    """
    ranks, local, given = whole.ranks, whole.ranks_of_host, job.complete(parameters)
    counts = [2**n for n in range(ranks.bit_length()) if 2**n < ranks] + [ranks]
    places = [
        place_of(whole.machine, options, count, -(-count // local), min(local, count)) for count in counts
    ]
    chosen = _forecast(job, arrays, given, places[-1])
    return plan_envelope(
        job,
        parameters,
        arrays[0],
        whole.machine,
        ranks,
        whole.hosts,
        {
            "inputs": {name: type_record(array) for name, array in zip(job.arrays, arrays, strict=True)},
            "result": {"shape": list(chosen.shape), "dtype": chosen.dtype},
            "facts": dict(chosen.facts),
            "memory": chosen.memory,
            "memory_limit": whole.memory,
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
            "by_ranks": [_row(job, arrays, given, place) for place in places],
        },
    )


def _forecast(job: Job, arrays: Sequence[ArrayType], given: dict[str, Any], place: Place) -> JobForecast:
    assert job.forecast is not None
    found: JobForecast = job.forecast(place, arrays, **given)
    return found


def _row(job: Job, arrays: Sequence[ArrayType], given: dict[str, Any], place: Place) -> Record:
    """Return the times on so many ranks, or why the job refuses them."""
    where = {"ranks": place.ranks, "hosts": place.hosts}
    try:
        found = _forecast(job, arrays, given, place)
    except UserError as refusal:
        return {**where, "refused": str(refusal).partition(":")[0]}
    exchange = sum(stage.seconds for stage in found.stages if stage.name == "exchange")
    return {
        **where,
        "memory": found.memory,
        "seconds": found.seconds,
        "in_memory_seconds": found.in_memory,
        "exchange_seconds": exchange,
    }
