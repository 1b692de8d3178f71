"""The service `simulate`: a job of kind "job" takes time steps of a map job that it makes itself.

A solver uses the same steps, halos, checkpoints and frames as a job that is made by map_blocks, and adds
what only it knows: the state before the first step, what frames show, what to observe, and what to do before
each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshrun.runner.compiler.function_key import captured
from meshrun.runner.errors import UserError
from meshrun.runner.job.declaration import Job
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.report.record import Record, type_record
from meshrun.runner.run.finish import Finished
from meshrun.runner.run.prepare import RunContext
from meshrun.runner.spelling import option
from meshrun.runner.storage.formats.registry import Source

if TYPE_CHECKING:
    from meshrun.runner.steps.observers.additions import Additions


@dataclass
class Simulate:
    """Takes the steps of one run: call it once, on every rank.

    done: what the steps did, for the run's record, once they are taken.
    """

    run: RunContext
    done: Finished | None = field(default=None, init=False)

    @property
    def options(self) -> StepOptions:
        """The options of steps as they were given; a job may pass on others in place of missing ones."""
        return self.run.options.steps

    @property
    def film(self) -> Path | None:
        """OUTPUT: the file or folder of the frames; None: no film."""
        return self.run.targets[0] if self.run.targets else None

    @property
    def filmed(self) -> bool:
        """Whether there is a film."""
        return bool(self.run.targets)

    def check_memory(self, total: int, smaller: str) -> None:
        """Raise UserError if fields of `total` bytes, once, do not fit the memory of the ranks. Collective.

        The steps check this themselves: for jobs that look at their whole domain before they take steps.
        smaller: what to type for a smaller one.
        """
        from meshrun.runner.run.step_run import check_memory

        check_memory(self.run, total, smaller)

    def __call__(
        self,
        step: Job,
        parameters: dict[str, Any],
        sources: Sequence[Source],
        options: StepOptions,
        additions: Additions,
    ) -> Record:
        """Take the steps of `options` of the map job `step`; return their record. Collective.

        sources: the state before the first step, and the inputs that stay. Raises UserError before the first
        step for options that do not apply.
        """
        from meshrun.runner.run.step_run import run_steps

        run = self.run
        if options.frames is not None:
            raise UserError(
                f"{option('frames')} does not apply to job {run.job.name}: its OUTPUT is the film",
                got=options.frames,
                everywhere=True,
            )
        options = replace(options, frames=None if self.film is None else str(self.film))
        if options.steps is None:
            hint = option("steps", metavar="N")
            raise UserError(f"job {run.job.name} takes time steps", hint=hint, everywhere=True)
        inner = replace(
            run,
            job=step,
            parameters=step.complete(parameters),
            sources=list(sources),
            targets=[self.film or self._unnamed(options)],
            options=replace(run.options, steps=options),
            inputs=replace(run.inputs, captured=captured(step)),
        )
        domain = type_record((sources[0].shape, sources[0].dtype))
        self.done = replace(run_steps(inner, additions), domain=domain)
        assert self.done.steps is not None
        return self.done.steps

    def _unnamed(self, options: StepOptions) -> Path:
        """Return the name by which the checkpoints of a run without a film are kept.

        Without checkpoints, it is one that no other run has: such runs may share a folder.
        """
        name = Path(self.run.job.name)
        if options.checkpoint is None and not self.run.options.stream.resume:
            return name.with_name(f".{name}.{self.run.world.run_id}")
        self.run.world.on_root(lambda: self.run.transaction.lock(name))
        return name
