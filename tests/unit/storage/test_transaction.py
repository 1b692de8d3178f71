"""An output is renamed or removed, unlocked either way, and an observer knows what to clean up."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshrun.runner.errors import RunError, UserError
from meshrun.runner.storage.transaction import OutputTransaction


class Recorder:
    """An observer that remembers what it was last told."""

    def __init__(self) -> None:
        self.partial: tuple[Path, ...] = ()
        self.locked: tuple[Path, ...] = ()
        self.hint = ""
        self.kept = False

    def note_partial(self, *outputs: Path) -> None:
        self.partial = outputs

    def note_lock(self, *outputs: Path) -> None:
        self.locked = outputs

    def note_recovery_hint(self, hint: str) -> None:
        self.hint = hint

    def note_kept(self) -> None:
        self.kept = True


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.npy"


@pytest.fixture
def partial(tmp_path: Path) -> Path:
    path = tmp_path / ".out.npy.0123.partial"
    path.write_text("new")
    return path


def test_a_committed_output_replaces_the_old_one(output: Path, partial: Path) -> None:
    output.write_text("old")
    transaction = OutputTransaction()
    transaction.track_partial(partial)
    transaction.commit(partial, output)
    transaction.forget_partial()
    transaction.roll_back()
    assert output.read_text() == "new"
    assert not partial.exists()


def test_rolled_back_the_old_output_stays(output: Path, partial: Path) -> None:
    output.write_text("old")
    transaction = OutputTransaction()
    transaction.track_partial(partial)
    transaction.roll_back()
    transaction.roll_back()
    assert output.read_text() == "old"
    assert not partial.exists()


def test_a_partial_folder_is_removed(tmp_path: Path) -> None:
    partial = tmp_path / ".out.zarr.0123.partial"
    (partial / "c").mkdir(parents=True)
    (partial / "c" / "0").touch()
    transaction = OutputTransaction()
    transaction.track_partial(partial)
    transaction.roll_back()
    assert list(tmp_path.iterdir()) == []


def test_what_a_later_run_resumes_from_is_not_removed(partial: Path) -> None:
    transaction = OutputTransaction()
    transaction.track_partial(partial)
    transaction.forget_partial()
    transaction.roll_back()
    assert partial.exists()


def test_a_failed_rename_is_reported_and_leaves_the_partial_output(output: Path, partial: Path) -> None:
    output.mkdir()
    with pytest.raises(RunError, match=r"out\.npy"):
        OutputTransaction().commit(partial, output)
    assert partial.exists()


@pytest.mark.parametrize("end", ["release", "roll_back"])
def test_an_output_has_one_writer_until_the_end(output: Path, end: str) -> None:
    first, second = OutputTransaction(), OutputTransaction()
    first.lock(output)
    with pytest.raises(UserError, match="another run is writing"):
        second.lock(output)
    getattr(first, end)()
    second.lock(output)
    second.release()
    second.release()
    assert list(output.parent.iterdir()) == []


def test_an_observer_knows_what_to_clean_up(output: Path, partial: Path) -> None:
    observer = Recorder()
    transaction = OutputTransaction(observer)
    transaction.lock(output)
    transaction.track_partial(partial)
    transaction.set_recovery_hint("continue with --resume")
    assert not observer.kept
    transaction.keep_files()
    assert observer.kept
    assert (observer.locked, observer.partial) == ((output,), (partial,))
    assert observer.hint == "continue with --resume"
    transaction.forget_partial()
    transaction.set_recovery_hint(None)
    assert (observer.partial, observer.hint) == ((), "")
    transaction.release()


def test_outputs_may_be_locked_one_after_the_other(output: Path) -> None:
    recorder = Recorder()
    transaction, other = OutputTransaction(recorder), output.with_name("more.npy")
    transaction.lock(output)
    transaction.lock(output, other)
    assert recorder.locked == (output, other)
    for held in (output, other):
        with pytest.raises(UserError, match="another run"):
            OutputTransaction().lock(held)
    transaction.release()
    OutputTransaction().lock(output, other)
