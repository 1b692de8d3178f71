"""A function's key changes with all that its trace may depend on, or there is none."""

from __future__ import annotations

import functools
import math
import random
import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.jobs.filters.grayscale import grayscale
from meshrun.jobs.filters.laplacian import laplacian
from meshrun.runner.compiler.function_key import key_of

CODE = """
import math, time, random, os
import numpy
import numpy as np
from numpy import where, sqrt

GAIN, FLAG, NAME, TABLE, WEIGHTS = 2.0, True, "a", {"a": [1, 2]}, np.array([1.0, 2.0])
BIG = np.zeros(10_000)
NAMES = {"a", "b"}

def helper(x):
    return x * GAIN

def deeper(x):
    return helper(x) + 1

def recursive(x, n=3):
    return x if n == 0 else recursive(x * GAIN, n - 1)

def plain(x, *, rate=0.5):
    return where(x > 0, sqrt(x), math.pi * x) + rate * np.maximum(x, 1).astype(np.float32)
def global_number(x): return x * GAIN
def through_helpers(x): return deeper(x)
def in_lambda(x): return (lambda y: y * GAIN)(x)
def in_comprehension(x): return sum(one * GAIN for one in (x, x))
def table(x): return x * TABLE["a"][0]
def names(x): return x * (NAME in NAMES) + len(set(NAME))
def weights(x): return x * WEIGHTS[0]
def settings(x): return x * module.gain
def of_module(x): return module.scale(x)
def constants(x): return x[1:-1] + np.zeros_like(x[2:]) + np.float32(1) + np.pi + x.T.shape[0] + len(x)
def default(x, y=np.array([1.0])): return x + y
def xps(x, *, xp): return xp.where(x > 1, xp.sqrt(x), 0)
def caught(x):
    try:
        return x + 1
    except ValueError as reason:
        raise TypeError("no") from reason

helper.gain = 1.0
def own_attribute(x): return x * helper.gain
def own_alias(x):
    alias = helper
    return x * alias.gain

def clock(x): return x + time.time()
def coin(x): return x + random.random()
def noise(x): return x + np.random.rand()
def noise_of_xp(x, *, xp): return x + xp.random.rand()
def file(x): return x + np.load("a.npy")
def opened(x): return x + len(open("a").read())
def environment(x): return x + int(os.environ["A"])
def attribute(x): return x + thing.gain
def call_object(x): return thing(x)
def big(x): return x + BIG[0]
def late_import(x):
    import module
    return x * module.gain
def evaluated(x): return eval("x * GAIN")
def by_name(x): return x * globals()["GAIN"]
def written(x):
    global GAIN
    GAIN += 1
    return x
def whole_module(x): return helper2(x, np)
def helper2(x, xp): return xp.sqrt(x)
def unknown(x): return x + no_such_name
def reflection(x): return x * helper.__globals__["GAIN"]
from numpy.fft import fftfreq, rfft2
def transformed(x): return np.fft.irfft2(np.fft.rfft2(x) * np.fft.fftfreq(4)) + rfft2(x) * fftfreq(4)
"""


@pytest.fixture
def user() -> Any:
    module: Any = ModuleType("user")
    module.module = ModuleType("settings")
    exec("gain = 3.0\nfactor = 4.0\ndef scale(x): return x * factor", module.module.__dict__)
    module.thing = SimpleNamespace(gain=1.0)
    exec(compile(CODE, "user.py", "exec"), module.__dict__)
    return module


HAVE_KEYS = [
    "plain", "global_number", "through_helpers", "in_lambda", "in_comprehension", "table", "weights",
    "names",
    "settings", "of_module", "constants", "default", "xps", "caught", "recursive", "transformed",
]  # fmt: skip
HAVE_NONE = [
    "clock", "coin", "noise", "noise_of_xp", "file", "opened", "environment", "attribute", "call_object",
    "big", "late_import", "evaluated", "by_name", "written", "whole_module", "unknown", "reflection",
]  # fmt: skip


@pytest.mark.parametrize("name", HAVE_KEYS)
def test_pure_functions_have_a_key(user: Any, name: str) -> None:
    key = key_of(user.__dict__[name])
    assert key is not None
    assert key == key_of(user.__dict__[name])
    assert hash(key) == hash(key_of(user.__dict__[name]))


@pytest.mark.parametrize("name", HAVE_NONE)
def test_what_may_read_anything_else_has_none(user: Any, name: str) -> None:
    assert key_of(user.__dict__[name]) is None


CHANGES: list[tuple[str, Callable[[Any], Any]]] = [
    ("global_number", lambda user: setattr(user, "GAIN", 3.0)),
    ("global_number", lambda user: setattr(user, "GAIN", 2)),  # another type: another dtype of the result
    ("global_number", lambda user: setattr(user, "GAIN", np.float32(2))),
    ("through_helpers", lambda user: setattr(user, "GAIN", 3.0)),
    ("through_helpers", lambda user: setattr(user, "helper", lambda x: x)),
    ("in_lambda", lambda user: setattr(user, "GAIN", 3.0)),
    ("in_comprehension", lambda user: setattr(user, "GAIN", 3.0)),
    ("recursive", lambda user: setattr(user, "GAIN", 3.0)),
    ("recursive", lambda user: setattr(user.recursive, "__defaults__", (4,))),
    ("table", lambda user: user.TABLE["a"].__setitem__(0, 9)),
    ("names", lambda user: user.NAMES.add("c")),
    ("weights", lambda user: user.WEIGHTS.__setitem__(0, 9)),
    ("settings", lambda user: setattr(user.module, "gain", 4.0)),
    ("settings", lambda user: setattr(user, "module", SimpleNamespace(gain=1))),
    ("of_module", lambda user: setattr(user.module, "factor", 5.0)),
    ("of_module", lambda user: setattr(user.module, "scale", lambda x: x)),
    ("plain", lambda user: setattr(user.plain, "__kwdefaults__", {"rate": 0.25})),
    ("plain", lambda user: setattr(user, "sqrt", np.exp)),
    ("plain", lambda user: setattr(user, "where", lambda a, b, c: a)),
    ("plain", lambda user: setattr(user, "math", SimpleNamespace(pi=3))),
    ("plain", lambda user: setattr(user.plain, "__code__", user.helper.__code__)),
    ("default", lambda user: user.default.__defaults__[0].__setitem__(0, 9)),
    ("in_comprehension", lambda user: setattr(user, "sum", max)),  # a global hides a builtin
    ("own_attribute", lambda user: setattr(user.helper, "gain", 2.0)),
    ("own_alias", lambda user: setattr(user.helper, "gain", 2.0)),
]


@pytest.mark.parametrize(("name", "change"), CHANGES, ids=map(str, range(len(CHANGES))))
def test_the_key_changes_with_what_the_function_reads(user: Any, name: str, change: Any) -> None:
    before = key_of(user.__dict__[name])
    assert before is not None
    change(user)
    assert key_of(user.__dict__[name]) != before


def test_closures() -> None:
    def make(gain: Any) -> Any:
        return lambda x: x * gain + np.sqrt(x)

    assert key_of(make(2.0)) == key_of(make(2.0)) is not None
    assert len({key_of(make(gain)) for gain in (2.0, 2, True, -0.0, 0.0, np.float32(2), (1,), (True,))}) == 8
    assert key_of(make(math.nan)) == key_of(make(math.nan))
    assert key_of(make(object())) is None
    assert key_of(make(np)) is None
    assert key_of(make(time)) is None
    assert key_of(make(random.Random(1))) is None

    count = 0

    def counts(x: Any) -> Any:
        nonlocal count
        count += 1
        return x + count

    assert key_of(counts) is None

    def early(x: Any) -> Any:
        return x * later

    assert key_of(early) is None  # not assigned yet
    later = 3
    assert key_of(early) is not None


def test_objects_that_can_be_called_have_none() -> None:
    class Scale:
        gain = 2.0

        def __call__(self, x: Any) -> Any:
            return x * self.gain

        def method(self, x: Any) -> Any:
            return x * self.gain

    assert key_of(Scale()) is None
    assert key_of(Scale().method) is None
    assert key_of(Scale) is None
    assert key_of(lambda x: Scale().method(x)) is None

    class Number(int):
        """May have attributes, too."""

    assert key_of(Number(2)) is None


def test_a_function_of_the_same_text_elsewhere_is_another(user: Any) -> None:
    other: Any = ModuleType("user")
    exec(compile(CODE, "user.py", "exec"), other.__dict__)
    assert key_of(other.global_number) == key_of(user.global_number)  # it reads the same
    other.GAIN = 7.0
    assert key_of(other.global_number) != key_of(user.global_number)


def test_a_job_has_a_key_of_each_of_its_functions(user: Any) -> None:
    def out(shape: Any, dtype: Any, *, rate: float) -> Any:
        return shape, np.dtype(np.float32) if rate else dtype

    def check(shape: Any, dtype: Any, **given: Any) -> None:
        if len(shape) < 2:
            raise ValueError(given)

    job = meshrun.map_blocks(out=out, check=check)(user.plain)
    assert key_of([job.out, job.check]) is not None
    other = meshrun.map_blocks(out=lambda shape, dtype: (shape, dtype))(user.plain)
    assert key_of(other.out) != key_of(job.out)


def test_functions_of_meshruns_jobs_are_the_same_as_long_as_it_runs() -> None:
    assert key_of(laplacian.function) == key_of(laplacian.function) is not None
    assert key_of(laplacian.function) != key_of(grayscale.function)

    @functools.wraps(laplacian.function)
    def wrapped(block: Any, **given: Any) -> Any:
        return time.time()

    assert key_of(wrapped) is None
