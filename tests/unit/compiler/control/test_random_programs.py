"""A converted function does what Python's own does: random programs of nested statements."""

from __future__ import annotations

import random
from typing import Any

from both_ways import check_same
from hypothesis import given, settings
from hypothesis import strategies as st

NAMES = ("a", "b", "c", "d")  # and e, which expressions assign
DEEPEST = 3


class Program:
    """A random function. `ask()` in it returns the next of its answers, and raises if there are none."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._lines: list[str] = []
        self._marks = 0

    def text(self) -> str:
        self._lines = [
            "total = 0",
            "def around(kept):",
            " def f(a, answers, *rest, key=3):",
            "  global total",
            "  nonlocal kept",
            "  def ask():",
            "   log('ask')",
            "   if not answers: raise LookupError('no more answers')",
            "   return answers.pop()",
        ]
        if self._chance():
            self._lines += ["  def shift():", "   nonlocal b", "   b = 7", "   return b", "  b = key"]
        else:
            self._lines += ["  def shift():", "   return b"]
        self._block("  ", 0, in_loop=False, in_finally=False)
        if self._chance():
            self._lines.append("  return a, kept, total")
        self._lines += [" return f", "f = around(5)", ""]
        return "\n".join(self._lines)

    def _pick(self, *options: Any) -> Any:
        return self._random.choice(options)

    def _chance(self) -> bool:
        return self._random.random() < 0.5

    def _mark(self) -> int:
        self._marks += 1
        return self._marks

    def _value(self, depth: int = 0) -> str:
        name = self._pick(*NAMES)
        simple = [
            name,
            name,
            "e",
            str(self._pick(0, 1, 2, 9)),
            "key",
            "kept",
            "total",
            "shift()",
            f"log({self._mark()})",
        ]
        if depth > 1:
            return str(self._pick(*simple))
        one, two, three = (self._value(depth + 1) for _ in range(3))
        return str(
            self._pick(
                *simple,
                f"({one} + {two})",
                f"({one} and {two})",
                f"({one} or {two} or {three})",
                f"(not {one})",
                f"({one} if {two} else {three})",
                f"({one} < {two} <= {three} != 4)",
                f"(e := {one})",
                f"[{name} for {name} in range(2) if {one} and {two}]",
                f"[x if {one} else {name} for x in range(2)]",
                f"(lambda x: x if {name} else {one})({two})",
                f"{{{one}: {two}}}",
                f"({one} in [{two}])",
            )
        )

    def _test(self) -> str:
        value = self._value(1)
        return str(
            self._pick(
                "ask()", "ask()", f"ask() and {value}", f"not (ask() or {value})", f"({value}) == 1 or ask()"
            )
        )

    def _block(self, indent: str, depth: int, in_loop: bool, in_finally: bool) -> None:
        for _ in range(self._random.randint(1, 3)):
            self._statement(indent, depth, in_loop, in_finally)

    def _statement(self, indent: str, depth: int, in_loop: bool, in_finally: bool) -> None:
        simple = [
            "assign",
            "change",
            "log",
            "unpack",
            "delete",
            "define",
            "raise",
            "assert",
            "annotate",
            "global",
        ]
        simple += ["return", "return"] + (["break", "continue"] * 2 if in_loop else [])
        nested = [
            "if",
            "else",
            "elif",
            "for",
            "while",
            "for else",
            "while else",
            "try",
            "finally",
            "with",
            "match",
        ]
        kind = self._pick(*simple, *(nested * 2 if depth < DEEPEST else ()))
        getattr(self, f"_{kind.replace(' ', '_')}_statement")(indent, depth, in_loop, in_finally)

    def _line(self, text: str) -> None:
        self._lines.append(text)

    def _assign_statement(self, indent: str, *_: Any) -> None:
        self._line(f"{indent}{self._pick(*NAMES)} = {self._value()}")

    def _change_statement(self, indent: str, *_: Any) -> None:
        self._line(f"{indent}{self._pick(*NAMES, 'total', 'kept')} {self._pick('+', '*')}= {self._value()}")

    def _log_statement(self, indent: str, *_: Any) -> None:
        self._line(f"{indent}log({self._mark()}, {self._value()})")

    def _unpack_statement(self, indent: str, *_: Any) -> None:
        self._line(
            f"{indent}{self._pick('a, b', '*a, b', '(c, d), b')} = {self._pick('(1, 2)', '((3, 4), 5)')}"
        )

    def _delete_statement(self, indent: str, *_: Any) -> None:
        self._line(f"{indent}del {self._pick(*NAMES)}")

    def _define_statement(self, indent: str, *_: Any) -> None:
        name = self._pick(*NAMES)
        self._line(f"{indent}def {name}(x={self._value(1)}): return x if {self._pick(*NAMES)} else key")
        self._line(f"{indent}log({name}.__qualname__, {self._pick(name + '()', '0')})")

    def _raise_statement(self, indent: str, *_: Any) -> None:
        self._line(f"{indent}raise {self._pick('ValueError', 'KeyError')}({self._value(1)})")

    def _assert_statement(self, indent: str, *_: Any) -> None:
        self._line(f"{indent}assert {self._test()}, {self._value(1)}")

    def _annotate_statement(self, indent: str, *_: Any) -> None:
        self._line(f"{indent}c: nothing{self._pick('', ' = ' + self._value())}")

    def _global_statement(self, indent: str, *_: Any) -> None:
        self._line(f"{indent}total = {self._value()}; kept = {self._value()}")

    def _return_statement(self, indent: str, _depth: int, _in_loop: bool, in_finally: bool) -> None:
        self._line(f"{indent}{'pass' if in_finally and self._chance() else f'return {self._value()}'}")

    def _break_statement(self, indent: str, *_: Any) -> None:
        self._line(f"{indent}break")

    def _continue_statement(self, indent: str, *_: Any) -> None:
        self._line(f"{indent}continue")

    def _if_statement(self, indent: str, depth: int, in_loop: bool, in_finally: bool) -> None:
        self._line(f"{indent}if {self._test()}:")
        self._block(f"{indent} ", depth + 1, in_loop, in_finally)

    def _else_statement(self, indent: str, *context: Any) -> None:
        self._if_statement(indent, *context)
        self._line(f"{indent}else:")
        self._block(f"{indent} ", context[0] + 1, *context[1:])

    def _elif_statement(self, indent: str, *context: Any) -> None:
        self._if_statement(indent, *context)
        self._line(f"{indent}elif {self._test()}:")
        self._block(f"{indent} ", context[0] + 1, *context[1:])

    def _for_statement(self, indent: str, depth: int, _in_loop: bool, in_finally: bool) -> None:
        target, items = self._pick(
            ("a", "range(3)"), ("b", "[1, 0]"), ("c, d", "[(1, 2), (0, 3)]"), ("*a, b", "[(1, 2, 3)]"),
            ("a", "a"), ("total", "range(2)"), ("kept", "[4]"), ("a, b", "[(1, 2), 3]"),
        )  # fmt: skip
        self._line(f"{indent}for {target} in {items}:")
        self._block(f"{indent} ", depth + 1, True, in_finally)

    def _for_else_statement(self, indent: str, *context: Any) -> None:
        self._for_statement(indent, *context)
        self._line(f"{indent}else:")
        self._block(f"{indent} ", context[0] + 1, *context[1:])

    def _while_statement(self, indent: str, depth: int, _in_loop: bool, in_finally: bool) -> None:
        self._line(f"{indent}while {self._pick(self._test(), 'ask()', 'True', '(b := ask())')}:")
        self._line(f"{indent} ask()")
        self._block(f"{indent} ", depth + 1, True, in_finally)

    def _while_else_statement(self, indent: str, *context: Any) -> None:
        self._while_statement(indent, *context)
        self._line(f"{indent}else:")
        self._block(f"{indent} ", context[0] + 1, *context[1:])

    def _try_statement(self, indent: str, *context: Any) -> None:
        self._line(f"{indent}try:")
        self._block(f"{indent} ", context[0] + 1, *context[1:])
        self._line(
            f"{indent}except {self._pick('ValueError as b', 'ValueError', '(ValueError, TypeError) as c')}:"
        )
        self._block(f"{indent} ", context[0] + 1, *context[1:])
        if self._chance():
            self._line(f"{indent} {self._pick('raise', 'pass')}")
        if self._chance():
            self._line(f"{indent}else:")
            self._block(f"{indent} ", context[0] + 1, *context[1:])

    def _finally_statement(self, indent: str, depth: int, in_loop: bool, in_finally: bool) -> None:
        self._line(f"{indent}try:")
        self._block(f"{indent} ", depth + 1, in_loop, in_finally)
        self._line(f"{indent}finally:")
        self._block(f"{indent} ", depth + 1, in_loop and self._chance(), True)

    def _with_statement(self, indent: str, *context: Any) -> None:
        self._line(f"{indent}with Held({self._chance()}) as {self._pick(*NAMES)}:")
        self._block(f"{indent} ", context[0] + 1, *context[1:])

    def _match_statement(self, indent: str, *context: Any) -> None:
        self._line(f"{indent}match {self._value(1)}:")
        for case in ("1 | 2", "[d, *b]", "c if c and a"):
            self._line(f"{indent} case {case}:")
            self._block(f"{indent}  ", context[0] + 1, *context[1:])


HELD = """
class Held:
    def __init__(self, silent): self.silent = silent
    def __enter__(self): log('enter'); return 2
    def __exit__(self, kind, reason, trail):
        log('exit', kind is ValueError); return self.silent and kind is ValueError
"""
ANSWERS = ([], [1], [0, 1], [0, 1, 1, 0, 1], [1, 0, 0, 1, 0, 1, 1, 1, 0], [1] * 12)


@settings(max_examples=settings.default.max_examples * 3)
@given(st.integers(0, 10**9))  # a seed: to draw each statement would take ten times as long as to run them
def test_a_random_program_does_the_same(seed: int) -> None:
    text = HELD + Program(seed).text()
    check_same(text, *((1, list(answers)) for answers in ANSWERS))
