"""Whether a run is streamed, as its ranks decide together."""

from __future__ import annotations

from pathlib import Path

from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.plan.chunking import is_too_large
from meshrun.runner.plan.task import Task
from meshrun.runner.run.map_run import streamed_results
from meshrun.runner.run.prepare import limits
from meshrun.runner.storage.formats.registry import Source
from meshrun.runner.world.world import World


def streamed(
    world: World,
    task: Task,
    source: Source,
    options: StreamOptions,
    target: Path,
    *,
    keep_whole: bool = False,
) -> bool:
    mine, on_device = False, world.backend.asynchronous
    if options.named is None:
        block = task.partition[world.rank]
        mine = is_too_large(task, block, limits(world, options), asynchronous=on_device)
    too_large = any(world.control.allgather(mine))

    def decide() -> bool:
        results = streamed_results(
            world, task, [source], [target], options, too_large=too_large, keep_whole=keep_whole
        )
        return results is not None

    return world.on_root(decide)
