"""Checkpoints of a loop in a user's own program: arrays and numbers, saved every so often and restored.

The folder and its rules are those of runs that take steps (`storage.checkpoint_folder`): NAME.checkpoint has
a folder step-N for each checkpoint, which gets its name when all of it is on the disk. An array is saved
whole, so that any number of ranks continues from it.
"""

from __future__ import annotations

import cmath
import contextlib
import hashlib
import io
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from meshrun.runner import files
from meshrun.runner.arrays.distributed_array import DistributedArray
from meshrun.runner.arrays.finite import first_nan
from meshrun.runner.arrays.load import load_arrays
from meshrun.runner.arrays.operations.split_array import SplitArray, begin
from meshrun.runner.arrays.store import write_block
from meshrun.runner.errors import RunError, UserError, tell
from meshrun.runner.options.step_options import SaveInterval, parse_interval
from meshrun.runner.region import packed
from meshrun.runner.report.progress import ProgressBar
from meshrun.runner.run.main_program.remote_array import ranks_of
from meshrun.runner.spelling import option
from meshrun.runner.storage.checkpoint_folder import KEPT, CheckpointFolder, SavedState
from meshrun.runner.storage.file_errors import write_error
from meshrun.runner.storage.formats.registry import Source, open_sink, rename
from meshrun.runner.storage.journal import check_same
from meshrun.runner.storage.transaction import OutputTransaction
from meshrun.runner.world.agreement.caller import callers_frame
from meshrun.runner.world.world import World

PLAIN = (bool, int, float, complex, str, type(None))
EVERY = "10min"
NOTEBOOK = "a notebook"  # a program without a file
TEXT, STATE = "text", "state"  # in a checkpoint's values: a checksum of the program, and plain values


def checkpoint(path: str | Path, /, *, every: int | str = EVERY, keep: int = KEPT, **state: Any) -> Any:
    """Save the state of a loop every so often; in a program that is resumed, restore it. Collective.

    Call it at the top of a loop, and continue with what it returns. A program is resumed if its command has
    the flag `resume`, as that of a run has, if Slurm has requeued its job, or by `open_world(resume=True)`.
    Then the first call returns the state that was saved last. Any other call returns what it is given.

    Parameters
    ----------
    path : str or Path
        The checkpoints are folders in `path` + ".checkpoint".
    every : int or str
        Between two checkpoints: a number of calls, or a time such as "30s", "10min" or "1h".
    keep : int
        How many checkpoints are kept.
    **state : DistributedArray, array, number, str or None
        What the loop needs to continue, by name, one distributed array at least: distributed arrays, NumPy
        arrays and numbers that are the same on every rank, Python's numbers, texts and None.

    Returns
    -------
    tuple
        The values of `state`, in the order of the arguments; one value by itself. Distributed arrays are
        split as those given.

    Raises
    ------
    UserError
        On every rank: if there are checkpoints and the program is not resumed; if they are of another
        program, or of arrays with other names, shapes or dtypes; if the ranks pass different states; if
        another program is using the path.
    RunError
        On every rank, if a checkpoint cannot be written.

    Examples
    --------
    >>> with meshrun.open_world() as world:
    ...     u, step = world.load("u.npy"), 0
    ...     while step < 100_000:
    ...         u, step = meshrun.checkpoint("heat", u=u, step=step, every=1000)
    ...         u, step = cool(u), step + 1
    ...     world.save("out.npy", u)
    """
    if (ranks := ranks_of([*state.values()])) is not None:
        return ranks.call(checkpoint, path, every=every, keep=keep, **state)
    world = _world_of(state)
    place = Path(path).absolute()
    loop = world.checkpoints.loops.get(place)
    if loop is None:
        interval = _interval(every)
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
            raise UserError("Invalid value for 'keep'", got=repr(keep), expected="1 or more")
        loop = LoopCheckpoints(world, CheckpointFolder(Path(path), keep), interval, tuple(state))
        values = tuple(loop.begin(state).values())
        world.checkpoints.loops[place] = loop
    else:
        loop.take(state)
        values = tuple(state.values())
    return values[0] if len(values) == 1 else values


def calling_program() -> tuple[str, str]:
    """Return the name of the file that has called meshrun, and a checksum of its text."""
    frame = callers_frame()
    file = None if frame is None else frame.f_globals.get("__file__")
    text = b""
    if file is not None:
        with contextlib.suppress(OSError):  # removed meanwhile
            text = Path(file).read_bytes()
    return NOTEBOOK if file is None else Path(file).name, hashlib.sha256(text).hexdigest()


def end_checkpoints(world: World, *, failed: bool) -> None:
    """End those of a world's loops: the program has come to its end, or has failed. Collective unless it has
    failed."""
    for loop in world.checkpoints.loops.values():
        try:
            if not failed:
                world.on_root(loop.folder.note_end)
            elif world.rank == 0 and loop.last is not None:
                tell(loop.kept)
        finally:
            loop.release()


@dataclass
class LoopCheckpoints:
    """The checkpoints of one loop.

    interval: between two of them, in calls or in seconds. names: of its state. calls: of `checkpoint` for it,
    of all runs. last: the call at which the state was saved last. nans: names of the state's values that have
    a NaN, of those that the loop began with or saved last. warned: of others. transaction: holds the lock of
    the path.
    """

    world: World
    folder: CheckpointFolder
    interval: SaveInterval
    names: tuple[str, ...]
    calls: int = 0
    last: int | None = None
    nans: frozenset[str] = frozenset()
    warned: bool = False
    transaction: OutputTransaction = field(init=False)

    def __post_init__(self) -> None:
        self.transaction = self.world.checkpoints.transaction or OutputTransaction()
        own = ProgressBar(self.folder.output.name, None if self.world.rank == 0 else 0)
        self._show = self.world.checkpoints.progress or own.iterations

    def release(self) -> None:
        """Unlock the path, unless the run of a job does when it ends."""
        if self.transaction is not self.world.checkpoints.transaction:
            self.transaction.release()

    @property
    def to_resume(self) -> str:
        """How to continue, for a hint."""
        if self._program == NOTEBOOK:
            return "meshrun.open_world(resume=True)"
        return f"the same command with {option('resume', True)}"

    @property
    def kept(self) -> str:
        """What a failure leaves behind, and how to continue."""
        return f"{self.folder.path} has the state after {self.last:,} iterations. Try: {self.to_resume}"

    @property
    def _operation(self) -> str:
        return f"meshrun.checkpoint({str(self.folder.output)!r})"

    def begin(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the state to begin with: what was saved last, in a program that is resumed. Collective."""
        world, folder = self.world, self.folder
        begin(world, self._operation)
        self._agree(state)
        self._program, self._text = world.checkpoints.program or calling_program()
        try:
            saved = world.on_root(lambda: self._find(state))
            if saved is None:
                restored = state
            else:
                self.calls = self.last = saved.step
                restored = {name: self._restored(saved, name, value) for name, value in state.items()}
                if saved.values.get(TEXT) != self._text:
                    world.warn(f"{self._program} has changed since {folder.path} was written")
            self.nans = frozenset(self._nan_cells(restored))
        except BaseException:
            self.release()
            raise
        self.transaction.track_partial(*self.transaction.partials, folder.partial)
        if self.last is not None:
            self._keep()
        self._began, self._next = time.monotonic(), self.calls + (self.interval.steps or 1)
        if self.interval.steps is not None:
            self._next -= self._next % self.interval.steps
        return restored

    def take(self, state: dict[str, Any]) -> None:
        """Save the state of a further iteration, if it is time. Collective."""
        if tuple(state) != self.names:
            raise UserError(
                f"checkpoint {self.folder.output} of another state",
                got=", ".join(state),
                expected=", ".join(self.names),
                hint="another path for each loop",
            )
        self.calls += 1
        if self.world.operations.is_needed:
            self.world.operations.note(self._operation)
        self._show(0, self.calls, partial(_numbers_shown, state))
        if self.calls < self._next:
            return
        self.world.operations.agree()
        if self.interval.seconds is None:
            self._save(state)
            assert self.interval.steps is not None
            self._next = self.calls + self.interval.steps
            return
        # Rank 0's clock decides, also when to look at it next.
        passed, seconds = time.monotonic() - self._began, self.interval.seconds
        due, wait = self.world.control.broadcast(
            (passed >= seconds, self.interval.steps_to_look(passed, self.calls - (self.last or 0)))
        )
        if due:
            self._save(state)
            self._began = time.monotonic()
        self._next = self.calls + wait

    def _agree(self, state: Mapping[str, Any]) -> None:
        """Raise UserError on every rank if the ranks pass different states. Collective."""
        world = self.world
        mine = world.collective_call(lambda: {name: _described(name, one) for name, one in state.items()})
        known = world.control.allgather((str(self.folder.output), self.interval, self.folder.keep, mine))
        for rank, other in enumerate(known):
            if other == known[0]:
                continue
            got = f"{_shown(*known[0])} on rank 0, {_shown(*other)} on rank {rank}"
            if other[:3] == known[0][:3] and [*other[3]] == [*known[0][3]]:
                name = next(name for name in other[3] if other[3][name] != known[0][3][name])
                got = f"{name} = {known[0][3][name]} on rank 0, {other[3][name]} on rank {rank}"
            raise UserError(
                f"checkpoint {self.folder.output}: the ranks pass different states",
                got=got,
                expected="the same on every rank",
                everywhere=True,
            )

    def _find(self, state: Mapping[str, Any]) -> SavedState | None:
        """Return the checkpoint to continue from; None: begin. On rank 0."""
        folder, loops = self.folder, self.world.checkpoints
        self.transaction.lock(folder.output)
        saved, ended = folder.newest(), folder.has_ended
        # After a loop of a run that failed, what has ended is of the run before that one.
        if saved is not None and (not loops.resume or (ended and loops.unfinished)):
            if not ended:
                raise UserError(
                    f"an earlier run left {folder.path}, with the state after {saved.step:,} iterations",
                    hint=f"{self.to_resume}, or {folder.discard}",
                )
            folder.remove()
            saved = None
        if saved is not None:
            kept = dict(saved.fingerprint)
            wanted = {"program": self._program, STATE: {n: _kind(one) for n, one in state.items()}}
            check_same(f"{folder.output}: its checkpoint", kept, wanted, folder.discard)
            loops.unfinished = loops.unfinished or not ended
            folder.go_on()
            tell(f"continuing after {saved.step:,} iterations, from {folder.path}")
        folder.check_place()
        return saved

    def _restored(self, saved: SavedState, name: str, given: Any) -> Any:
        """Return a value of the saved state. Collective. given: what the program begins with."""
        source = saved.fields.get(name)
        if source is None:
            return _plain(saved.values[STATE][name])
        if isinstance(given, DistributedArray):
            return load_arrays(self.world, [source], [given.layout], self.world.new_phases())[0]
        whole = self.world.on_root(partial(_read, source))
        if isinstance(given, (np.ndarray, np.generic, *PLAIN)):
            return whole
        return self.world.xp.asarray(whole)

    def _save(self, state: Mapping[str, Any]) -> None:
        """Write a checkpoint, unless a value has a NaN for the first time. Collective."""
        world, folder = self.world, self.folder
        self._agree(state)
        nans = self._nan_cells(state)
        if new := [text for name, text in nans.items() if name not in self.nans]:
            if not self.warned:
                kept = "there is no checkpoint" if self.last is None else self.kept
                world.warn(
                    f"{new[0]}, after {self.calls:,} iterations: states with this NaN are not saved; {kept}"
                )
            self.warned = True
            return
        self.nans, self.warned = frozenset(nans), False
        try:
            place = world.on_root(folder.begin)
            plain = {}
            for name, value in state.items():
                if isinstance(value, SplitArray):
                    value.check_readable()
                    sink = open_sink(place / f"{name}.npy", value.shape, value.dtype, world.run_id)
                    world.on_root(sink.create)
                    write_block(world, packed(value.interior), sink, value.partition)
                    world.on_root(partial(rename, sink.partial, sink.path))
                elif isinstance(value, PLAIN) and not isinstance(value, np.generic):
                    plain[name] = {"complex": [value.real, value.imag]} if type(value) is complex else value
                else:
                    world.on_root(partial(_write, place / f"{name}.npy", value))
            fingerprint = {
                "program": self._program,
                STATE: {name: _kind(value) for name, value in state.items()},
            }
            world.on_root(
                lambda: folder.commit(self.calls, fingerprint, values={TEXT: self._text, STATE: plain})
            )
        except BaseException:
            if world.rank == 0:
                with contextlib.suppress(OSError):
                    files.remove_path(folder.partial)
            raise
        self.last = self.calls
        self._keep()

    def _nan_cells(self, state: Mapping[str, Any]) -> dict[str, str]:
        """Return where the first NaN of each value is that has one, as texts by name. Collective."""
        world, own = self.world, dict[str, str]()
        for name, value in state.items():
            if isinstance(value, SplitArray):
                place = first_nan(world.xp, value.interior)
                region = value.partition[world.rank]
                if place is not None:
                    cell = [at + start for at, start in zip(place, region.start, strict=True)]
                    own[name] = f"{name} has a NaN, first in cell {cell}, on [{world.here}]"
            elif isinstance(value, (float, complex)) and cmath.isnan(value):
                own[name] = f"{name} is a NaN"
            elif _is_array(value) and first_nan(np, _on_host(value)) is not None:
                own[name] = f"{name} has a NaN"
        found: dict[str, str] = {}
        for of_rank in world.control.allgather(own):
            found = of_rank | found
        return found

    def _keep(self) -> None:
        """Have the run, if it is started again, continue from the last checkpoint."""
        if self.world.rank == 0:
            self.transaction.keep_files(self.kept)


def _world_of(state: Mapping[str, Any]) -> World:
    world = next((value.world for value in state.values() if isinstance(value, SplitArray)), None)
    if world is None:
        raise UserError(
            "meshrun.checkpoint saves distributed arrays, with other values beside them",
            got=", ".join(f"{name}: {type(value).__name__}" for name, value in state.items()) or "nothing",
            expected="one distributed array at least, by name",
            hint='u, step = meshrun.checkpoint("heat", u=u, step=step)',
        )
    return world


def _interval(every: Any) -> SaveInterval:
    if isinstance(every, bool) or not isinstance(every, int | np.integer | str):
        raise UserError(
            "Invalid value for 'every'",
            got=repr(every),
            expected="a number of calls, or a time such as 10min",
        )
    return parse_interval(str(every))


def _is_array(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _kind(value: Any) -> str:
    """Return what a saved value has to be: the dtype and the shape of an array. A number is any number."""
    shape = tuple(value.shape) if _is_array(value) else ()
    return f"{value.dtype} of shape {shape}" if shape else "a value"


def _described(name: str, value: Any) -> str:
    """Return what must be the same on every rank. Raises UserError for what cannot be saved."""
    if isinstance(value, SplitArray):
        return f"distributed {value.dtype} of shape {value.shape}"
    if _is_array(value) and value.dtype.kind in "biufc":
        cells: Any = np.ascontiguousarray(_on_host(value))
        if not cells.ndim or not value.shape:
            return f"{value.dtype} {value}"
        return f"{value.dtype} of shape {tuple(value.shape)} with checksum " + (
            hashlib.blake2b(cells.tobytes(), digest_size=8).hexdigest()
        )
    if isinstance(value, PLAIN):
        return repr(value)
    raise UserError(
        f"meshrun.checkpoint cannot save {name}",
        got=type(value).__name__,
        expected="a distributed array, a NumPy array, a number, a text or None",
    )


def _numbers_shown(state: Mapping[str, Any]) -> str:
    """Return the real numbers of a state, to be shown while its loop runs."""
    kinds = (int, float, np.integer, np.floating)
    numbers = [(name, one) for name, one in state.items() if isinstance(one, kinds)]
    return ", ".join(f"{name} = {one:.6g}" for name, one in numbers if not isinstance(one, bool))


def _shown(output: str, interval: SaveInterval, keep: int, state: Mapping[str, str]) -> str:
    every = interval.steps or f"{interval.seconds:g}s"
    return f"{output}, every={every}, keep={keep}, {', '.join(state)}"


def _on_host(value: Any) -> Any:
    return value.get() if hasattr(value, "get") else np.asarray(value)


def _write(path: Path, value: Any) -> None:
    """Write an array that every rank has; RunError if the disk fails. On rank 0."""
    try:
        content = io.BytesIO()
        np.save(content, _on_host(value))
        files.write_file(path, content.getvalue(), durable=True)
    except OSError as reason:
        raise write_error(path, reason) from reason


def _read(source: Source) -> Any:
    """Return the whole array of a file, or the number that is its only cell. On rank 0."""
    try:
        return np.load(source.path)[()]
    except (OSError, ValueError, EOFError) as reason:
        raise RunError(f"cannot read {source.path}", why=reason) from reason


def _plain(value: Any) -> Any:
    return complex(*value["complex"]) if isinstance(value, dict) else value
