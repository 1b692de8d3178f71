"""Options of one validation."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from meshrun.jobs.validate.plan import Plan
from meshrun.jobs.validate.run.outputs import Outputs


@dataclass(frozen=True)
class ValidateOptions:
    """plan: before it is fitted to memory and time. budget, soak: seconds; None is no limit, and one climb.

    simulate: a fleet as `simulation.spec.parse_fleet` reads it; None for real machines. timeout: seconds that
    a rank may take without progress; 0 is no limit. rates: a site's known
    rates, beside the library's. nagios: print one line. words: the command line as typed.
    """

    plan: Plan
    budget: float | None = None
    soak: float | None = None
    simulate: str | None = None
    baseline: Path | None = None
    save_baseline: Path | None = None
    rates: Path | None = None
    outputs: Outputs = field(default_factory=Outputs)
    nagios: bool = False
    timeout: float = 60.0
    words: tuple[str, ...] = ()
