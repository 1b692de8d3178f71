"""Calls made from C: what arrives, what is returned, what is refused."""

from __future__ import annotations

import ctypes
import itertools
import shutil
import sysconfig
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from meshrun.runner.comm.collectives import call_batch
from meshrun.runner.comm.collectives.call_batch import BUILT, CALL, Batch

COMPILER = shutil.which("cc") or shutil.which("gcc")
HEADERS = Path(sysconfig.get_path("include"), "Python.h").exists()
LIMITED = not sysconfig.get_config_var("Py_GIL_DISABLED")  # a free-threaded Python has no limited API
needs_c = pytest.mark.skipif(not BUILT, reason="needs what a C compiler makes at installation")


class Refused(Exception):
    pass


class Noting:
    """C functions of any number of words that note what they get; those of `answers` in turn are returned."""

    def __init__(self, *answers: int) -> None:
        self.got: list[tuple[int, ...]] = []
        self._answers: Iterator[int] = itertools.chain(answers, itertools.repeat(0))
        self._kept: list[object] = []

    def address(self, words: int) -> int:
        def note(*given: int) -> int:
            self.got.append(given)
            return next(self._answers)

        return self.of(note, [ctypes.c_uint64] * words)

    def of(self, note: Callable[..., int], types: list[type]) -> int:
        function = ctypes.CFUNCTYPE(ctypes.c_int, *types)(note)
        self._kept.append(function)
        return ctypes.cast(function, ctypes.c_void_p).value or 0


TREE = (Path(call_batch.__file__).parents[3] / "pyproject.toml").exists()


@pytest.mark.skipif(TREE and not BUILT, reason="imported from a tree that nothing was installed from")
def test_it_is_built_where_it_can_be() -> None:
    assert (COMPILER is not None and HEADERS and LIMITED) == BUILT


@needs_c
@pytest.mark.parametrize("words", range(9))
def test_words_arrive(words: int) -> None:
    noting = Noting()
    given = tuple((1 << 64) - 1 - i for i in range(words))
    Batch([(noting.address(words), given), (noting.address(words), given[::-1])], Refused)()
    assert noting.got == [given, given[::-1]]


@needs_c
def test_an_int_is_read_from_a_word() -> None:
    """As NCCL's functions take them, in registers and on the stack."""
    noting, got = Noting(), []
    word, number = ctypes.c_uint64, ctypes.c_int

    def reduce(*given: int) -> int:
        got.append(given)
        return 0

    address = noting.of(reduce, [word, word, word, number, number, number, word, number])
    given = (1 << 63, 2, 1 << 40, 11, 4, 7, 1 << 47, 5)
    Batch([(address, given)], Refused)()
    assert got == [given]


@needs_c
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_the_first_that_is_refused_ends_it(bad: int) -> None:
    noting = Noting(*[0] * bad, 3)
    calls = [(noting.address(1), (i,)) for i in range(3)]
    with pytest.raises(Refused) as found:
        Batch(calls, Refused)()
    assert found.value.args == (3,)
    assert noting.got == [(i,) for i in range(bad + 1)]


@needs_c
def test_other_threads_go_on_meanwhile() -> None:
    """The watchdog's must, when a call does not return."""
    noting, entered, left = Noting(), threading.Event(), threading.Event()

    def other() -> None:
        entered.wait(60)
        left.set()

    def wait() -> int:
        entered.set()
        return 0 if left.wait(60) else 1

    thread = threading.Thread(target=other)
    thread.start()
    Batch([(noting.of(wait, []), ())], Refused)()
    thread.join()


@needs_c
@pytest.mark.parametrize(
    "table", [b"\0" * (CALL.size - 1), CALL.pack(0, *[0] * 9), CALL.pack(1, 9, *[0] * 8)]
)
def test_a_table_that_is_none(table: bytes) -> None:
    with pytest.raises(ValueError, match=r"a table of|none that can be made"):
        call_batch._batch.run(table)


@needs_c
def test_nothing_to_do() -> None:
    Batch([], Refused)()


def test_too_many_words() -> None:
    with pytest.raises(Exception, match="pack expected"):
        Batch([(1, range(9))], Refused)
