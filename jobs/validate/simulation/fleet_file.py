"""Read the file of a simulated fleet, JSON or TOML: the keys of `--simulate`, and a list of faults.

{"hosts": 16, "gpus": 8, "oversubscription": 2, "fault": ["nic:h3:1:0.6", "link:h1:h6:0.6"]}
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meshrun.runner.errors import UserError


def file_words(path: str) -> list[str]:
    """Return the file's content as KEY=VALUE words. Raises UserError if it cannot be read."""
    try:
        content = _load(Path(path))
    except OSError as reason:
        raise UserError(f"cannot read the fleet in {path}", why=reason.strerror) from reason
    except (ValueError, RecursionError) as reason:
        raise UserError(
            f"the fleet in {path} is not valid {Path(path).suffix[1:]}", why=str(reason)
        ) from reason
    if not isinstance(content, dict):
        hint = '{"hosts": 16, "gpus": 8, "fault": ["nic:h3:1:0.6"]}'
        raise UserError(f"the fleet in {path} is not a table of keys", got=type(content).__name__, hint=hint)
    return [f"{key}={word}" for key, value in content.items() for word in _words(key, value)]


def _load(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return json.loads(text, object_pairs_hook=_table)
    try:
        tomllib = importlib.import_module("tomllib")
    except ModuleNotFoundError:
        raise UserError("a fleet in TOML needs Python 3.11", hint="write it as JSON") from None
    return tomllib.loads(text)


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a table of JSON. Raises ValueError for a key that is repeated, as TOML's reader does."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key} twice")
        found[key] = value
    return found


def _words(key: str, value: Any) -> Iterator[str]:
    """Yield the values of a key: each fault by itself; other lists are joined by "/"."""
    values = value if isinstance(value, list) else [value]
    words = [("on" if one else "off") if isinstance(one, bool) else str(one) for one in values]
    yield from words if key == "fault" else ["/".join(words)]
