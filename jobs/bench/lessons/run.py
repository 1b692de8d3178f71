"""One lesson measured, shown and recorded, by its ranks."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import runner
from jobs.bench.lessons import show
from jobs.bench.lessons.protocol import Lesson, Stage
from jobs.measure.exit_codes import NeedsGpu, WrongResults
from jobs.measure.record_file import create_outputs, recorded_environment
from jobs.measure.status_line import CLEAR
from runner import Box, World


@dataclass(frozen=True)
class Asked:
    """The command's words."""

    name: str
    samples: int
    check: bool
    sizes: tuple[int, int]
    options: dict[str, Any]
    output_file: str | None = None
    plot: str | None = None


def lesson_of(name: str) -> Any:
    """The module of a lesson."""
    return importlib.import_module(f"jobs.bench.lessons.{name}.lesson")


def run(world: World, ending: runner.Ending, asked: Asked, door: Any) -> dict[str, Any]:
    """Measure; the completion record. Raises WrongResults, after all is shown."""
    asked = world.control.broadcast(asked)
    module = lesson_of(asked.name)
    _refuse(world, module, asked)
    path = world.once(lambda: create_outputs(asked.output_file, asked.plot))
    box = _box(world)
    try:
        stage = Stage(
            world,
            box,
            world.here.device.index,
            asked.samples,
            asked.check,
            *asked.sizes,
            asked.options,
            _progress if world.rank == 0 and door.columns else lambda doing: None,
        )
        lesson: Lesson = module.measure(stage)
    finally:
        if box is not None:
            box.close()
    if world.rank == 0:
        if door.columns:
            sys.stderr.write(CLEAR)
        sys.stdout.write(show.text(lesson))
        if path is not None:
            runner.write_file(Path(path), show.record(lesson, recorded_environment(runner.environment())))
        if asked.plot:
            show.draw(lesson, asked.plot)
    nothing = world.control.broadcast(not any(table.rows for table in lesson.tables))
    if nothing:
        raise runner.UserError(f"{asked.name}: nothing was measured", hint="smaller ones", everywhere=True)
    wrong = world.control.broadcast(lesson.wrong)
    if wrong:
        raise WrongResults(f"{asked.name}: " + "; ".join(wrong[:4]), everywhere=True)
    return {"command": "bench memory", "lesson": asked.name, "ranks": world.size}


def _box(world: World) -> Box | None:
    return runner.open_box() if world.here.device.kind == "cuda" else None


def _refuse(world: World, module: Any, asked: Asked) -> None:
    if world.here.device.kind != "cuda" and not module.CPU:
        raise NeedsGpu(
            f"bench memory {asked.name} needs a GPU, and this is a CPU",
            hint="meshrun doctor says which GPUs there are",
            everywhere=True,
        )
    if module.RANKS == "one" and world.size > 1:
        raise runner.UserError(
            f"bench memory {asked.name} looks at one GPU",
            got=f"{world.size} ranks",
            expected="one rank",
            hint=f"meshrun bench memory {asked.name}",
            everywhere=True,
        )
    if module.RANKS == "several" and world.size == 1:
        raise runner.UserError(
            f"bench memory {asked.name} is between ranks",
            got="1 rank",
            hint=f"meshrun -n 2 bench memory {asked.name}",
            everywhere=True,
        )


def _progress(doing: str) -> None:
    sys.stderr.write(f"{CLEAR}{doing}")
    sys.stderr.flush()
