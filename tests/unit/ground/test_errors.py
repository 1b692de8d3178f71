"""What a user reads when something goes wrong, and that it survives the way between ranks."""

from __future__ import annotations

import pickle
import threading

import pytest

from meshrun.runner.errors import MeshrunError, RunError, UserError, printable


def test_the_sentence_has_what_got_expected_and_try() -> None:
    error = UserError("--grid does not parse", got="'2y2'", expected="numbers", hint="--grid 2x2")
    assert str(error) == "--grid does not parse: got '2y2', expected numbers. Try: --grid 2x2"


def test_parts_that_are_not_given_leave_no_trace() -> None:
    assert str(RunError("it failed")) == "it failed"
    assert str(RunError("it failed", hint="again")) == "it failed. Try: again"
    assert str(RunError("it failed", expected=3)) == "it failed: expected 3"


def test_a_value_of_zero_is_shown() -> None:
    assert str(UserError("too few ranks", got=0)) == "too few ranks: got 0"


def test_exit_codes() -> None:
    assert (UserError("x").exit_code, RunError("x").exit_code) == (2, 1)


@pytest.mark.parametrize("kind", [UserError, RunError, MeshrunError])
def test_pickling_keeps_everything(kind: type[MeshrunError]) -> None:
    error = kind("what", got=3, expected=(1, 2), hint="try", everywhere=True)
    error.what = f"[rank 3] {error.what}"
    twin = pickle.loads(pickle.dumps(error))
    assert type(twin) is kind
    assert str(twin) == str(error)
    assert twin.everywhere


def test_an_offending_value_that_cannot_be_pickled_travels_as_text() -> None:
    lock = threading.Lock()
    twin = pickle.loads(pickle.dumps(UserError("cannot be split", got=lock)))
    assert str(twin) == f"cannot be split: got {lock}"


def test_what_a_terminal_obeys_or_is_no_text_is_escaped() -> None:
    assert printable("a\x1b[31m\n\udcff\ud800") == "a\\x1b[31m\n\\xff\\ud800"
