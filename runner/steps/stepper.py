"""Time steps of a map job on one rank: blocks stay in device memory, halos are exchanged between steps.

Each input that an output feeds has two padded blocks: a step reads one and writes its results to the other,
which then changes places with it. Both have the halo of `steps_per_exchange` steps (`runner.plan.steps`), so
that a cell has the same place in all of them. Inputs that are fed by no output keep one block. In one copy,
the two blocks share memory (`steps.blocks`): neighbours cannot store into it, and no rows are computed first.

Halos are filled only as far as the steps read each input (`runner.plan.steps.read_widths`), on each side.

With `overlap`, the last step before an exchange computes the rows that neighbours need first, and the rest
while these rows are in transfer.

GPUs exchange halos by `halo_path`; CPUs by `halo.exchange`, as before the first step every device does.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrun.runner.arrays.distributed_array import DistributedArray
from meshrun.runner.arrays.halo.boxes import FieldHalos
from meshrun.runner.arrays.halo.direct import DirectHalos
from meshrun.runner.arrays.halo.exchange import (
    HaloPlan,
    connect,
    exchange,
    fill_own,
    received_bytes,
    start_exchange,
)
from meshrun.runner.compiler.cuda.steps.layout import Choice, Sending
from meshrun.runner.compiler.decide import not_compiled
from meshrun.runner.device.api import Mark, NotCapturable, poison
from meshrun.runner.maps.in_memory import no_progress
from meshrun.runner.options.choices import HaloChoice
from meshrun.runner.options.loop_rules import USUAL, LoopRules
from meshrun.runner.plan.steps import LINE, Piece, halo_bytes, read_widths, rows_apart, wide_widths
from meshrun.runner.plan.task import Task, TaskKernel
from meshrun.runner.region import Array, Region, Shape
from meshrun.runner.report.phases import Phases
from meshrun.runner.steps import halo_path
from meshrun.runner.steps.blocks import StepBlocks
from meshrun.runner.steps.fused_steps import passes, prepare
from meshrun.runner.steps.steps_per_kernel import choose_steps
from meshrun.runner.system.compiler import NotCompiled
from meshrun.runner.world.world import World

if TYPE_CHECKING:
    from meshrun.runner.comm.peer_arrays import PeerArrays
    from meshrun.runner.programs.looping import LoopCount

MEASURED = 256  # exchanges of a device that are timed; the others are assumed to take as long
TIMED, REPLAYS = 16, 8  # exchanges of a graph, and its launches, after the loop
OVERLAPPED_BYTES = 4 << 20  # of an exchange by messages on one host, at least, that overlaps with the work
EAGER = 32  # steps that are launched one by one before a CUDA graph is made of some
GRAPH_STEPS = (32, 8, 2, 1)  # of graphs, more or less: the longest that fits is taken
# A host that is busy takes half a millisecond to launch a graph: those of small blocks are longer.
LONGEST_GRAPH, GRAPH_BYTES = 256, 10 << 30  # steps; bytes that they read and write on a rank, at most
WORTH_MAKING = 16  # launches of a long graph, at least, for which it is made
ONE_COPY = "the fields are in memory once"
BY_SIDE = "the boundary differs by input, axis or side, and the function is not one kernel"
PENDING = 64  # spans of device work that are not yet added to the phases
BeforeStep = Callable[[Sequence[Array]], None]


@dataclass
class Stepper(StepBlocks[DistributedArray]):
    """This rank's blocks of a task that takes steps. Every method is collective.

    steps_per_exchange: as asked for, 0 for any; then as chosen by `steps.steps_per_kernel`. overlap: see
    above; used if only axis 0 is split and the blocks are large enough; None: on GPUs of several hosts. halo:
    auto, nccl or direct; halo_taken: direct, or the first word of the transport, "" if nothing is exchanged;
    halo_reason: why it is not direct, "" if it is. exchanges_by_kernel: whether kernels
    of several steps stored the halos. graph: whether CUDA graphs took
    steps; graph_reason: why they cannot.
    arrays, spare: see `steps.blocks.StepBlocks`.
    keep_finals: keep the results that feed no input after every `advance`, not only after the last step.
    must_fuse: fail if a kernel of several steps does not compile, instead of taking single steps
    (`single_reason`: why). one_by_one: no kernel takes several steps. one_copy: the fields are in
    memory once (`steps.blocks`). before_step: called with the padded block of
    each input, whose halos are valid where the step reads them, before each step; only with `one_by_one`.
    rules: for loops in the function that a condition ends.
    progress: called with `done`. done: steps taken, including those of an earlier run; taken:
    those of this run. saved: the step of the last checkpoint; None: there is none. exchanges: number of
    halo exchanges so far. rivals: choices of the task's kernel to measure (`kernel_trial`). eager: CUDA
    graphs take no steps.
    """

    world: World
    task: Task
    phases: Phases
    steps_per_exchange: int = 0
    overlap: bool | None = False
    halo: HaloChoice = "auto"
    progress: Callable[[int], None] = no_progress
    keep_finals: bool = False
    done: int = 0
    must_fuse: bool = False
    one_by_one: bool = False
    one_copy: bool = False
    rules: LoopRules = USUAL
    saved: int | None = None
    before_step: BeforeStep | None = field(default=None, init=False)
    taken: int = field(default=0, init=False)
    exchanges: int = field(default=0, init=False)
    rivals: tuple[Choice, ...] = field(default=(), init=False)
    eager: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        task, rank = self.task, self.world.rank
        counts = choose_steps(
            task,
            self.steps_per_exchange,
            one_by_one=self.one_by_one,
            one_copy=self.one_copy,
            on_device=self.world.backend.asynchronous,
        )
        fused, self.lowered = counts.per_kernel, counts.lowered
        steps = self.steps_per_exchange = counts.per_exchange
        self.rivals = counts.rivals
        steps = self._halo_steps = max([steps, *(one.steps for one in counts.rivals)])
        self.plans = [
            HaloPlan(one.partition, rank, wide_widths(one, steps), *task.beyond(number), widths)
            for number, (one, widths) in enumerate(zip(task.fields, read_widths(task, steps), strict=True))
        ]
        for plan in self.plans:
            if task.kernel is not None and task.kernel.aligned:
                plan.aligned = LINE
        self.handed_on = counts.handed_on
        for before, now in self.handed_on.items():
            self.plans[before] = self.plans[now]
        self.lay_out(self.plans, [parts > 1 for parts in task.partition.grid])
        if self.one_copy and self.region.size:
            for place in self.fed:
                self.plans[place].rows_before = rows_apart(task, self.region, fused)
        self.fused_steps = fused
        self._exchanging = self._any_is_exchanged()
        low, high = task.widths[0]
        smallest = task.shape[0] // task.partition.grid[0]
        split = [axis for axis, parts in enumerate(task.partition.grid) if parts > 1]
        self._ndim = max(len(one.partition.shape) for one in task.fields)
        self._overlap_asked = self.overlap
        self._may_overlap = (
            not self.one_copy and self._exchanging and split == [0] and smallest > steps * (low + high) > 0
        )
        self._peers: PeerArrays | str = ""
        if self._exchanging and self.one_copy:
            self._peers = ONE_COPY
        elif self._exchanging and task.by_side:
            self._peers = BY_SIDE
        elif self._exchanging:
            self._peers = halo_path.find_peers(self.world, self.halo, self._ndim)
        if self.halo == "direct" and isinstance(self._peers, str) and self._peers:
            raise halo_path.refuse(self._peers)
        self._device_halos: halo_path.DeviceHalos | None = None
        self.halo_taken, self.halo_reason = "", ""
        self._choose_overlap()
        self.graph, self.graph_reason, self.single_reason = False, "", ""
        self.exchanges_by_kernel = False
        self._graphs: dict[tuple[int, int, int], Callable[[], None]] = {}
        self._recording = False
        self._scalar_rows = self.scalar_rows(max(*GRAPH_STEPS, self._longest_graph(), steps, fused))
        self._until = self._recorded_from = 0  # the step after those to take, and the first of a graph
        self._prepared: set[int] = set()  # steps of kernels that are compiled
        self._spans: list[tuple[Mark, Mark]] = []
        self._exchange_spans: list[tuple[Mark, Mark]] = []

    @property
    def loop_counts(self) -> Sequence[LoopCount]:
        """The iterations of the function's loops in the steps of this run."""
        return ()

    def current_step(self) -> int:
        """Return the number of the step that is computed, from 0 on."""
        return self.done

    @property
    def _graph_cycles(self) -> list[int]:
        """The cycles of graphs, the most first."""
        most = (*GRAPH_STEPS, self._longest_graph())
        return sorted({max(one // self.steps_per_exchange, 1) for one in most}, reverse=True)

    def _longest_graph(self) -> int:
        """Return the steps of the longest graphs, the same on every rank."""
        task = self.task
        whole = Region((0,) * len(task.shape), task.shape)
        moved = (task.input_bytes(whole) + task.result_bytes(whole)) // self.world.size
        return min(max(GRAPH_BYTES // max(moved, 1), *GRAPH_STEPS), LONGEST_GRAPH)

    def _any_is_exchanged(self) -> bool:
        """Return whether steps read cells of other ranks, of the inputs that are fed."""
        widths = read_widths(self.task, self._halo_steps)
        return any(
            parts > 1 and width != (0, 0)
            for place in self.fed
            for parts, width in zip(self.task.fields[place].partition.grid, widths[place], strict=True)
        )

    def empty(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """Return memory for a block, into which other ranks can store if halos are exchanged directly."""
        allocator = self.world.backend if isinstance(self._peers, str) else self._peers
        return allocator.empty(shape, dtype)

    def start(self, arrays: Sequence[DistributedArray]) -> None:
        """Take over arrays of `plans`' layouts with their own cells filled; prepare the first step.

        arrays: with blocks made by `empty`.
        """
        backend, world = self.world.backend, self.world
        with self.phases("prepare"):
            self.arrays = list(arrays)
            for before, now in self.handed_on.items():
                self.spare[before], self.spare[now] = arrays[now], arrays[before]
            for place in self.fed:
                plan = self.plans[place]
                if place in self.spare:
                    continue
                if self.one_copy and self.region.size:
                    self.spare[place] = DistributedArray(plan, plan.earlier(), world)
                    poison(self.spare[place].block[: plan.rows_before])
                else:
                    self.spare[place] = DistributedArray(plan, plan.empty(self, arrays[place].dtype), world)
                    poison(self.spare[place].block)
            self._later = self.arrays[self.fed[0]]
            self._finals = self._unfed_results()
            # The halos of a rank that exchanges nothing are filled by one launch, of all fields.
            single = self.fused_steps == 1 and self.region.size > 0
            filled = self.task.has_halo and self.reads_beyond and not self._stores_beyond
            if self._exchanging or (single and filled):
                self._open_halos()
            if backend.asynchronous and self._exchanging and not isinstance(self._device_halos, DirectHalos):
                connect(world, [self.plans[place] for place in self.stored])
        with self.phases("exchange"):
            exchange(arrays, once=True)
        with self.phases("prepare"):
            if self._stores_beyond:
                self.fill_beyond()  # with the constant, once for all steps
            self._try_a_row()
            self._compile_passes()
            self.note_inputs_that_stay()
            world.control.barrier()  # or waiting for a later neighbour would count as exchange

    def _compile_passes(self) -> None:
        """Compile the passes of single steps of a device before the loop, whose time is measured.

        They are bound to both blocks of each field, as steps take turns.
        """
        if self.task.kernel is None or self.fused_steps > 1 or not self.world.backend.asynchronous:
            return
        if self._scalar_rows is not None:
            self.scalars = self._scalar_rows.rows(0, 1)
        pieces = [piece for more in range(1, self.steps_per_exchange) for piece in self._pieces_of(more)]
        for _ in range(2):
            for piece in pieces:
                self._calls_of(piece, keep=False)
            for piece in self._last_pieces():
                self._calls_of(piece, keep=self.keep_finals)
            self.swap()

    def _last_pieces(self) -> list[Piece]:
        """Return the pieces of the last step before an exchange."""
        if self.overlap:
            return [self._rows(*rows) for rows in (*self._rows_sent(), self._rows_kept())]
        return self._pieces_of(0)

    def _open_halos(self) -> None:
        """Prepare the exchange between devices."""
        world, task = self.world, self.task
        tables = self._tables = None if task.by_side else halo_path.find_tables(world, self._ndim)
        if self._exchanging:
            self.halo_taken = world.arrays.label.replace(",", " ").split()[0].lower()
            self.halo_reason = str(self._peers)
        if tables is None:
            return
        fields = [FieldHalos.of(array) for array in self._fed_arrays()]
        pairs = [(self.arrays[place].block, self.spare[place].block) for place in self.stored]
        # Rows of series are computed after the exchange, of what the step has read.
        handshake = self._halo_steps > 1 or bool(self.overlap) or task.job.series_pass is not None
        self._device_halos, self.halo_reason = halo_path.open_halos(
            world, fields, pairs, task.cval, tables, self._peers, handshake=handshake
        )
        if self.halo == "direct" and self.halo_reason:
            raise halo_path.refuse(self.halo_reason)
        if self.halo_reason:
            self._peers = self.halo_reason
            self._choose_overlap()
        elif self._exchanging:
            self.halo_taken = "direct"

    def advance(self, steps: int, *, last: bool = False, ahead: int = 0) -> None:
        """Take so many steps.

        last: none will follow, so that halos need not be exchanged again. ahead: steps of the run that are
        left, these included; fewer than `steps` if unknown.
        """
        backend, ahead = self.world.backend, max(ahead, steps)
        self._until = self.done + steps
        begin = backend.mark() if backend.asynchronous else None
        cycle = self._longest_cycle(steps)
        left = steps - self._first_steps(steps, last=last)
        recorder = self.world.recorder
        name = 0 if recorder is None else recorder.name("step")
        while left:
            entry, before = 0 if recorder is None else recorder.enter(name, 0, 0, self.done + 1), left
            replayed = self._replay(left, cycle, ahead, last=last)
            if replayed:
                left -= replayed
            else:
                taken = max(passes(left, cycle)) if self.fused_steps > 1 else min(left, cycle)
                left -= taken
                if self.world.checksums is not None:
                    self.world.checksums.step = self.done + taken
                self._cycle(taken, last=last and left == 0)
            self.progress(self.done)
            self._check_halos()
            if recorder is not None:
                recorder.leave(entry, before - left)
        if begin is not None:
            self._spans.append((begin, backend.mark()))
            if len(self._spans) >= PENDING:
                self.settle()

    def use_kernel(self, kernel: TaskKernel, steps: int) -> None:
        """Take the next steps by another kernel, of `steps` steps, between two cycles.

        At most as many as the halos are wide enough for.
        """
        if kernel is self.task.kernel:
            return
        self.task = replace(self.task, kernel=kernel)
        self.fused_steps = self.steps_per_exchange = steps
        self._prepared.clear()
        self.bound.clear()
        self.drop_graphs()

    def issue(self, steps: int) -> None:
        """Take the last steps of a run, so many, kernel by kernel: the CUDA graph of others may hold them.

        No exchange is timed: the events of a graph have no time.
        """
        cycle, self._recording = self._longest_cycle(steps), True
        left = steps - self._first_steps(steps, last=True)
        while left:
            taken = max(passes(left, cycle)) if self.fused_steps > 1 else min(left, cycle)
            left -= taken
            self._cycle(taken, last=left == 0)
        self._check_halos()

    def _first_steps(self, left: int, *, last: bool) -> int:
        """Take the first steps of a run one by one where a kernel of several asks for it; return how many."""
        kernel, first = self.task.kernel, 0
        if kernel is None or self.fused_steps == 1:
            return 0
        while first < left and self.taken < kernel.first_steps:
            first += 1
            self._step(0, last and first == left)
            self.done += 1
            self.progress(self.done)
        return first

    def _longest_cycle(self, steps: int) -> int:
        """Return the most steps of a cycle of so many steps; compile the kernels of all cycles.

        If one does not compile on some rank, steps are taken one by one from now on.
        """
        if self.fused_steps == 1:
            return self.steps_per_exchange
        cycles = passes(steps, self.steps_per_exchange)
        new = sorted({taken for cycle in cycles for taken in self._kernels_of(cycle)} - self._prepared)
        if new:
            with self.phases("prepare"):
                everyone = self.world.control.allgather([prepare(self, taken) for taken in new])
            failure = next((reason for own in everyone for reason in own if reason is not None), None)
            if failure is not None:
                self._take_single_steps(failure)
                return self.steps_per_exchange
            self._prepared.update(new)
        return max(cycles)

    def _kernels_of(self, cycle: int) -> list[int]:
        """Return the steps of each kernel between two exchanges, `cycle` in all."""
        counts = passes(cycle, self.fused_steps)
        return [taken for taken, kernels in counts.items() for _ in range(kernels)]

    def _take_single_steps(self, failure: NotCompiled) -> None:
        if self.must_fuse:
            raise not_compiled(self.task, failure.reason, failure.line)
        self.fused_steps, self.single_reason = 1, failure.reason
        if not self._exchanging:
            self.steps_per_exchange = 1
        self._choose_overlap()
        self._fill_outside(self._fed_arrays())  # kernels of several steps do not read these cells
        self.fill_beyond()
        with self.phases("prepare"):
            self._compile_passes()

    def settle(self) -> None:
        """Wait until all steps are done, and add their times to the phases.

        Raises RunError on a rank whose function has changed an input that stays."""
        backend = self.world.backend
        self.check_inputs_that_stay()
        if backend.asynchronous:
            backend.synchronize()
            self._check_halos()
            for begin, end in self._spans:
                self.phases.add("kernel", backend.elapsed(begin, end))
            self._spans = []

    def finish(self) -> None:
        """Account for all steps; the results are complete."""
        self.settle()
        backend = self.world.backend
        moved = self.task.input_bytes(self.region) + self.task.result_bytes(self.region)
        self.phases.add("kernel", 0, self.taken * moved)
        if not self.exchanges_by_kernel:  # whose time is the kernels'
            if backend.asynchronous and self._exchange_spans:
                self.phases.add("exchange", self._exchange_seconds() * self.exchanges)
            self.phases.add("exchange", 0, self.exchanges * self.exchange_bytes)
        if not self._exchanging:
            self.phases.phases.pop("exchange", None)
        self.drop_graphs()
        if self._device_halos is not None:
            self._device_halos.close()

    def drop_graphs(self) -> None:
        """Free the CUDA graphs: to close a communicator waits for those that hold its messages."""
        self._graphs.clear()

    def _exchange_seconds(self) -> float:
        """Return the time of one exchange: of those in CUDA graphs, which the loop cannot time, of some more.

        The halos are no longer needed.
        """
        backend, halos = self.world.backend, self._device_halos
        if not all(self.world.control.allgather(self.graph and halos is not None)):
            # In the first exchanges, ranks wait for those that began their loop later.
            return statistics.median(backend.elapsed(*span) for span in self._exchange_spans)
        assert halos is not None
        targets = _blocks_of(self._fed_arrays()), _blocks_of(self._fed_spare())

        def fill() -> None:
            for number in range(TIMED):
                self._fill_halos(halos, targets[number % 2])

        replay = backend.capture(fill)
        replay()
        begin = backend.mark()
        for _ in range(REPLAYS):  # many: the first one waits for the slower host
            replay()
        end = backend.mark()
        backend.synchronize()
        return backend.elapsed(begin, end) / (TIMED * REPLAYS)

    @property
    def exchange_bytes(self) -> int:
        """Bytes that arrive from other ranks in one exchange."""
        return received_bytes(self._fed_arrays())

    def _cycle(self, steps: int, *, last: bool) -> None:
        """Take the steps up to the next exchange."""
        if self.fused_steps > 1:
            left = steps
            for taken in self._kernels_of(steps):
                left -= taken
                self._take_fused(taken, left, last and left == 0)
                self.done += taken
            return
        for remaining in reversed(range(steps)):
            self._step(remaining, last and remaining == 0)
            self.done += 1

    def _replay(self, left: int, cycle: int, ahead: int, *, last: bool) -> int:
        """Take some cycles of steps, at most `left` steps, as one CUDA graph, which is made at first.

        ahead: as of `advance`. Return how many steps; 0 where that is not possible. The host may be needed
        between steps for an exchange through its memory, and for a function that is not one kernel.
        """
        if self.eager or not self.is_capturable or self.graph_reason or self.taken < EAGER:
            return 0
        if self.fused_steps > 1:  # the last kernels take fewer steps, whose numbers are known
            left = cycle * passes(left, cycle).get(cycle, 0) if cycle == self.steps_per_exchange else 0
        elif last:  # the last cycle also computes the results that feed no input, and exchanges nothing
            left = left - 1 if left > cycle else 0
        if not left:
            return 0
        cycle = min(cycle, left)
        fitting = (one for one in self._graph_cycles if one * cycle <= left)
        cycles = next((one for one in fitting if self._is_worth_a_graph(one, cycle, ahead)), 0)
        if not cycles:
            return 0
        steps, counts = cycles * cycle, (self.done, self.taken, self.exchanges)
        key, places = self._graph_key(cycles, cycle), (list(self.arrays), dict(self.spare))
        if key not in self._graphs:
            self._recording, self._recorded_from = True, self.done
            try:
                self._graphs[key] = self.world.backend.capture(partial(self._graph_work, cycles, cycle))
            except NotCapturable as reason:
                self.graph_reason = str(reason)
                return 0
            finally:
                self._recording = False
                self.arrays, self.spare = list(places[0]), dict(places[1])
                self.done, self.taken, self.exchanges = counts
        if self._scalar_rows is not None:
            self._scalar_rows.provide(self.done, steps, self._until)
        self._graphs[key]()
        # A graph changes what is in the blocks; that they change places is done here.
        self.arrays, self.spare = places
        if (cycles * len(self._kernels_of(cycle)) if self.fused_steps > 1 else steps) % 2:
            self.swap()
        self.done, self.taken, self.exchanges = counts[0] + steps, counts[1] + steps, counts[2] + cycles
        self.graph = True
        return steps

    @property
    def is_capturable(self) -> bool:
        """Whether a CUDA graph may hold steps: the host is not needed between them."""
        kernel, halos = self.task.kernel, self._device_halos
        alone = not self._exchanging and kernel is not None and self.world.backend.asynchronous
        filled = halos is not None and halos.capturable
        return (alone or filled) and (kernel is None or kernel.capturable)

    def _graph_key(self, cycles: int, cycle: int) -> tuple[int, int, int]:
        """Return what tells a graph from others: which block of the first field is read first, how many
        cycles it takes, and the steps of each."""
        return id(self.arrays[self.fed[0]]), cycles, cycle

    def _is_worth_a_graph(self, cycles: int, cycle: int, ahead: int) -> bool:
        """Return whether to launch a graph of so many cycles of steps, with `ahead` steps of the run left.

        To make one takes the host as long as some launches of it: also where the fields are observed after
        fewer steps, as the same numbers of steps follow. The shortest is always made.
        """
        made = self._graph_key(cycles, cycle) in self._graphs or cycles == self._graph_cycles[-1]
        return made or ahead >= cycles * cycle * WORTH_MAKING

    def _take_scalars(self, steps: int) -> None:
        """Have the next kernel read the numbers of the next steps; those of a graph follow one another."""
        if self._scalar_rows is None:
            return
        if not self._recording:
            self._scalar_rows.provide(self.done, steps, self._until)
        first = self.done - self._recorded_from if self._recording else 0
        self.scalars = self._scalar_rows.rows(first, steps)

    def _graph_work(self, cycles: int, cycle: int) -> None:
        for _ in range(cycles):
            self._cycle(cycle, last=False)

    def _step(self, remaining: int, final: bool) -> None:
        """Take one step, after which so many are taken without an exchange; then make the halos ready."""
        self.set_timed_boundary()
        if self.before_step is not None:
            self.before_step(self.padded)
        self._take_scalars(1)
        targets = self._fed_spare()
        keep = final or (self.keep_finals and remaining == 0)
        if self.overlap and remaining == 0 and not final:
            self._overlapped(targets, self._compute_rows)
        else:
            pieces = self._pieces_of(remaining)
            for piece in pieces:
                self._compute(piece, keep, copied=len(pieces) > 1)
            if final:
                pass
            elif remaining == 0 and self._exchanging:
                self._exchange(targets)
            elif self._stores_beyond:
                pass
            elif self._device_halos is not None and not self._exchanging:
                self._device_halos.fill_own(_blocks_of(targets))
            else:
                self._fill_outside(targets)
        if self.recorded is not None:
            self.recorded.take()
        self.swap()
        self.taken += 1

    def _take_fused(self, steps: int, remaining: int, final: bool) -> None:
        """Take so many steps by one kernel, after which `remaining` are taken without an exchange; after the
        last of these kernels, make the halos ready along the split axes."""
        kernel = self.task.kernel
        assert kernel is not None
        self._take_scalars(steps)
        if self.overlap and remaining == 0 and not final:
            targets = self._fed_spare()
            self._overlapped(targets, lambda rows, _: kernel.advance(self, steps, rows=rows))
        else:
            for rows in self._bands() if self.one_copy else [None]:
                if self.world.backend.asynchronous:
                    kernel.advance(self, steps, remaining, rows)
                else:
                    with self.phases("kernel"):
                        kernel.advance(self, steps, remaining, rows)
            if final or remaining or not self._exchanging:
                pass
            elif self.sending() is not None:
                self.exchanges += 1
                self.exchanges_by_kernel = True
            else:
                self._exchange(self._fed_spare())
        self.swap()
        self.taken += steps

    def sending(self) -> Sending | None:
        """Return how a kernel of several steps exchanges the halos of the spare blocks; None if it does not.

        The exchange ends before cells of a halo are read, in the next kernel: not with single steps, whose
        halos are complete before any cell is computed, nor beside work on other rows. Nor with several
        kernels between two exchanges: a neighbour may still read or write, in an earlier one of these, the
        halo that this rank's last one would store.
        """
        halos, kernel = self._device_halos, self.task.kernel
        alone = self.fused_steps > 1 and self.steps_per_exchange <= self.fused_steps
        possible = alone and kernel is not None and kernel.sends and not self.overlap
        if not possible or not isinstance(halos, DirectHalos):
            return None
        return halos.sending(_blocks_of(self._fed_spare()))

    def _fed_arrays(self) -> list[DistributedArray]:
        return [self.arrays[place] for place in self.stored]

    def _fed_spare(self) -> list[DistributedArray]:
        return [self.spare[place] for place in self.stored]

    def _choose_overlap(self) -> None:
        """Choose whether exchanges overlap with the work: as asked, else on GPUs of several hosts, and for
        single steps with large messages between GPUs of one host.

        Otherwise, messages on one host take no more time than the additional calls of the function and the
        processors that NCCL takes from the others.
        """
        asked = self._overlap_asked
        message = halo_bytes(self.task, self.task.partition[0], self.steps_per_exchange)
        large = isinstance(self._peers, str) and self.fused_steps == 1 and message >= OVERLAPPED_BYTES
        gpus = self.world.backend.asynchronous and self._exchanging
        worth = (large and not self.handed_on) or len(self.world.hosts) > 1
        chosen = gpus and worth if asked is None else asked
        kernel = self.task.kernel
        in_one = self.fused_steps > 1 and kernel is not None and not kernel.takes_rows
        self.overlap = chosen and self._may_overlap and not in_one
        self._stores_beyond = self.fused_steps == 1 and self._can_store_beyond(self._last_pieces())

    def _check_halos(self) -> None:
        if self._device_halos is not None:
            self._device_halos.check()

    def _exchange(self, targets: list[DistributedArray]) -> None:
        self.exchanges += 1
        for target in targets:
            target.written()
        with _DeviceSpan(self) if self.world.backend.asynchronous else self.phases("exchange"):
            if self._device_halos is not None:
                self._fill_halos(self._device_halos, _blocks_of(targets))
            else:
                exchange(targets)

    def _fill_halos(self, halos: halo_path.DeviceHalos, blocks: Sequence[Array]) -> None:
        """Fill all of the halos that the pass has not stored itself."""
        if self._stores_beyond:
            halos.fill_from_others(blocks, beyond=True)
        else:
            halos.fill(blocks)

    def _rows_sent(self) -> list[tuple[int, int]]:
        """Return the own rows that neighbours need, which are computed first with `overlap`."""
        rows, (first, last) = self.region.shape[0], self._rows_kept()
        return [part for part in ((0, first), (last, rows)) if part[0] < part[1]]

    def _rows_kept(self) -> tuple[int, int]:
        """Return the others."""
        rows, (low, high) = self.region.shape[0], self.task.widths[0]
        return self._halo_steps * high, rows - self._halo_steps * low

    def _compute_rows(self, rows: tuple[int, int], copied: bool) -> None:
        self._compute(self._rows(*rows), self.keep_finals, copied=copied)

    def _overlapped(
        self, targets: list[DistributedArray], compute: Callable[[tuple[int, int], bool], None]
    ) -> None:
        """Compute the rows that neighbours need, then the others while the first are in transfer.

        compute: takes rows, and whether others are computed from the same blocks later.
        """
        backend = self.world.backend
        first, last = self._rows_kept()
        for part in self._rows_sent():
            compute(part, True)
        self.exchanges += 1
        for target in targets:
            target.written()
        if not backend.asynchronous:
            with self.phases("exchange"):
                started = start_exchange(targets)
            compute((first, last), False)
            with self.phases("exchange"):
                fill_own(targets)
                started.finish()
            return
        ready = backend.mark()
        compute((first, last), False)
        if self._device_halos is not None:
            with backend.beside(ready), _DeviceSpan(self):
                self._device_halos.fill_from_others(_blocks_of(targets), beyond=self._stores_beyond)
            if not self._stores_beyond:
                self._device_halos.fill_own(_blocks_of(targets))
            return
        with backend.beside(ready), _DeviceSpan(self):
            started = start_exchange(targets)
            started.receive()
        fill_own(targets)
        started.fill_corners()


def _blocks_of(arrays: Sequence[DistributedArray]) -> list[Array]:
    return [array.block for array in arrays]


class _DeviceSpan:
    """Times an exchange on the device, for the first ones of a run."""

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper

    def __enter__(self) -> None:
        if not self._stepper._recording:
            self._begin = self._stepper.world.backend.mark()

    def __exit__(self, *_: object) -> None:
        spans = self._stepper._exchange_spans
        if len(spans) < MEASURED and not self._stepper._recording:
            spans.append((self._begin, self._stepper.world.backend.mark()))
