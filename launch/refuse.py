"""How the command says no: once for all ranks, in one sentence, before any of them does work."""

from __future__ import annotations

import importlib.machinery
import re
import shlex
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import click

ROOMS = ("runner", "jobs")  # our other packages, whose names are also what people call their folders
RANKS = re.compile(
    r"(?:-n|-n=|--ranks=|--ranks(?=$))([0-9]*)"
)  # as it is typed, and the number that may follow
LINGER = 1.0  # seconds that other ranks leave rank 0 to speak before their exit ends it
# What a function of someone else can raise.
BROKEN = (
    ArithmeticError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


class Shadowed(click.ClickException):
    """A folder of the user's is found where one of our packages should be."""

    exit_code = 2


def refuse_shadows() -> None:
    """Stop when `import runner` or `import jobs` would not import ours (PYTHONPATH=. can do that)."""
    home = Path(__file__).resolve().parent.parent
    for room in ROOMS:
        spec = importlib.machinery.PathFinder.find_spec(room)
        if spec is None:
            continue
        found = Path(spec.origin or next(iter(spec.submodule_search_locations or ())))
        if found.name == "__init__.py":
            found = found.parent
        if found.resolve() != home / room:
            raise Shadowed(
                f"{found} hides meshrun's own package {room}: got {found}, expected {home / room}. "
                f"Try: another name for that folder, or a PYTHONPATH without {found.parent}"
            )


def refuse(sentence: str, exit_status: int, words: Sequence[str], debug: bool) -> int:
    """Tell `sentence` once for all ranks; returns `exit_status`.

    With a run directory it is the first rank to claim the failure that tells, else rank 0. Where another
    process reads what the ranks print, a rank that is still there when rank 0's end would have ended it
    tells what it alone has met.
    """
    from runner.errors import tell
    from runner.launcher import announced
    from runner.run_status import RunLines, run_at

    told = announced()
    rank = told.rank if told else 0
    run = run_at(words[1]) if words[0] == "--run-dir" and len(words) > 1 else None
    if rank and (run is None or isinstance(run, RunLines)):
        time.sleep(LINGER)
    if run is None:
        speaks = rank == 0
    else:
        speaks = run.claim_failure({"exit_code": exit_status, "sentence": sentence, "rank": rank})
    if speaks:
        if debug:
            traceback.print_exc()
        tell(sentence)
    elif run is not None:
        time.sleep(LINGER)
    if speaks and isinstance(run, RunLines):
        time.sleep(LINGER / 4)  # the other ranks of this host find the claim
        run.remove_claim()
    return exit_status


def refuse_empty(command: click.Command, words: Sequence[str], ctx: click.Context) -> None:
    """UsageError for an empty word, which would count as not given; an option whose default it is takes it.

    words: what follows the command's name, up to a command of its own after `--`.
    """
    words = words[: words.index("--")] if "--" in words else words
    commands: dict[str, click.Command] = getattr(command, "commands", {})
    called = [command, *(commands[word] for word in words if word in commands)]
    options = [one for known in called for one in known.params if isinstance(one, click.Option)]
    taken = {name for one in options if one.default == "" for name in one.opts}
    for before, word in zip(["", *words], words, strict=False):
        name, equals, value = word.partition("=")
        joined = bool(equals) and word.startswith("--")
        if (value if joined else word) == "" and (option := name if joined else before) not in taken:
            after = f" after {option}" if option else ""
            kind: type[click.UsageError] = getattr(command, "bad_usage", click.UsageError)
            raise kind(f"an empty word{after}: a variable that is not set?", ctx)


def one_line(mistake: click.ClickException, words: Sequence[str] = ()) -> str:
    """words: those of the command line, without its program; none where no ranks run the command."""
    ctx = _context(mistake)
    if typed := _ranks_first(mistake, ctx, words):
        return typed
    said = brief(mistake.format_message()).rstrip(".")
    return f"{said}{'' if said.endswith('?') else '.'} Try: {ctx.command_path if ctx else 'meshrun'} --help"


def _context(mistake: click.ClickException) -> click.Context | None:
    """Of the command whose words are wrong; click leaves it out where an option's value is missing."""
    if isinstance(mistake, click.UsageError) and mistake.ctx is not None:
        return mistake.ctx
    found, trace = None, _first(mistake).__traceback__
    while trace is not None:
        ctx = trace.tb_frame.f_locals.get("ctx")
        found = ctx if isinstance(ctx, click.Context) else found
        trace = trace.tb_next
    return found


def _first(mistake: BaseException) -> BaseException:
    """The mistake as click found it, before a command has given it another exit status."""
    return mistake if mistake.__cause__ is None else _first(mistake.__cause__)


def _ranks_first(mistake: BaseException, ctx: click.Context | None, words: Sequence[str]) -> str | None:
    """The sentence for a -n that follows the command whose ranks it counts; None for other mistakes."""
    first = _first(mistake)
    if not (isinstance(first, click.NoSuchOption) and first.option_name in ("-n", "--ranks")):
        return None
    if ctx is None or ctx.parent is None:  # it does stand before the command
        return None
    if any("--ranks" in option.opts for option in ctx.command.params):
        return f"No such option {first.option_name!r}. Did you mean '--ranks'? Try: {ctx.command_path} --help"
    found = [(at, same[1]) for at, word in enumerate(words) if (same := RANKS.fullmatch(word))]
    if not found:
        return None
    at, count = found[-1]
    rest = [*words[:at], *words[at + (1 if count else 2) :]]
    count = count or "".join(words[at + 1 : at + 2])
    typed = shlex.join(["meshrun", "-n", count if count.isdecimal() else "N", *rest])
    return f"{first.option_name}, the number of ranks, goes before the command. Try: {typed}"


def brief(text: object) -> str:
    return " ".join(str(text).split())
