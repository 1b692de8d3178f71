"""The built-in jobs and measurements. They import the rooms of `runner`; nothing in `runner` imports them."""

from importlib.machinery import PathFinder
from pathlib import Path

# Somebody's own folder called runner may stand before ours on the import path.
_spec = PathFinder.find_spec("runner")
_found = Path(_spec.origin or "").parent if _spec else None
if _found is None or _found.resolve() != Path(__file__).resolve().parent.parent / "runner":
    raise ImportError(
        f"{_found} hides meshrun's own package runner. "
        "Try: another name for that folder, or start Python elsewhere"
    )
