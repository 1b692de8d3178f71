"""How many time steps one kernel takes, and how many lie between two halo exchanges: chosen here, for all.

A kernel knows how many steps it takes fastest (`TaskKernel.most_steps`): the compiler predicts or measures
them with its tuning, from the program, the device and the shape of a block. How many of them the task, its
partition and the run's options allow is decided here, alike on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from meshrun.runner.compiler.cuda.steps.layout import DEVICE_MEMORY, Choice
from meshrun.runner.plan.steps import halo_bytes, read_widths
from meshrun.runner.plan.task import Task

EXCHANGE = 8e-6  # seconds of an exchange between devices, without the time of its bytes
LINK = 3e11  # bytes per second that a device receives from its neighbours
KERNELS_BETWEEN = (1, 2, 4, 8)  # kernels between two exchanges that are considered
# The same for volumes, from Cahn-Hilliard and acoustic waves of 128^3 on two H200s.
SHORT_EXCHANGE = 5e-6  # seconds of an exchange
LATENCY = 4  # times as long as memory takes for the bytes of a cell: small fields have few threads
# The least that fewer exchanges must save, as part of the time in which memory reads and writes the fields:
# kernels of large fields hide exchanges.
WORTH = 0.1
HANDED_ON = 2  # steps between two exchanges, at most, with which fields share their blocks: see `_handed_on`


@dataclass(frozen=True)
class StepCounts:
    """How steps are grouped.

    per_kernel: steps that one kernel takes at most; 1: each step is a pass of its own. per_exchange: steps
    between two halo exchanges, of one kernel or several; where nothing is exchanged, of one. lowered: why
    per_exchange is fewer than what was asked for; "" if it is not. handed_on: the fields that share their two
    blocks with another, {before: now}; see `steps.blocks`. Their next values are not written. rivals: the
    choices of the kernel that the run measures (`steps.kernel_trial`), if there are several: the blocks have
    halos for the steps of each.
    """

    per_kernel: int
    per_exchange: int
    lowered: str = ""
    handed_on: Mapping[int, int] = field(default_factory=dict)
    rivals: tuple[Choice, ...] = ()

    @property
    def at_once(self) -> int:
        """Steps for which the fields are read and written once."""
        return min(self.per_kernel, self.per_exchange)


def choose_steps(
    task: Task,
    asked: int = 0,
    *,
    one_by_one: bool = False,
    one_copy: bool = False,
    on_device: bool = False,
    in_chunks: bool = False,
) -> StepCounts:
    """Return how the steps of a task are grouped.

    asked: steps between two exchanges; 0: as many as one kernel takes, or on a device as many kernels as take
    the least time. one_by_one: something is done before each step. one_copy: the fields are in memory once
    (`steps.blocks`). on_device: blocks are on a GPU. in_chunks: the fields are streamed: each chunk has cells
    that neighbours compute too, also beyond the array's ends.
    """
    kernel, grid = task.kernel, task.partition.grid

    # The steps of one kernel. In one copy, it computes bands, whose halo must be as wide as its steps.
    fused = 1
    if kernel is not None and not one_by_one and None not in task.job.feeds and not _mirrors_from_afar(task):
        bands = kernel.takes_rows and len(grid) > 1 and grid[0] > 1
        fused = kernel.most_steps if bands or not one_copy else 1
        if in_chunks and kernel.first_steps:
            fused = 1

    # Those between two exchanges: as asked, or the fastest.
    steps, lowered = asked or fused, ""
    limit = _steps_within_halo(task)
    around = _steps_around(task, fused)
    several = fused == 1 or (limit > 0 and not one_copy and _can_follow(task))
    if not asked and on_device and kernel is not None and several and not one_copy and not one_by_one:
        steps = _fastest_steps(task, fused)

    # Fewer if the function, the kernel or the smallest block allows only fewer.
    if one_copy and steps > 1 and kernel is None and "here" in task.job.services:
        steps, lowered = 1, "a function with `here` needs two copies of the fields"
    if fused < steps and not several:
        steps, lowered = fused, f"one kernel takes {fused} steps"
    if task.by_side and steps > 1:
        steps, lowered = 1, "the boundary differs by input, axis or side, and the function is not one kernel"
    elif 0 < limit < steps:
        lowered = f"the halo of {steps} steps is wider than the smallest block" if asked else ""
        steps = limit
    if 0 < around < steps:
        steps, lowered = around, f"the halo of {steps} steps reaches around the array"
    between = steps if limit or fused > 1 else 1
    single = fused == 1 and between <= HANDED_ON and not one_copy and not in_chunks
    rivals: tuple[Choice, ...] = ()
    if kernel is not None and fused == between > 1 and not (asked or one_copy or in_chunks):
        rivals = tuple(one for one in kernel.rivals if not 0 < limit < one.steps)
    if len(rivals) < 2:
        rivals = ()
    return StepCounts(fused, between, lowered, _handed_on(task) if single else {}, rivals)


def _handed_on(task: Task) -> Mapping[int, int]:
    """Return the fields that share their two blocks with another if steps are passes of their own.

    The halo of `before` is not exchanged. A step reads it only at the cells that it computes. Those of the
    first of two steps between two exchanges were computed by the first of the two steps before, or exchanged
    as `now`. The first of three steps would read more. Series are computed after the step, of what the fields
    were.
    """
    if task.kernel is None or not task.fills_in_place:
        return {}
    alike = {
        before: now
        for before, now in task.kernel.handed_on.items()
        if task.fields[before].shape == task.fields[now].shape
        and task.fields[before].partition == task.fields[now].partition
        and task.fields[before].subgrid == task.fields[now].subgrid
    }
    series = task.job.series_pass
    kept = series.inputs_read(task.feed_numbers) if series is not None else set[int]()
    return alike if len(alike.keys() - kept) == len(task.kernel.handed_on) else {}


def _steps_within_halo(task: Task) -> int:
    """Return the most steps between two exchanges: their halo must lie within the neighbouring block.

    A mirrored boundary needs one cell more. 0: no limit, as nothing is exchanged.
    """
    limits = []
    for length, parts, width in zip(task.shape, task.partition.grid, task.widths, strict=True):
        if parts > 1 and width != (0, 0):
            smallest = length // parts - task.mirrors
            limits.append(max(smallest // max(width), 1))
    return min(limits, default=0)


def _can_follow(task: Task) -> bool:
    """Return whether a kernel of several steps can follow another without an exchange.

    The first one must also compute cells that the second one needs of neighbours. On a device these are rows.
    """
    kernel = task.kernel
    assert kernel is not None
    return not kernel.takes_rows or (kernel.first_steps == 0 and max(task.partition.grid[1:], default=1) == 1)


def _steps_around(task: Task, fused: int) -> int:
    """Return the most steps between two exchanges for which a kernel of `fused` steps computes fewer rows
    than an array has whose ends meet: it takes as many rows for the whole array. 0: no limit.
    """
    kernel, parts, width = task.kernel, task.partition.grid[0], sum(task.widths[0])
    if kernel is None or not kernel.takes_rows or fused == 1 or parts == 1 or not width:
        return 0
    return fused + (task.shape[0] - -(-task.shape[0] // parts) - 1) // width if task.wraps_along(0) else 0


def _fastest_steps(task: Task, fused: int) -> int:
    """Return the steps between two exchanges that take the least time, as predicted, on a device.

    fused: steps of a kernel.

    An exchange takes `EXCHANGE` seconds beside the time of its bytes. For more steps these are as many times
    more, and more than that of a field of which a single step reads own cells only. With `steps` between two
    exchanges, a kernel computes (steps - fused) / 2 layers more per cell of the halo along each axis that is
    split. They are fewer than the block's own, so that an exchange may overlap with work.
    """
    region, kernel = task.partition[0], task.kernel
    assert kernel is not None
    # Several kernels of several steps are slower: Cahn-Hilliard of 512^2 takes 16 us a step on two H200s with
    # eight kernels between two exchanges, and 3 us with one. Nor do fields that share their blocks gain.
    kept = _handed_on(task)
    if fused > 1 or (kept and len(region.shape) > 2):
        return fused
    moved = task.input_bytes(region) + task.result_bytes(region)
    extra, most = 0.0, _steps_within_halo(task)
    for length, parts, width in zip(region.shape, task.partition.grid, task.widths, strict=True):
        if parts > 1 and length and width != (0, 0):
            extra += sum(width) * moved / length / DEVICE_MEMORY
            most = min(most, (length - 1) // sum(width))
    exchange, least = EXCHANGE, 0.0
    if len(region.shape) > 2:
        exchange, least, extra = SHORT_EXCHANGE, WORTH * moved / DEVICE_MEMORY, LATENCY * extra

    def seconds(steps: int) -> float:
        received = halo_bytes(task, region, steps, kept if steps <= HANDED_ON else ())
        return (exchange + received / LINK) / steps + (steps - fused) / 2 * extra

    choices = [fused * kernels for kernels in KERNELS_BETWEEN if kernels == 1 or fused * kernels <= most]
    best = min(choices, key=seconds)
    return best if seconds(fused) - seconds(best) > least else fused


def _mirrors_from_afar(task: Task) -> bool:
    """Return whether cells beyond the array may equal cells that are not beside a block.

    Such a block is smaller than its halo of one step, which is wider, or is filled further, on one side than
    on the other.
    """
    if task.boundary not in ("reflect", "mirror"):
        return False
    return any(
        parts > 1 and low != high and length // parts < max(low, high) + (task.boundary == "mirror")
        for widths in (task.widths, *read_widths(task, 1))
        for length, parts, (low, high) in zip(task.shape, task.partition.grid, widths, strict=False)
    )
