"""What a run is told, and what it has at hand while it is under way."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.declaration import Job
from runner.ending import Ending
from runner.inputs import Inputs
from runner.pipeline import Progress
from runner.storage import Form, Source
from runner.stream.dealt import Show, unseen
from runner.stream.options import StreamOptions
from runner.timing import Phases
from runner.world import DeviceChoice, World

VERIFY = ("off", "sample", "full")


@dataclass(frozen=True)
class Options:
    """What the command's options of these names say.

    overlap: None for what suits the device. boundary, cval: None for what the job declares. form: of a
    file without a header. stream: of a run in chunks. rates: the file of this machine's measured ones.
    """

    device: DeviceChoice = "auto"
    json: str | None = None
    verify: str = "off"
    grid: str | None = None
    boundary: str | None = None
    cval: float | None = None
    overlap: bool | None = None
    oversubscribe: bool = False
    debug: bool = False
    form: Form | None = None
    stream: StreamOptions = field(default_factory=StreamOptions)
    rates: Path | None = None


@dataclass
class Run:
    """A run under way."""

    world: World
    job: Job
    parameters: dict[str, Any]
    source: Source
    target: Path | None
    options: Options
    ending: Ending
    progress: Progress
    phases: Phases
    show: Show = unseen
    inputs: Inputs = field(default_factory=Inputs)
