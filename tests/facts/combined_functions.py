"""Functions of whole arrays that combine features, and their arrays, drawn from random numbers."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

import meshrun
from meshrun.runner.job.declaration import Job

STEPS = 5  # rows of a table in time
FEATURES = (
    "complex", "edges", "time", "points", "constants", "exact", "sums", "coarse", "leapfrog", "series",
    "third",
)  # fmt: skip

# Statements by feature. They read and write fields {a}, {b}, {c}; w is coarse, t is a value.
CELLS = (
    "{a}[1:-1, 1:-1] += rate * ({b}[2:, 1:-1] + {b}[:-2, 1:-1] + {b}[1:-1, 2:] + {b}[1:-1, :-2]"
    " - 4 * {b}[1:-1, 1:-1])",
    "{a} = {a} * 0.5 + np.roll({b}, {j}, axis={x}) * 0.25",
    "{a} = 0.5 * {b} + 0.25 * np.roll(np.roll({b}, 1, 0), -1, 1) - 0.125 * {c}",
    "{a}[2:] = {a}[2:] * 0.5 + {b}[:-2] * 0.25",
    "{a}[1:-1] = {b}[1:-1] + 0.125 * ({b}[2:] - {b}[:-2])",
)
EDGES = (
    "{a}[0], {a}[-1] = {a}[1], {a}[-2]\n    {a}[:, 0], {a}[:, -1] = {a}[:, 1], {a}[:, -2]",
    "{a}[0], {a}[-1] = {a}[-2], {a}[1]\n    {a}[:, 0], {a}[:, -1] = {a}[:, -2], {a}[:, 1]",
    "{a}[0], {a}[-1] = {a}[-2], {a}[1]",
    "{a}[:, 0], {a}[:, -1] = {a}[:, -2], {a}[:, 1]",
    "{a}[0], {a}[:, -1] = 1, {a}[:, -2]",
    "{a}[-1] = 2 * {a}[-2] - {a}[-3]",
    "{a}[0] = {b}[0] * 0.5",
    "{a}[1] = {a}[4]",
)
COMPLEX = (
    "{a} = {a} + 0.125j * {b}",
    "{a}.real[1:-1] = {b}.imag[1:-1] * 0.5",
    "{a}.imag[:, 0] = 0.25",
    "{a} = np.conj({a}) * 0.75 - 0.125j * np.roll({b}, 1, 1)",
    "{a} = {a} * (0.5 + {b}.real**2 * 0.25)",
)
TIME = (
    "{a}[0] = table[step, 0]",
    "{a} += 0.0625 * table[step, 1]",
    "{a}[3, 4] += 0.5 * (step % 3)",
    "{a} = {a} * np.where(step % 2 == 0, 0.5, 0.75)",
)
POINTS = (
    "{a}[YS, XS] += V",
    "{a}[YS, XS] += V * table[step, 0]",
    "{a}[ROWS, 3] = 0.5",
    "np.add.at({a}, (YS, XS), V)",
    "{a}[YS, XS] = {b}[YS, XS] * 0.5",
)
CONSTANTS = (
    "{a} += 0.125 * PLATE",
    "{a} = {a} * COLUMN + LINE",
    "{a}[:, 0] = COLUMN[:, 0]",
    "{a}[1:-1] += 0.25 * PLATE[:-2]",
)
EXACT = (
    "{a} = {a} / (np.max(np.abs({b}.real)) + 1)",
    "{a}[0] = {b}.real.min() * 0.5",
    "{a} = {a} * 0.5 + {b}[2, 3] * 0.25",
    "t += 0.125 * {a}.real[1:-1].max()",
    "t = t * 0.5 + 0.001 * np.count_nonzero({a}.real > 0.5)",
    "{a} -= 0.125 * {b}.real.max(axis={x}, keepdims=True)",
    "{a}[YS, XS] = 0.5 * {b}.real.max()",
)
SUMS = (
    "{a} -= 0.5 * {b}.mean()",
    "{a} = {a} / (np.linalg.norm({b}) + 1)",
    "t += 0.125 * np.vdot({a}, {a}).real / {a}.size",
    "{a} -= 0.25 * {b}.mean(axis={x}, keepdims=True)",
    "t = 0.5 * t + ({a} * {b}).real.sum() / {a}.size",
    "{a}[YS, XS] += 0.25 * {b}.sum() / {b}.size",
)
COARSE = (
    "w = {a}.real[::2, ::2] * 0.5 + w * 0.25",
    "w[1:-1, 1:-1] += 0.125 * (w[2:, 1:-1] + w[:-2, 1:-1] - 2 * w[1:-1, 1:-1])",
    "{a}[::2, ::2] += 0.25 * w",
    "{a} += 0.125 * np.repeat(np.repeat(w, 2, 0), 2, 1)[: {a}.shape[0], : {a}.shape[1]]",
    "w[0], w[-1] = w[1], w[-2]",
    "e = np.zeros_like({a})\n    e[::2, ::2] = w\n    e[1:-1:2] = 0.5 * e[:-2:2] + 0.5 * e[2::2]\n"
    "    {a} += 0.25 * e",
)
COARSE_CONSTANTS = ("w = w * 0.5 + 0.25 * SMALL", "w[0] = SMALL[1] * 0.5")
COARSE_TIME = ("w[0] = table[step, 1]", "w = w * 0.5 + 0.125 * table[step, 0]")
COARSE_EXACT = ("{a} = {a} * 0.5 + 0.125 * w.max()", "w = w / (np.abs(w).max() + 1)", "t += 0.125 * w.min()")
COARSE_SUMS = ("w -= 0.5 * w.mean()", "t += 0.125 * w.sum() / w.size", "{a} -= 0.25 * w.mean()")

POOLS = {
    "edges": EDGES, "complex": COMPLEX, "time": TIME, "points": POINTS, "constants": CONSTANTS,
    "exact": EXACT, "sums": SUMS, "coarse": COARSE,
}  # fmt: skip
COARSE_POOLS = {
    "constants": COARSE_CONSTANTS, "time": COARSE_TIME, "exact": COARSE_EXACT, "sums": COARSE_SUMS,
}  # fmt: skip
SERIES = {"trace": "u[YS, XS]", "cell": "v[3, 4]", "total": "np.max(u.real)"}


@dataclass
class Combined:
    """A function of whole arrays as text, and what it is given.

    names: of its arrays. series: names of its results that are no fields. table: of the parameter in time;
    None: it has none. exact: its results are NumPy's to the bit; it has no sums of floats.
    """

    text: str
    names: list[str]
    series: list[str]
    outputs: list[str]
    arrays: list[Any]
    table: Any
    exact: bool

    def job(self, space: dict[str, Any]) -> Job:
        """Return the job of a new function with these globals."""
        declared: Job = meshrun.distribute(outputs=tuple(self.outputs), series=tuple(self.series))(
            compiled(self.text, space)
        )
        return declared

    def parameters(self, rate: float) -> dict[str, Any]:
        return {"rate": rate} | ({} if self.table is None else {"table": self.table})

    def after(self, job: Job, steps: int, rate: float) -> list[Any]:
        """Return the results after so many calls with NumPy on whole arrays: fields, and rows of series."""
        state, rows = [one.copy() for one in self.arrays], []
        fields: list[Any] = []
        for step in range(steps):
            more = {} if self.table is None else {"table": self.table, "step": step}
            with np.errstate(all="ignore"):
                results = [np.asarray(one) for one in job.function(*state, rate=rate, **more)]
            fields, row = results[: len(self.outputs)], results[len(self.outputs) :]
            rows.append(row)
            # What no result feeds starts each step as it was.
            fed = dict(zip(self.outputs, fields, strict=True))
            pairs = zip(self.names, self.arrays, strict=True)
            state = [np.array(fed.get(name, array)) for name, array in pairs]
        return [*fields, *(np.stack([row[number] for row in rows]) for number in range(len(self.series)))]


def constants(shape: tuple[int, int], seed: int, dtype: str) -> dict[str, Any]:
    """Return what functions for fields of a shape read from outside."""
    rng = np.random.default_rng(seed)
    n, m = shape
    return {
        "np": np, "meshrun": meshrun,
        "YS": np.array([0, n - 1, n // 2, 3]), "XS": np.array([1, m - 1, m // 2, 4]),
        "ROWS": np.array([1, 2, n - 2]), "V": rng.random(4).astype(dtype),
        "PLATE": rng.random(shape).astype(dtype), "COLUMN": rng.random((n, 1)).astype(dtype),
        "LINE": rng.random(m).astype(dtype), "SMALL": rng.random(((n + 1) // 2, (m + 1) // 2)).astype(dtype),
    }  # fmt: skip


def combined(random: Random, features: set[str]) -> Combined:
    """Draw a function of two or three fields, perhaps with a coarse one and a value."""
    # Draw the arrays.
    n, m = random.choice((11, 12, 13, 16)), random.choice((9, 10, 12))
    kinds = ("c8", "c16") if "complex" in features else ("f4", "f8")
    first = random.choice(kinds)
    second = first if "leapfrog" in features or random.random() < 0.6 else random.choice(("f4", "f8"))
    real = np.zeros(0, first).real.dtype.str[1:]
    dtypes = {"u": first, "v": second}
    shapes: dict[str, tuple[int, ...]] = {"u": (n, m), "v": (n, m)}
    if "third" in features:
        dtypes["k"], shapes["k"] = random.choice(("f4", "f8")), (n, m)
    if "coarse" in features:
        dtypes["w"], shapes["w"] = random.choice((real, "f4")), ((n + 1) // 2, (m + 1) // 2)
    if features & {"exact", "sums"}:
        dtypes["t"], shapes["t"] = real, ()
    rng = np.random.default_rng(random.randrange(1 << 30))
    arrays = [made(rng, shapes[name], dtype) for name, dtype in dtypes.items()]
    # Draw statements: one of each feature, and others.
    pools = [CELLS, *(pool for name, pool in POOLS.items() if name in features)]
    if "coarse" in features:
        pools += [pool for name, pool in COARSE_POOLS.items() if name in features]
    timed = bool(features & {"time", "points"})
    statements = [random.choice(random.choice(pools)) for _ in range(random.randint(0, 2))]
    statements += [random.choice(pool) for pool in pools]
    random.shuffle(statements)
    complexes = [name for name, dtype in dtypes.items() if dtype[0] == "c"]
    lines = ["    old = u.copy()"] if "leapfrog" in features else []
    for statement in statements:
        # A complex field reads all others, a real one those that are real.
        written = random.choice(complexes if statement in COMPLEX else ["u", "v"])
        readable = [
            name for name in "uvk" if name in dtypes and (written in complexes or name not in complexes)
        ]
        if statement in COMPLEX:
            readable = complexes
        if statement == SUMS[4] and written in complexes:
            readable = [name for name in readable if name not in complexes] or [written]
        a, b, c = written, random.choice(readable), random.choice(readable)
        lines.append("    " + statement.format(a=a, b=b, c=c, j=random.randint(-3, 3), x=random.randrange(2)))
    # Return all that may have changed.
    outputs = [name for name in dtypes if name != "k"]
    series = (
        random.choice([["trace"], ["trace", "cell"], ["cell"], ["total"]]) if "series" in features else []
    )
    if "t" in dtypes and series:
        series = ["total"]
    typed = {name: f"{name}.astype({dtypes[name]!r}, copy=False)" for name in outputs}
    results = ["old" if name == "v" and "leapfrog" in features else typed[name] for name in outputs]
    results += [SERIES[name] for name in series]
    head = ", ".join(dtypes) + (", step, table: meshrun.Series" if timed else "")
    text = "\n".join(
        [f"def f({head}, *, rate: float = 0.125):", *lines, f"    return {', '.join(results)}", ""]
    )
    table = rng.random((STEPS, 2)).astype("f4") if timed else None
    exact = not set(statements) & {*SUMS, *COARSE_SUMS}
    return Combined(text, list(dtypes), series, outputs, arrays, table, exact)


def made(rng: Any, shape: tuple[int, ...], dtype: str) -> Any:
    values = np.asarray(rng.random(shape)) * 2 - 1
    return np.asarray(values + 1j * rng.random(shape) if dtype[0] == "c" else values).astype(dtype)


def compiled(text: str, space: dict[str, Any]) -> Callable[..., Any]:
    name = f"<combined {abs(hash(text))}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), space)
    function: Callable[..., Any] = space["f"]
    return function
