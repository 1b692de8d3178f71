"""What the record of every plan has: the job, its first input, the ranks and the machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshrun.runner.forecast.machine import Machine
from meshrun.runner.job.declaration import Job
from meshrun.runner.plan.task import ArrayType
from meshrun.runner.report.record import Record, envelope, plain, type_record

SCHEMA = 1


def plan_envelope(
    job: Job,
    parameters: Mapping[str, Any],
    array: ArrayType,
    machine: Machine,
    ranks: int,
    hosts: int,
    found: Record,
) -> Record:
    """Return a plan's record: what every plan has, and what was `found`. array: the job's first input."""
    about = {
        "job": job.name,
        "parameters": plain(job.described(dict(parameters))),
        **type_record(array),
        "ranks": ranks,
        "hosts": hosts,
        "machine": {
            "name": machine.name,
            "kind": "cuda" if machine.gpus else "cpu",
            "measured": machine.date or None,
            "host": machine.host or None,
        },
    }
    return envelope("plan", SCHEMA, about | found)
