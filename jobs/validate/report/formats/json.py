"""A report as JSON, and back.

Keys change only with `model.SCHEMA`. A number that is not finite is written as null, and read as None if the
field allows it, otherwise as NaN. Only the measured cells of a matrix are written.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from itertools import repeat
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from meshrun.jobs.measure.record_file import Json
from meshrun.jobs.validate.probe.api import OPERAND_BYTES
from meshrun.jobs.validate.report.model import SCHEMA, RateMatrix, Report
from meshrun.jobs.validate.report.wording import headline
from meshrun.jobs.validate.verdict import Verdict, unit_of
from meshrun.runner.errors import UserError

HEAD = ("rung", "what", "title", "labels")  # of a matrix


def text(report: Report) -> str:
    """Return the document with one key, or one item of a list, on each line."""
    dump = partial(json.dumps, allow_nan=False)
    lines = []
    for key, value in document(report).items():
        if isinstance(value, list) and value:
            items = ",\n  ".join(map(dump, value))
            lines.append(f" {dump(key)}: [\n  {items}\n ]")
        else:
            lines.append(f" {dump(key)}: {dump(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def document(report: Report) -> Json:
    """Return the whole report, with the parts of its verdict at the top.

    line, part and sentence of each finding, and units (of rates, by measurement; "" for all others) are for
    readers of the document; `read` recomputes them. matrices: cells [row, column, rate] instead of rates.
    """
    verdict = report.verdict
    # confidence: until 0.2, for readers that require the key.
    findings = [
        {"part": one.part, "sentence": one.sentence, "confidence": None, **encode(one)}
        for one in verdict.findings
    ]
    head = {"schema": SCHEMA, "kind": "validate", "version": SCHEMA}  # as of every record
    head |= {"status": verdict.status, "line": headline(report)}
    rest = {one.name: getattr(report, one.name) for one in fields(report) if one.name != "verdict"}
    rest["matrices"] = [cells(one) for one in report.matrices]
    units = {"": "B/s"} | {what: unit_of(what) for what in OPERAND_BYTES}
    return {**head, **encode(verdict), "findings": findings, **encode(rest), "units": units}


def read(document: Mapping[str, Any]) -> Report:
    """Rebuild the report from a document. Raises UserError that names the invalid place."""
    if not isinstance(document, Mapping) or document.get("schema") != SCHEMA:
        found = document.get("schema", "none") if isinstance(document, Mapping) else type(document).__name__
        raise UserError("not a validation's report", got=f"schema {found}", expected=f"schema {SCHEMA}")
    parts = {one.name: document[one.name] for one in fields(Verdict) if one.name in document}
    matrices = [dense(one, f"matrices[{n}]") for n, one in enumerate(document.get("matrices", []))]
    report: Report = decode(Report, {**document, "verdict": parts, "matrices": matrices}, "")
    return report


def encode(value: Any) -> Any:
    """Convert to JSON values: dataclasses to objects, sequences to lists, non-finite numbers to None."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if is_dataclass(value):
        return {one.name: encode(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): encode(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(one) for one in value]
    return value


def cells(matrix: RateMatrix) -> Json:
    """Convert a matrix to its measured cells: with hundreds of hosts, most cells are empty."""
    measured = [[row, column, rate] for row, column, rate in matrix.measured()]
    head = {"rung": matrix.rung, "what": matrix.what, "title": matrix.title}
    return {**head, "labels": list(matrix.labels), "cells": measured}


def dense(found: Any, place: str) -> RateMatrix:
    """Rebuild a matrix from its `cells`."""
    try:
        head = {key: decode(types_of(RateMatrix)[key], found[key], f"{place}.{key}") for key in HEAD}
        labels = head["labels"]
        rates: list[list[float | None]] = [[None] * len(labels) for _ in labels]
        for row, column, rate in found["cells"]:
            rates[row][column] = float(rate)
    except (KeyError, IndexError, TypeError, ValueError) as reason:
        raise UserError(f"not a validation's report: {place} is no matrix", why=str(reason)) from reason
    return RateMatrix(**head, rates=tuple(map(tuple, rates)))


def decode(kind: Any, value: Any, place: str) -> Any:
    """Convert a JSON value to `kind`: a dataclass, or the type of a dataclass field."""
    if isinstance(kind, type) and is_dataclass(kind) and isinstance(value, Mapping):
        found = present(kind, value, place)
        return kind(**{name: decode(hint, value[name], f"{place}.{name}") for name, hint in found})
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple and isinstance(value, (list, tuple)):
        kinds = repeat(inner[0], len(value)) if inner[1:] == (...,) else inner
        if inner[1:] == (...,) or len(inner) == len(value):
            pairs = enumerate(zip(kinds, value, strict=True))
            return tuple(decode(one, item, f"{place}[{n}]") for n, (one, item) in pairs)
    if origin is dict and isinstance(value, Mapping):
        return {key: decode(inner[1], one, f"{place}[{key}]") for key, one in value.items()}
    if origin in (Union, types.UnionType):
        return decode(chosen(inner, value), value, place)
    if kind is Any or (origin is Literal and value in inner):
        return value
    if kind is float and (value is None or type(value) in (int, float)):
        return math.nan if value is None else float(value)
    if kind is types.NoneType and value is None:
        return None
    if type(value) is kind:
        return value
    raise UserError(
        f"not a validation's report: {place.lstrip('.')}",
        got=repr(value)[:60],
        expected=getattr(kind, "__name__", kind),
    )


def present(kind: Any, value: Mapping[str, Any], place: str) -> list[tuple[str, Any]]:
    """Return the fields of a dataclass that `value` has, with their types; requires those without default."""
    hints = types_of(kind)
    for one in fields(kind):
        optional = one.default is not MISSING or one.default_factory is not MISSING
        if one.name not in value and not optional:
            raise UserError(f"not a validation's report: {f'{place}.{one.name}'.lstrip('.')} is missing")
    return [(name, hint) for name, hint in hints.items() if name in value]


@cache
def types_of(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def chosen(kinds: tuple[Any, ...], value: Any) -> Any:
    """Return the type of a union that `value` has; null is None if the union has it."""
    if type(value) in kinds:
        return type(value)
    return float if float in kinds else kinds[0]
