"""The two errors a user meets, and how they read: what, got, expected, try."""

from __future__ import annotations


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
