"""Defaults of a site and a user for `meshrun launch`, from files in TOML and from the environment.

An option of the command line counts first, then the environment, then the user's file, then the site's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

SITE = Path("/etc/meshrun.toml")
# Names for all targets, and the environment variable of each.
COMMON = {
    "launcher": "MESHRUN_LAUNCHER",
    "network": "MESHRUN_NETWORK",
    "host_timeout": "MESHRUN_HOST_TIMEOUT",
}
TARGETS = ("mpirun", "slurm", "kubernetes")


@dataclass(frozen=True)
class Setting:
    """One default. name: "network", or "slurm.partition" of one target. source: its file or variable."""

    name: str
    value: Any
    source: str


def user_file(environment: Mapping[str, str]) -> Path:
    """The user's settings, beside the measured rates of `meshrun plan --calibrate`."""
    base = environment.get("XDG_CONFIG_HOME", "")  # its specification: ignored unless absolute
    folder = Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~"), ".config")
    return folder / "meshrun" / "meshrun.toml"


def read_settings(
    environment: Mapping[str, str] | None = None, files: tuple[Path, ...] | None = None
) -> list[Setting]:
    """The settings in force, by name. Raises UsageError for a file that is not TOML and an unknown name.

    environment: the process's by default. files: the site's and the user's, the later one first in rank.
    """
    environment = os.environ if environment is None else environment
    found: dict[str, Setting] = {}
    for file in (SITE, user_file(environment)) if files is None else files:
        for name, value in _in_file(file):
            found[name] = Setting(name, value, str(file))
    for name, variable in COMMON.items():
        if environment.get(variable):
            found[name] = Setting(name, environment[variable], variable)
    return [found[name] for name in sorted(found)]


def defaults(settings: list[Setting], target: str, command: click.Command) -> dict[str, Any]:
    """The settings of a target as defaults of its options. Raises UsageError for what is not its option.

    Names for all targets that a target has no option for do not apply to it.
    """
    options = {one.name for one in command.params if isinstance(one, click.Option)}
    values: dict[str, Any] = {
        one.name: _as_typed(one.value) for one in settings if one.name in options & {*COMMON}
    }
    for one in settings:
        table, dot, name = one.name.partition(".")
        if dot and table == target:
            if name not in options:
                raise _unknown(one.source, name, sorted(map(str, options)), f"option of launch {target}")
            values[name] = _as_typed(one.value)
    return values


def _as_typed(value: Any) -> Any:
    """A value as the command line would give it, so that it is checked alike: text, or true or false."""
    if isinstance(value, list):
        return [str(one) for one in value]
    return value if isinstance(value, bool) else str(value)


def _in_file(file: Path) -> Iterator[tuple[str, Any]]:
    toml = _toml()
    try:
        content: dict[str, Any] = toml.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return
    except OSError as reason:
        raise click.UsageError(f"cannot read {file}: {reason.strerror}") from reason
    except (ValueError, RecursionError) as reason:  # TOML's errors, and those of numbers and dates
        raise click.UsageError(f"{file} is not TOML: {reason}") from reason
    for name, value in content.items():
        if isinstance(value, dict) and name in TARGETS:
            yield from ((f"{name}.{inner.replace('-', '_')}", each) for inner, each in value.items())
        elif name.replace("-", "_") in COMMON and not isinstance(value, (dict, list)):
            yield name.replace("-", "_"), value
        else:
            raise _unknown(str(file), name, [*COMMON, *TARGETS], "setting")


def _unknown(source: str, name: str, known: list[str], kind: str) -> click.UsageError:
    close = get_close_matches(name, known, 1)
    hint = f"Did you mean {close[0]!r}?" if close else f"Expected one of {', '.join(known)}"
    return click.UsageError(f"{source}: {name!r} is no {kind}. {hint}")


def _toml() -> Any:
    if sys.version_info >= (3, 11):
        import tomllib as toml
    else:
        import tomli as toml
    return toml
