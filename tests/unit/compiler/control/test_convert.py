"""Which functions are converted, and that those that are awkward to convert do what they did."""

from __future__ import annotations

import linecache
import textwrap
import traceback
import types
from pathlib import Path
from typing import Any

import pytest
from both_ways import check_same, compiled, converted

from meshrun.runner.compiler.control.convert import convert
from meshrun.runner.compiler.control.plain import CONTROL, UNBOUND, LocalState, PlainControl

AWKWARD = {
    "a loop variable is kept after the loop": """
        def f(n):
            for i in range(n):
                pass
            return i
        """,
    "each iteration's function reads the last value": """
        def f(n):
            made = []
            for i in range(n):
                made.append(lambda: i)
                def named(): return i * 2
                made.append(named)
            return [each() for each in made]
        """,
    "break and else, two loops deep": """
        def f(n):
            for i in range(n):
                for j in range(n):
                    if i * j == 2:
                        break
                    log(i, j)
                else:
                    log('else', i)
                    continue
                break
            else:
                return 'never'
            return i, j
        """,
    "an inner loop's else breaks the outer one": """
        def f(n):
            for i in range(n):
                while i < 5:
                    i += 1
                else:
                    if i > 5: break
                    continue
                log(i)
            return i
        """,
    "return from three loops, through finally and with": """
        import contextlib
        @contextlib.contextmanager
        def held():
            log('in')
            try: yield 4
            finally: log('out')
        def f(n):
            for i in range(n):
                try:
                    with held() as k:
                        while True:
                            i += 1
                            if i > k: return i, k
                            if i == 2: break
                finally:
                    log('finally', i)
            return 'end'
        """,
    "a value is returned before finally changes it": """
        def f(n):
            for i in range(n):
                value = [i]
                try:
                    return value
                finally:
                    value = 'changed'
        """,
    "try's else does not run after a jump": """
        def f(n):
            for i in range(n):
                try:
                    if i == 1: continue
                    if i == 2: break
                except ValueError:
                    log('no')
                else:
                    log('else', i)
            return i
        """,
    "finally drops an exception by continue": """
        def f(n):
            done = 0
            for i in range(n):
                for j in range(2):
                    if j: continue
                    done += 1
                if i == 7:
                    return 'left'
                try:
                    raise ValueError
                finally:
                    continue
            return done if done else 'none'
        """,
    "return in finally": """
        def f(n):
            for i in range(n):
                log(i)
            try:
                return n / 0
            finally:
                if n: return 'finally'
        """,
    "private names in a class": """
        class Kept:
            def __init__(self): self.__n = 2
            def run(self, n):
                __total = self.__n
                for __i in range(n):
                    __total += __i
                    if __total > 4: break
                return __total, __i
        def f(n): return Kept().run(n)
        """,
    "names that are global or nonlocal": """
        count = 0
        def around():
            inner = 1
            def f(n):
                for i in range(n):
                    global count
                    nonlocal inner
                    count += i
                    inner *= 2
                    if count > 3:
                        count = -1
                return count, inner
            return f
        f = around()
        """,
    "a variable of nothing but a body, and a global of its name": """
        x = 'global'
        def f(n):
            def ask(): return x
            for i in range(n):
                x = i
            return x, ask()
        """,
    "unbound after the loop": """
        def f(n):
            for i in range(n):
                if i == 7: x = 1
            return x
        """,
    "unbound in the body": """
        def f(n):
            for i in range(n):
                log(i)
                if i and x: return x
                x = 0 if i else y
        """,
    "deleted in the body": """
        def f(n):
            for i in range(n):
                x = i
                del x
                if i == 1: return x
            del i
            return [x for x in 'ab']
        """,
    "a tuple, a star, an attribute and an item as targets": """
        class Box: pass
        def f(n):
            box, items = Box(), [0] * n
            for (a, *b), box.c in [((1, 2, 3), 4), ((5,), 6)]: log(a, b, box.c)
            for items[0], items[-1] in [(1, 2)]: log(items)
            for a, b in [(1, 2), 3]: log(a)
        """,
    "walrus in tests and in comprehensions": """
        def f(n):
            while (k := n - 1) > 0 and (n := k):
                log(k, n)
                if any((last := i) > 1 for i in range(n)): log(last)
            return k, n, [x if (y := x) else -1 for x in range(3)], y
        """,
    "tests are asked once, as Python does": """
        class Truth:
            def __init__(self, name, value): self.name, self.value = name, value
            def __bool__(self): log(self.name); return self.value
            def __lt__(self, other): log('lt'); return Truth(self.name + '<', other.value)
            def __repr__(self): return self.name
        def f(n):
            a, b = Truth('a', True), Truth('b', False)
            if a and not b or n: log(1)
            if not (a or b): log(2)
            while a and b: pass
            log(a and b, a or b, not a, a and b and a, a < b < a, a < a < b)
            if a < b < a: log(3)
            return [x for x in (a, b) if x and a], 'yes' if a and b else 'no'
        """,
    "exceptions of a handler are raised again": """
        def f(n):
            for i in range(n):
                try:
                    [][i]
                except IndexError as reason:
                    if i: raise
                    log(reason)
                try:
                    log(reason)
                except NameError:
                    log('unbound')
            log(reason)
        """,
    "assert with and without a message": """
        def f(n):
            assert n > 0
            for i in range(n):
                assert i < 2, log('message', i)
        """,
    "annotated variables": """
        def f(n):
            total: int = 0
            for i in range(n):
                x: undefined
                (y): undefined = i
                total: undefined = total + y
            return total
        """,
    "imports, classes and match in a body": """
        def f(n):
            for i in range(n):
                import math as m, os.path
                class Kind:
                    value = i
                    def get(self): return i, Kind.__qualname__, self.get.__qualname__
                match [i, (n, 'x')]:
                    case [1, (k, *rest)] if k and rest: log(k, rest); break
                    case {'a': 1, **others}: pass
                    case other: log(other)
            return Kind().get(), m.__name__, os.__name__, k
        """,
    "recursion, defaults and keywords": """
        def f(n, k=3, *rest, last=1, **named):
            if n > 2: return n
            if n > 1: return f(n + 1, k, n, last=k, more=named)
            return f(n + 1, k + 1, *rest, last=last) + k
        """,
    "a decorated function": """
        import functools
        def twice(function):
            @functools.wraps(function)
            def called(*given):
                if given[0]: return function(*given), function(*given)
                return None
            return called
        @twice
        @twice
        def inner(n):
            for i in range(n):
                if i: return i
        def f(n): return inner.__wrapped__(n), inner(n)
        """,
    "super() and __class__ in loops": """
        class Base:
            def add(self, k): return k + 1
        class Sum(Base):
            def add(self, k):
                for _ in range(2):
                    k = super().add(k) if k < 99 else __class__.__name__
                    if k == 3: return super().add(k), [super(Sum, self).add(i) for i in range(2)]
                return k
        def f(n): return [Sum().add(k) for k in (0, 1, 2)]
        """,
    "errors of the iterable, of its items and of a test": """
        def f(n):
            class Bad:
                def __bool__(self): raise KeyError('bad')
            try:
                for i in n: pass
            except TypeError as reason:
                log(str(reason))
            def items():
                yield 1
                raise ValueError('items')
            for i in items():
                log(i)
                if i == 5 or Bad(): return
        """,
    "an iterator is not asked again after break": """
        def f(n):
            def items():
                for i in range(9):
                    log('next', i)
                    yield i
            source = items()
            for i in source:
                if i == n: break
            return next(source)
        """,
    "StopIteration in a body": """
        def f(n):
            for i in range(n):
                next(iter(()))
        """,
    "statements after a jump": """
        def f(n):
            for i in range(n):
                if i:
                    break
                    unreached = 1
                else:
                    continue
                    log('never')
            return unreached
            i = 3
        """,
    "long chains of elif": """
        def f(n):
            if n == 0: x = 'a'
            elif n == 1: return 'b'
            elif n == 2: x = 'c'
            elif n == 3: raise KeyError(n)
            else: y = 1
            return x
        """,
    "coroutines, generators and classes in a function": """
        def f(n):
            for i in range(n):
                async def later():
                    while i:
                        if i > 1: return i
                        await other()
                        break
                def items():
                    for k in range(3):
                        if k > i: return
                        yield k
                class Kind((base := object), metaclass=(kind := type)):
                    value = 'a' if i else 'b'
                    if i: other = [k for k in range(2) if k and i]
                run = later()
                try: run.send(None)
                except StopIteration as reason: log(reason.value)
                except NameError as reason: log(str(reason))
                log([*items()], Kind.value, getattr(Kind, 'other', 0), base, kind)
                log((lambda x=(y := i): x)(), y)
            return n
        """,
    "docstring, ellipsis and pass": """
        def f(n):
            "doc"
            while n: n -= 1; ...
            if n: pass
            else: pass
        """,
}  # fmt: skip
CALLS = ([0], [1], [2], [3], [5])


@pytest.mark.parametrize("name", AWKWARD)
def test_an_awkward_function_does_the_same(name: str) -> None:
    check_same(textwrap.dedent(AWKWARD[name]), *CALLS)


METHOD = """
class Base:
    def add(self, k): return k + 1
class Sum(Base):
    def add(self, k):
        for _ in range(2):
            k = super().add(k) if k < 99 else __class__.__name__
            if k == 3:
                return [super(Sum, self).add(i) for i in range(2)], (lambda: __class__)()
        return k
f = Sum.add
one = Sum()
"""


def test_a_method_finds_its_class() -> None:
    method = compiled(METHOD)
    changed = converted(method)
    one = method.__globals__["one"]
    assert [changed(one, k) for k in (0, 1, 5, 98)] == [method(one, k) for k in (0, 1, 5, 98)]


def test_a_super_of_the_users_own_stays() -> None:
    method = compiled(METHOD.replace("class Base", "super = print\nclass Base"))
    assert convert(method) is None


@pytest.mark.parametrize(
    "text",
    [
        "f = lambda n: n if n else 1",
        "f, g = lambda n: n if n else 1, lambda n: 2 if n else 3",
        "def f(n):\n    for i in range(n): yield i",
        "async def f(n):\n    for i in range(n): await i",
        "def f(n):\n    for i in range(n): x = locals()\n    return x",
        "def f(n):\n    if n: eval('n')",
        "def f(n):\n    return n + 1",
        "def f(n):\n    '''if a: b'''",
        "def f(n):\n    try:\n        return n\n    finally:\n        return 2",
    ],
)
def test_a_function_that_cannot_be_or_need_not_be_converted_stays(text: str) -> None:
    assert convert(compiled(text)) is None


def test_a_function_without_source_stays() -> None:
    space: dict[str, Any] = {}
    exec("def f(n):\n    if n: return 1", space)
    assert convert(space["f"]) is None


def test_a_function_whose_file_has_changed_stays(tmp_path: Path) -> None:
    file = tmp_path / "user.py"
    text = "def f(n):\n    if n:\n        return 1\n"
    file.write_text(text)
    first: dict[str, Any] = {}
    exec(compile(text, str(file), "exec"), first)
    file.write_text(text.replace("1", "2"))
    linecache.checkcache(str(file))
    assert convert(first["f"]) is None


def test_a_function_whose_lines_have_moved_is_converted_anew(tmp_path: Path) -> None:
    file = tmp_path / "user.py"
    text = "def f(n):\n    if n:\n        return 1\n"
    lines = []
    for moved in (text, text.replace("    if", "\n    if")):
        file.write_text(moved)
        space: dict[str, Any] = {}
        exec(compile(moved, str(file), "exec"), space)
        code = convert(space["f"])
        assert code is not None
        lines += [part.co_firstlineno for part in code.co_consts if isinstance(part, types.CodeType)][:1]
    assert lines == [2, 3]


def test_a_file_may_have_form_feeds_and_carriage_returns(tmp_path: Path) -> None:
    file = tmp_path / "user.py"
    text = 'x = "a\x0cb"\r\n\x0c\r\nclass Kind:\r\n\tdef f(n):\r\n\t\tif n:\r\n\t\t\treturn 1\r\n'
    file.write_bytes(text.encode())
    space: dict[str, Any] = {}
    exec(compile(file.read_bytes(), str(file), "exec"), space)
    assert convert(space["Kind"].f) is not None


def test_a_function_may_be_long_and_deep() -> None:
    many = [f"    if n == {k}: return {k}\n" for k in range(300)]
    few = converted(compiled("def f(n):\n" + "".join(many[:50])))
    assert [few(k) for k in (0, 49, 50)] == [0, 49, None]
    assert convert(compiled("def f(n):\n" + "".join(many))) is None  # each is in a branch of the one before
    check_same(f"def f(n):\n    if n: return {' + '.join(['n'] * 200)}\n", [1])
    assert convert(compiled(f"def f(n):\n    if n: return {' + '.join(['n'] * 2000)}\n")) is None


def test_code_that_is_equal_in_another_file_keeps_its_file() -> None:
    text = "def f(n):\n    if n: return 1\n"
    one, other = compiled(text), compiled(text)
    assert one.__code__ == other.__code__
    codes = convert(one), convert(other)
    assert [code and code.co_filename for code in codes] == [
        one.__code__.co_filename,
        other.__code__.co_filename,
    ]
    assert convert(one) is codes[0]


def test_what_cannot_be_converted_stays_and_the_rest_is_converted() -> None:
    function = compiled(textwrap.dedent(AWKWARD["finally drops an exception by continue"]))
    statements = converted(function).__code__.co_varnames
    assert "<for>" in statements  # the inner loop
    assert "<if>" not in statements  # it returns from a loop that stays


def test_a_traceback_shows_the_users_lines() -> None:
    text = "def f(n):\n for i in range(n):\n  if i:\n   while True:\n    i / (n - n)\n"
    with pytest.raises(ZeroDivisionError) as failure:
        converted(compiled(text))(2)
    shown = [
        (each.name, each.line)
        for each in traceback.extract_tb(failure.value.__traceback__)
        if each.filename.startswith("<cell")
    ]
    assert shown == [
        ("f", "for i in range(n):"),
        ("<for>", "if i:"),
        ("<if>", "while True:"),
        ("<while>", "i / (n - n)"),
    ]


class Noting(PlainControl):
    """Notes the calls with their states."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def branch(self, test: Any, then: Any, otherwise: Any, state: LocalState) -> None:
        self.calls.append(("branch", state.names[: state.assigned], state.names[state.assigned :]))
        super().branch(test, then, otherwise, state)

    def for_loop(self, iterable: Any, go_on: Any, body: Any, state: LocalState) -> None:
        line = body.__code__.co_firstlineno
        self.calls.append(
            ("for", line, state.names[: state.assigned], state.names[state.assigned :], state.get())
        )
        super().for_loop(iterable, go_on, body, state)


def noted(text: str, *arguments: Any) -> list[Any]:
    function = compiled(text)
    control = function.__globals__[CONTROL] = Noting()
    code = convert(function)
    assert code is not None
    types.FunctionType(code, function.__globals__)(*arguments)
    return control.calls


def test_a_control_gets_the_variables_that_a_statement_assigns_and_reads() -> None:
    text = "def f(n, tol):\n x = 1\n for i in range(n):\n  x, y = x * tol, [k for k in range(i)]\n return n"
    assert noted(text, 0, 2) == [("for", 3, ("i", "x", "y"), ("tol",), (UNBOUND, 1, UNBOUND, 2))]


def test_jumps_are_flags_where_they_are_asked() -> None:
    text = "def f(n):\n for i in range(n):\n  for j in range(n):\n   if j == 1: break\n  n += 0\n"
    calls = noted(f"{text} if n: return 1\n return 2\n", 1)
    assert calls[0] == ("for", 2, ("i", "j", "n"), (), (UNBOUND, UNBOUND, 1))  # the flag is the body's
    assert calls[1][2:4] == (("<break 3>", "j"), ())
    assert calls[-1] == ("branch", ("<result>",), ())  # both branches return: no flag is asked


def test_a_state_reads_and_assigns_the_variables() -> None:
    def outer() -> Any:
        a, b = 1, 2
        state = LocalState(lambda: (a, b), ("b",))
        assert state.names == ("b", "a")
        assert state.assigned == 1
        assert state.get() == (2, 1)
        state.set((5, UNBOUND))
        assert b == 5
        with pytest.raises(NameError):
            print(a)
        return state.get()

    assert outer() == (5, UNBOUND)
