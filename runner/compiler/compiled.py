"""Compile a program to a kernel that a task calls in place of its function: on a GPU or on the host."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from meshrun.runner.compiler.cpp import host
from meshrun.runner.compiler.cpp import source as host_source
from meshrun.runner.compiler.cuda.beyond import NO_SIDES, Sides
from meshrun.runner.compiler.operations import compiler_options, inexact_operations, line_of
from meshrun.runner.compiler.passes.real_parts import in_real_parts
from meshrun.runner.compiler.step_state import Feeds, Rows, StepState
from meshrun.runner.compiler.trace.graph import (
    Extents,
    Program,
)
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.device.api import Backend
from meshrun.runner.region import Array, Shape
from meshrun.runner.system.cached_files import cache_folder
from meshrun.runner.system.compiler import NotCompiled, find_compiler

if TYPE_CHECKING:
    from meshrun.runner.compiler.device_kernel import DeviceKernel
    from meshrun.runner.compiler.whole.chain_code import Chain
    from meshrun.runner.compiler.whole.point_code import DevicePoints, HostPoints, PointSet

CHAIN_THREADS = 512  # of the block that computes a chain of stages on a GPU; each has up to 128 registers
STAGE_THREADS = 128  # of each block that computes the boxes of one stage


@dataclass
class HostKernel:
    """Loops of a program, on one processor.

    widths: of the blocks' halo, per grid axis. loops: compiled; None for a forecast, which calls none.
    """

    program: Program
    widths: Extents
    loops: host.HostProgram | None = None
    aligned: ClassVar[bool] = False
    takes_rows: ClassVar[bool] = False
    capturable: ClassVar[bool] = False
    sends: ClassVar[bool] = False
    stores_beyond: ClassVar[bool] = False
    finds_ends: ClassVar[Sequence[int]] = ()
    first_steps: ClassVar[int] = 0
    rivals: ClassVar[tuple[Any, ...]] = ()
    handed_on: ClassVar[Mapping[int, int]] = {}

    def without_handed_on(self) -> HostKernel:
        """Return the kernel: it takes several steps at once, which need all results."""
        return self

    @property
    def most_steps(self) -> int:
        return host.steps_in_cache(self.program.axes)

    @property
    def inexact(self) -> bool:
        """Whether last bits may differ from those of the function as it is."""
        return bool(inexact_operations(self.program.nodes))

    def __call__(
        self,
        blocks: Sequence[Array],
        outs: Sequence[Array],
        first: Sequence[int],
        scalars: Array | None = None,
    ) -> None:
        assert self.loops is not None
        self.loops.run(blocks, outs, self.widths, first, scalars)

    def bind(
        self,
        blocks: Sequence[Array],
        outs: Sequence[Array],
        first: Sequence[int],
        scalars: Array | None = None,
        sides: Sides = NO_SIDES,
    ) -> Callable[[], None]:
        """Return the call; see `TaskKernel`."""
        assert not any(sides)
        assert self.loops is not None
        return self.loops.bind(blocks, outs, self.widths, first, scalars)

    def prepare_steps(self, steps: int, arrays: Sequence[Array], *, sends: bool = False) -> None:
        """Do nothing: the library holds all."""

    def advance(
        self,
        blocks: StepState,
        steps: int,
        more: int = 0,
        rows: Rows | None = None,
        points: Sequence[ctypes.Structure] = (),
    ) -> None:
        """Take steps of all rows, and write both blocks in turn; see `TaskKernel`.

        points: sets of cells that each step computes after the others, before those of series.

        The halo must be valid: along the cut axes as wide as so many steps need, along the others of one
        step. Along these it is valid in the results, too.
        """
        if blocks.rows(more) == (0, 0):
            return
        axes = self.program.axes
        boxes = [blocks.box(remaining) for remaining in reversed(range(more, more + steps))]
        states = blocks.both()
        blocks.fill_beyond()
        copies = [blocks.edge_cells(place) if place in blocks.fed else [] for place in range(len(states[0]))]
        firsts = [first[:axes] for first in blocks.first_cells()]
        cut = [(low[:axes], high[:axes]) for low, high in boxes]
        assert self.loops is not None
        recorded = blocks.recorded.calls() if blocks.recorded is not None else ()
        self.loops.steps(
            states,
            firsts,
            cut,
            blocks.feeds,
            copies,
            self.widths,
            first=blocks.first,
            scalars=blocks.scalars,
            points=[*points, *recorded],
        )
        if steps % 2 == 0:  # the last step wrote the blocks
            blocks.swap()


def compile_for(
    device: Any,
    program: Program,
    widths: Extents,
    arithmetic: str = "strict",
    feeds: Feeds = (),
    boundary: str = "reflect",
    cval: float = 0.0,
    shape: Shape = (1,),
    row: int = 0,
) -> tuple[DeviceKernel | HostKernel, str]:
    """Return the kernel for a rank's device, and the name of its compiler. Raises NotTraceable without one.

    device: `runner.device.api.Device`. shape: of a result; the kernel of one pass is compiled for rows
    as long. The other arguments are those of `DeviceKernel`. Raises NotCompiled if the compiler fails.
    """
    if device.kind == "cuda":
        from meshrun.runner.compiler.device_kernel import DeviceKernel

        kernel = DeviceKernel(program, widths, arithmetic, feeds, boundary, cval, row=row)
        kernel.prepare(shape)
        return kernel, "CUDA"
    compiler = find_compiler()
    if compiler is None:
        raise NotTraceable("no C++ compiler on this host", "CXX=/path/to/g++, or install one")
    try:
        loops = host.build(in_real_parts(program), compiler, cache_folder())
    except NotCompiled as reason:
        reason.line = line_of(program, host_source.source([in_real_parts(program)]), reason.at)
        raise
    return HostKernel(program, widths, loops), compiler.path


def compile_points(sets: Sequence[PointSet], arithmetic: str = "") -> HostPoints | DevicePoints:
    """Compile sets for the host, or with an arithmetic for the current CUDA device. Raises NotCompiled."""
    from meshrun.runner.compiler.whole.point_code import DevicePoints, device_source, host_points

    if not arithmetic:
        return host_points(sets)
    from meshrun.runner.device.cuda import kernel_of_text

    return DevicePoints(sets, kernel_of_text(device_source(sets), "points", compiler_options(arithmetic)))


def compile_chain(stages: Sequence[Sequence[Program]], cells: int, backend: Backend) -> Chain:
    """Compile a chain of stages. Raises NotTraceable without a compiler, NotCompiled if it fails.

    stages: of each one, the programs of its boxes. cells: of the largest stage.
    """
    from meshrun.runner.compiler.whole.chain_code import Chain, chain_source

    if backend.device.kind == "cuda":
        from meshrun.runner.device.cuda import kernel_of_text

        # Blocks wait for no others: those of several stages are one.
        if len(stages) == 1:
            threads, blocks = STAGE_THREADS, (-(-cells // STAGE_THREADS), len(stages[0]))
        else:
            threads, blocks = min(-(-cells // 32) * 32, CHAIN_THREADS), (1, 1)
        return Chain(kernel_of_text(chain_source(stages, threads), "chain"), backend.xp, blocks, threads)
    compiler = find_compiler()
    if compiler is None:
        raise NotTraceable("no C++ compiler on this host", "CXX=/path/to/g++, or install one")
    loaded = host.library(chain_source(stages), compiler, cache_folder())
    return Chain(loaded.chain, backend.xp)
