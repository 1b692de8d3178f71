"""The two kinds of errors, their sentence (what, got, expected, try), and how they are reported."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from meshrun.runner.spelling import option

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
MET_BY_ALL = "meshrun_sentence"  # the attribute of an error of others that every rank raises
# Raised by the __str__ of an error of others.
UNPRINTABLE = (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)
LONGEST_LINE = 2000  # characters of a line of an error
TRACE = "meshrun_trace"  # of an error that another rank has met


class Exit:
    """All exit statuses of meshrun's commands.

    `bench` has those of nccl-tests, and `validate` those of monitoring plugins.
    """

    OK = 0
    FAILED = 1
    BAD_REQUEST = 2  # a wrong option or file
    STUCK = 4  # no progress for so many seconds
    BENCH_CUDA_FAILED = 2
    BENCH_NCCL_FAILED = BENCH_NEEDS_GPU = 3
    BENCH_BAD_REQUEST = 6
    BENCH_WRONG_RESULTS = 7
    VALIDATE_WARNING = 1
    VALIDATE_CRITICAL = 2
    VALIDATE_UNKNOWN = 3  # also of a wrong option


class MeshrunError(Exception):
    """A failure that is reported as one sentence, without a traceback.

    Parameters
    ----------
    what : str
        What was being done to what, and how it failed.
    why : object, optional
        What went wrong, in words of its own, such as those of the operating system.
    got, expected : object, optional
        The offending value, and what would have been right.
    hint : str, optional
        What to type or change; printed after "Try:".
    everywhere : bool
        Whether every rank raises this same error at the same step, so that all end in order and only rank 0
        reports it.

    Examples
    --------
    >>> raise meshrun.UserError("cannot smear by this weight", got=2.0, expected="0 to 1")
    Traceback (most recent call last):
    meshrun.runner.errors.UserError: cannot smear by this weight: got 2.0, expected 0 to 1
    """

    exit_code = Exit.FAILED

    def __init__(
        self,
        what: str,
        *,
        why: object = None,
        got: object = None,
        expected: object = None,
        hint: str | None = None,
        everywhere: bool = False,
    ) -> None:
        super().__init__(what)
        self.what, self.why, self.got, self.expected, self.hint = what, why, got, expected, hint
        self.everywhere = everywhere

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions pickle by their positional arguments; this one travels between ranks whole, its
        # values as text, because an offending value may be something that does not pickle.
        values = {"why": self.why, "got": self.got, "expected": self.expected}
        texts = {name: None if value is None else str(value) for name, value in values.items()}
        return (type(self), (self.what,), {**self.__dict__, **texts})

    def __str__(self) -> str:
        details = [] if self.why is None else [str(self.why).rstrip(".")]
        if self.got is not None:
            details.append(f"got {self.got if str(self.got) else repr('')}")
        if self.expected is not None:
            details.append(f"expected {self.expected}")
        sentence = self.what + (": " + ", ".join(details) if details else "")
        return shortened(sentence + (f". Try: {self.hint}" if self.hint else ""))


class UserError(MeshrunError):
    """A request that cannot be carried out, such as a wrong option or file; the exit status is 2.

    Its parameters are those of `MeshrunError`.

    Examples
    --------
    >>> raise meshrun.UserError("cannot smear by this weight", got=2.0, hint="0.5")
    Traceback (most recent call last):
    meshrun.runner.errors.UserError: cannot smear by this weight: got 2.0. Try: 0.5
    """

    exit_code = Exit.BAD_REQUEST


class RunError(MeshrunError):
    """A failure of a run whose request was right; the exit status is 1.

    Its parameters are those of `MeshrunError`.

    Examples
    --------
    >>> raise meshrun.RunError("the energy is not finite after step 12", everywhere=True)
    Traceback (most recent call last):
    meshrun.runner.errors.RunError: the energy is not finite after step 12
    """


class BadResult(RunError):
    """The run is complete, and its result has an exit status of its own.

    Parameters
    ----------
    what : str
        What the result is.
    exit_code : int
        The exit status.

    Examples
    --------
    >>> raise meshrun.BadResult("3 of 8 GPUs are slow", 1)
    Traceback (most recent call last):
    meshrun.runner.errors.BadResult: 3 of 8 GPUs are slow
    """

    def __init__(self, what: str, exit_code: int) -> None:
        super().__init__(what, everywhere=True)
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.what, self.exit_code), self.__dict__)


def shortened(text: str) -> str:
    """`text` with the middle of each overlong line left out: a sentence may quote any input."""
    lines = text.split("\n") if len(text) > LONGEST_LINE else []
    if all(len(line) <= LONGEST_LINE for line in lines):
        return text
    return "\n".join(
        line
        if len(line) <= LONGEST_LINE
        else f"{line[: LONGEST_LINE // 2]} ... ({len(line) - LONGEST_LINE:,} characters) ... "
        f"{line[-LONGEST_LINE // 2 :]}"
        for line in lines
    )


def met_by_all(failure: BaseException, sentence: str, trace: str) -> BaseException:
    """Return `failure`, marked as one that every rank raises. sentence: the report of a foreign exception."""
    if isinstance(failure, MeshrunError):
        failure.everywhere = True
    else:
        vars(failure)[MET_BY_ALL] = sentence
    if trace:
        vars(failure)[TRACE] = trace
    return failure


def traceback_of(failure: BaseException) -> str:
    """The traceback, on the rank that has met the failure, which another one may tell."""
    trace: str = vars(failure).get(TRACE) or "".join(traceback.format_exception(failure))
    return trace


def is_met_by_all(failure: BaseException) -> bool:
    """Whether every rank raises this same error at the same step, so that all can end in order."""
    return failure.everywhere if isinstance(failure, MeshrunError) else MET_BY_ALL in vars(failure)


def first_line(reason: Exception) -> str:
    """What a library's error says, without the lines that follow."""
    return (str(reason).strip() or type(reason).__name__).splitlines()[0]


def printable(text: str) -> str:
    """`text` with control characters escaped, which names may hold and terminals obey, and what is no text:
    bytes of names that are not UTF-8. Lines stay lines."""
    return CONTROL.sub(lambda found: _escaped(ord(found[0])), text)


def _escaped(code: int) -> str:
    if 0xDC80 <= code <= 0xDCFF:  # Python's for a byte
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def tell(sentence: str) -> None:
    """One sentence on stderr, in one write so that ranks do not mix; nothing if that cannot be written, as a
    log on a full disk, so that what follows, such as cleaning up, is done."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"meshrun: {printable(sentence)}\n")
        sys.stderr.flush()


def show(text: str, stream: TextIO) -> None:
    """Write a result to a standard stream; RunError if that is a file on a full disk."""
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:  # for the caller to ignore, or to end the command
        raise
    except OSError as reason:
        raise RunError("cannot write to the standard output", why=reason.strerror or reason) from reason


def describe(failure: BaseException) -> str:
    """An error as a sentence; for one raised in a user's function, with its file and line."""
    if isinstance(failure, MeshrunError):
        return str(failure)
    if (met := vars(failure).get(MET_BY_ALL)) is not None:
        return str(met)
    if isinstance(failure, MemoryError):
        return f"out of memory: {str(failure) or 'an allocation failed'}. Try: more ranks, or a smaller array"
    return f"{_in_words(failure)}. Try: {option('debug', True)} for the traceback"


def _in_words(failure: BaseException) -> str:
    """The kind of an error of others, what it says, and the line of the user's file that it comes from."""
    place = _place(failure)
    try:
        words = " ".join(str(failure).split())  # one line, whatever a library makes of it
    except UNPRINTABLE:
        words = ""
    return f"{type(failure).__name__}{': ' + words if words else ''}{f' ({place})' if place else ''}"


def _place(failure: BaseException) -> str:
    """The file and line that raised an error: the last one that is in no library, else the last one."""
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(failure.__traceback__)]
    users = [place for place in lines if not place[0].startswith(("<frozen ", *_libraries()))]
    return "{}:{}".format(*(users or lines)[-1]) if lines else ""


def _shown(path: str) -> str:
    """A path from the working directory if it is in it."""
    with contextlib.suppress(OSError):
        return path.removeprefix(f"{os.getcwd()}{os.sep}")
    return path


def _libraries() -> list[str]:
    """The folders of Python's library, of installed packages and of this package but for its jobs."""
    home = Path(__file__).parents[1]
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    ours = [f"{home}{os.sep}{name}" for name in (f"runner{os.sep}", f"launch{os.sep}", "__")]
    return [*(f"{folder}{os.sep}" for folder in folders), *ours]


@dataclass
class Importing:
    """A UserError out of whatever a module of someone else raises while it is imported.

    An exit too: a rank that left would be waited for. what: such as a file, or a plug-in with its name.
    """

    what: str

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        if failure is None or isinstance(failure, (MeshrunError, KeyboardInterrupt)):
            return
        what, hint = f"{self.what} cannot be imported", f"{option('debug', True)} for the traceback"
        if isinstance(failure, SyntaxError):
            file = _shown(failure.filename) if failure.filename and failure.lineno else self.what
            place = f"{file}, line {failure.lineno}" if failure.lineno else file
            if file == _shown(self.what):
                raise UserError(f"syntax error in {place}", why=failure.msg) from failure
            raise UserError(what, why=f"syntax error in {place}: {failure.msg}") from failure
        if isinstance(failure, ImportError):
            place = _place(failure)
            why = f"{' '.join(str(failure).split())}{f' ({place})' if place else ''}"
            missing = failure.name if isinstance(failure, ModuleNotFoundError) else None
            hint = f"install the package that has {missing}, or correct the name" if missing else hint
            raise UserError(what, why=why, hint=hint) from failure
        if isinstance(failure, SystemExit):
            hint = 'call what exits under if __name__ == "__main__":'
            raise UserError(what, why=f"it ends the program, {_in_words(failure)}", hint=hint) from failure
        raise UserError(what, why=_in_words(failure), hint=hint) from failure
