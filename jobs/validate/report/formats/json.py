"""A report as JSON, and back.

Keys stay as they are while `report.SCHEMA` does. A number that is not finite is null; read again, it is None
where that is allowed and NaN elsewhere. Of a matrix only what was measured is written.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from itertools import repeat
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import runner
from jobs.validate.report.model import SCHEMA, Matrix, Report
from jobs.validate.report.wording import headline
from jobs.validate.verdict import Verdict, unit_of

Json = dict[str, Any]
HEAD = ("rung", "what", "title", "labels")  # of a matrix


def text(report: Report) -> str:
    """The document with one key, or one item of a list, on a line."""
    lines = []
    for key, value in document(report).items():
        if isinstance(value, list) and value:
            items = ",\n  ".join(_dump(one) for one in value)
            lines.append(f" {_dump(key)}: [\n  {items}\n ]")
        else:
            lines.append(f" {_dump(key)}: {_dump(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def document(report: Report) -> Json:
    """All of the report, the verdict's parts at the top.

    line, units (of rates: of those of a measurement, "" for any other), and part and sentence of each finding
    are there to be read; `read` makes them anew.
    matrices: cells [row, column, rate] in place of rates.
    """
    verdict = report.verdict
    found = [{"part": one.part, "sentence": one.sentence, **plain(one)} for one in verdict.findings]
    whole = plain(verdict) | {"findings": found}
    rest = {one.name: getattr(report, one.name) for one in fields(report)}
    del rest["verdict"]
    units = {"": "B/s", "product": unit_of("product")}
    rest["matrices"] = [cells(one) for one in report.matrices]
    head = {"schema": SCHEMA, "status": verdict.status, "line": headline(report)}
    return {**head, **whole, **plain(rest), "units": units}


def read(document: Mapping[str, Any]) -> Report:
    """The report of a document. UserError says where it is not one."""
    if not isinstance(document, Mapping) or document.get("schema") != SCHEMA:
        found = document.get("schema", "none") if isinstance(document, Mapping) else type(document).__name__
        raise runner.UserError(
            "not a validation's report", got=f"schema {found}", expected=f"schema {SCHEMA}"
        )
    parts = {one.name: document[one.name] for one in fields(Verdict) if one.name in document}
    matrices = [dense(one, f"matrices[{n}]") for n, one in enumerate(document.get("matrices", []))]
    report: Report = made(Report, {**document, "verdict": parts, "matrices": matrices}, "")
    return report


def plain(value: Any) -> Any:
    """Dataclasses as objects, sequences as lists, numbers that JSON cannot write as None."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value


def cells(matrix: Matrix) -> Json:
    """A matrix of hundreds of hosts is mostly empty: each two met on one rail."""
    measured = [
        [row, column, rate]
        for row, rates in enumerate(matrix.rates)
        for column, rate in enumerate(rates)
        if rate is not None and math.isfinite(rate)
    ]
    head = {"rung": matrix.rung, "what": matrix.what, "title": matrix.title}
    return {**head, "labels": list(matrix.labels), "cells": measured}


def dense(found: Any, place: str) -> Matrix:
    """The inverse of `cells`."""
    try:
        head = {key: made(types_of(Matrix)[key], found[key], f"{place}.{key}") for key in HEAD}
        labels = head["labels"]
        rates: list[list[float | None]] = [[None] * len(labels) for _ in labels]
        for row, column, rate in found["cells"]:
            rates[row][column] = float(rate)
    except (KeyError, IndexError, TypeError, ValueError) as reason:
        raise runner.UserError(
            f"not a validation's report: {place} is no matrix", got=str(reason)
        ) from reason
    return Matrix(**head, rates=tuple(map(tuple, rates)))


def made(kind: Any, value: Any, place: str) -> Any:
    """`value`, as JSON has it, as the type that a dataclass asks for."""
    if isinstance(kind, type) and is_dataclass(kind) and isinstance(value, Mapping):
        return kind(
            **{name: made(hint, value[name], f"{place}.{name}") for name, hint in present(kind, value, place)}
        )
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple and isinstance(value, (list, tuple)):
        kinds = repeat(inner[0], len(value)) if inner[1:] == (...,) else inner
        if inner[1:] == (...,) or len(inner) == len(value):
            pairs = enumerate(zip(kinds, value, strict=True))
            return tuple(made(one, item, f"{place}[{n}]") for n, (one, item) in pairs)
    if origin is dict and isinstance(value, Mapping):
        return {key: made(inner[1], one, f"{place}[{key}]") for key, one in value.items()}
    if origin in (Union, types.UnionType):
        return made(chosen(inner, value), value, place)
    if kind is Any or (origin is Literal and value in inner):
        return value
    if kind is float and (value is None or type(value) in (int, float)):
        return math.nan if value is None else float(value)
    if kind is types.NoneType and value is None:
        return None
    if type(value) is kind:
        return value
    raise runner.UserError(
        f"not a validation's report: {place.lstrip('.')}",
        got=repr(value)[:60],
        expected=getattr(kind, "__name__", kind),
    )


def present(kind: Any, value: Mapping[str, Any], place: str) -> list[tuple[str, Any]]:
    """Fields of a dataclass that `value` has, with their types; one without a default must be there."""
    hints = types_of(kind)
    for one in fields(kind):
        optional = one.default is not MISSING or one.default_factory is not MISSING
        if one.name not in value and not optional:
            raise runner.UserError(
                f"not a validation's report: {f'{place}.{one.name}'.lstrip('.')} is missing"
            )
    return [(name, hint) for name, hint in hints.items() if name in value]


@cache
def types_of(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def chosen(kinds: tuple[Any, ...], value: Any) -> Any:
    """Of the types of a union, the one that `value` has; null is None where that is one of them."""
    if type(value) in kinds:
        return type(value)
    return float if float in kinds else kinds[0]


def _dump(value: Any) -> str:
    return json.dumps(value, allow_nan=False)
