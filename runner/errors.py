"""The two errors a user meets, and how they read: what, got, expected, try."""

from __future__ import annotations

from typing import Any


class MeshrunError(Exception):
    """A failure told as one sentence, without a traceback.

    Parameters
    ----------
    what: what was being done to what, and how it failed.
    got, expected: the offending value and what would have been right.
    hint: what to type or change; printed after "Try:".
    everywhere: true when every rank raises this same error at the same step,
        so that all can end in order and only rank 0 needs to speak.
    """

    exit_code = 1

    def __init__(
        self,
        what: str,
        *,
        got: object = None,
        expected: object = None,
        hint: str | None = None,
        everywhere: bool = False,
    ) -> None:
        super().__init__(what)
        self.what, self.got, self.expected, self.hint = what, got, expected, hint
        self.everywhere = everywhere

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions pickle by their positional arguments; this one travels between ranks whole, its
        # values as text, because an offending value may be something that does not pickle.
        values = {"got": self.got, "expected": self.expected}
        texts = {name: None if value is None else str(value) for name, value in values.items()}
        return (type(self), (self.what,), {**self.__dict__, **texts})

    def __str__(self) -> str:
        details = []
        if self.got is not None:
            details.append(f"got {self.got}")
        if self.expected is not None:
            details.append(f"expected {self.expected}")
        sentence = self.what + (": " + ", ".join(details) if details else "")
        return sentence + (f". Try: {self.hint}" if self.hint else "")


class UserError(MeshrunError):
    """Something the user asked for cannot be done: exit status 2."""

    exit_code = 2


class RunError(MeshrunError):
    """The run was asked for rightly and failed: exit status 1."""


def first_line(reason: Exception) -> str:
    """What a library's error says, without the lines that follow."""
    return (str(reason).strip() or type(reason).__name__).splitlines()[0]
