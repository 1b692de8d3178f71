"""All ranks of a run compute by kernels, or none does."""

from __future__ import annotations

from collections.abc import Sequence

from meshrun.runner.compiler.decide import Fusion, common_fusion, fused_alone
from meshrun.runner.plan.task import Task
from meshrun.runner.world.world import World


def fused(world: World, task: Task, mode: str | None, arithmetic: str, steps: int = 1) -> tuple[Task, Fusion]:
    """Return the task with a kernel in place of its function, where every rank has one. Collective.

    mode, arithmetic, steps: as of `fused_alone`. Raises UserError on every rank if the mode is "require" and
    there is no kernel.
    """
    alone, fusion = fused_alone(world.backend.device, task, mode, arithmetic, steps)
    return agreed_kernel(world, task, alone, world.control.allgather(fusion), mode, steps)


def agreed_kernel(
    world: World, task: Task, alone: Task, fusions: Sequence[Fusion], mode: str | None, steps: int = 1
) -> tuple[Task, Fusion]:
    """Return the task that all ranks compute, and whether it has a kernel.

    Collective only for a kernel of several steps on GPUs, whose tuning rank 0 measures. task: without a
    kernel. alone: of this rank, by `fused_alone`; fusions: of all ranks. mode, steps: as of `fused_alone`.
    Raises UserError if the mode is "require" and there is no kernel.
    """
    without = common_fusion(task, mode, fusions)
    if without is not None:
        return task, without
    if steps > 1:
        from meshrun.runner.compiler.compiled import DeviceKernel

        shape, kernel = task.partition[0].shape, alone.kernel
        if isinstance(kernel, DeviceKernel):
            kernel.choice = world.on_root(lambda: kernel.measured(world.backend, shape, steps))
    return alone, fusions[world.rank]
