"""Measure choices of a kernel of several steps on the first passes of a long run, and keep the fastest.

Another thread compiles the choices while the run takes steps by the predicted one. Then the choices take
turns, a few kernels each. These are steps of the run like all others: a cell is computed by the same
operations whatever the choice, from halos that are wide enough for the choice of the most steps. So nothing
is computed twice, and no bit depends on what is measured. All ranks take the same turns, and the slowest rank
counts.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from meshrun.runner.compiler.cuda.steps.layout import Choice
from meshrun.runner.compiler.cuda.steps.tuning import ChosenKernel, kept_form
from meshrun.runner.compiler.device_kernel import DeviceKernel
from meshrun.runner.device.api import Mark
from meshrun.runner.steps.stepper import Stepper
from meshrun.runner.system import cached_files
from meshrun.runner.system.compiler import NotCompiled

FIRST_QUESTION = 1.0  # seconds of the run, as predicted, after which ranks ask whether all have compiled
TURN = 0.02  # seconds of a choice's turn, as predicted
FEWEST, WARM = 4, 2  # kernels of a turn that are timed, at least, and those before: one per order of blocks
ROUNDS = 3  # turns of each choice
CLEARLY = 1.02  # time of the predicted choice over that of the fastest, with which the latter replaces it


@contextmanager
def measuring(stepper: Stepper) -> Iterator[KernelTrial]:
    """Yield the trial of the kernel of a stepper that has rivals."""
    trial = KernelTrial(stepper)
    try:
        yield trial
    finally:
        trial.stop()


class KernelTrial:
    """The trial of the rivals of a stepper's kernel. Every method is collective, except `stop`."""

    def __init__(self, stepper: Stepper) -> None:
        kernel = stepper.task.kernel
        assert isinstance(kernel, DeviceKernel)
        assert kernel.choice is not None
        self._stepper, self._begin = stepper, kernel.choice
        self._is_over = False
        self._kernels = [kernel, *map(kernel.with_choice, stepper.rivals[1:])]
        self._compiling: list[Future[bool]] = []
        self._thread: ThreadPoolExecutor | None = None
        self._question = 0  # the step after which ranks ask
        self._turns: list[int] = []  # numbers of kernels
        self._spans: dict[int, list[tuple[Mark, Mark, int]]] = {}

    def take(self, steps: int, ahead: int) -> int:
        """Take steps of the run, fewer than `steps`; return how many.

        ahead: steps of the run that are left. The current kernel is then the predicted or the fastest one.
        """
        stepper, taken = self._stepper, 0
        if self._thread is None and not self._is_over:
            self._compile()
            self._question = stepper.done + max(int(FIRST_QUESTION / self._begin.seconds), 1)
        while not self._is_over:
            if stepper.single_reason:  # the run's own kernel does not compile
                self.stop()
                break
            if not self._turns:
                # Take steps as usual until the next question.
                before = self._question - stepper.done
                if before >= steps - taken:
                    return taken
                if before > 0:
                    stepper.advance(before, ahead=ahead - taken)
                    taken += before
                self._ask()
                continue
            # Take the next turn, if it fits.
            number = self._turns[0]
            each = self._choice(number).steps
            most = math.ceil(TURN / (self._begin.seconds * each))
            kernels = min(max(most, FEWEST), (steps - taken - 1) // each - WARM)
            if kernels < FEWEST:
                stepper.use_kernel(self._kernels[0], self._choice(0).steps)
                return taken
            stepper.use_kernel(self._kernels[number], each)
            backend = stepper.world.backend
            stepper.eager = True
            stepper.advance(WARM * each)
            first = backend.mark()
            stepper.advance(kernels * each)
            stepper.eager = False
            self._spans.setdefault(number, []).append((first, backend.mark(), kernels * each))
            taken += (WARM + kernels) * each
            del self._turns[0]
            if not self._turns:
                self._decide()
        return taken

    def stop(self) -> None:
        """Measure no more."""
        self._is_over = True
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def _choice(self, number: int) -> Choice:
        chosen = self._kernels[number].choice
        assert chosen is not None
        return chosen.choice

    def _compile(self) -> None:
        """Have another thread compile all kernels but the first, which the run has."""
        stepper = self._stepper
        arrays = [state[place].interior for state in (stepper.arrays, stepper.spare) for place in stepper.fed]
        sends = stepper.sending() is not None

        def compiled(number: int) -> bool:
            kernel = self._kernels[number]
            try:
                kernel.prepare_steps(self._choice(number).steps, arrays, sends=sends)
            except NotCompiled:  # the run does not need it
                return False
            return True

        self._thread = ThreadPoolExecutor(1, "compile", stepper.world.backend.join)
        numbers = range(1, len(self._kernels)) if stepper.region.size else ()
        self._compiling = [self._thread.submit(compiled, number) for number in numbers]

    def _ask(self) -> None:
        """Plan the turns if all ranks have compiled; else ask again after as many steps as so far."""
        world = self._stepper.world
        world.backend.synchronize()  # the host may be far ahead
        ready = all(one.done() for one in self._compiling)
        failed = [number for number, one in enumerate(self._compiling, 1) if ready and not one.result()]
        everyone = world.control.allgather((ready, failed))
        if not all(one for one, _ in everyone):
            self._question = self._stepper.done + max(self._stepper.taken, 1)
            return
        without = {number for _, numbers in everyone for number in numbers}
        numbers = [number for number in range(len(self._kernels)) if number not in without]
        if len(numbers) == 1:
            self.stop()
        self._turns = numbers * ROUNDS if len(numbers) > 1 else []

    def _decide(self) -> None:
        """Take the fastest choice from now on, and keep it for later runs."""
        stepper = self._stepper
        world = stepper.world
        world.backend.synchronize()
        own = {
            number: statistics.median(world.backend.elapsed(a, b) / steps for a, b, steps in spans)
            for number, spans in self._spans.items()
        }
        everyone = world.control.allgather(own)
        times = {number: max(one[number] for one in everyone) for number in own}
        best = min(times, key=times.__getitem__)
        if times[0] <= CLEARLY * times[best]:
            best = 0
        choice = self._choice(best)
        winner = copy.copy(self._kernels[best])
        winner.choice = replace(
            self._begin,
            choice=choice,
            source="measured",
            compared=len(times),
            speedup=times[0] / times[best],
        )
        stepper.use_kernel(winner, choice.steps)
        world.on_root(lambda: cached_files.keep(self._begin.file, kept_form(choice)) and None)
        # A later run of this process may have the same task.
        self._kernels[0].choice = ChosenKernel(choice, "kept")
        self.stop()
