"""Report an error once for all ranks, in one sentence, before any of them does work."""

from __future__ import annotations

import difflib
import re
import shlex
import time
import traceback
from collections.abc import Sequence

import click

# The option as typed, and the number that may follow.
RANKS = re.compile(r"(?:-n|-n=|--ranks=|--ranks(?=$))([0-9]*)")
RESTARTS = {"--on-failure": "--on-failure resume", "--max-restarts": "--max-restarts 3"}
NOT_ONE_OF = re.compile(r"'([^']*)' is not one of ([^.]+)")  # a choice that does not exist, as click says
NEAR = 0.7  # least similarity, without dashes, of the typed option and a suggested one
LINGER = 1.0  # seconds for rank 0 to report before the exit of other ranks ends it


def report_error(sentence: str, exit_status: int, words: Sequence[str], debug: bool) -> int:
    """Print `sentence` once for all ranks; returns `exit_status`.

    With a run directory, the first rank to claim the failure prints it; otherwise rank 0. If another
    process reads the ranks' output, a rank that outlives rank 0 prints its own error.
    """
    from meshrun.runner.errors import tell
    from meshrun.runner.system.launcher import detect_launcher
    from meshrun.runner.world.run_status import RunLines, run_at

    launched = detect_launcher()
    rank = launched.rank if launched else 0
    run = run_at(words[1]) if words[0] == "--run-dir" and len(words) > 1 else None
    if rank and (run is None or isinstance(run, RunLines)):
        time.sleep(LINGER)
    if run is None:
        reports = rank == 0
    else:
        reports = run.claim_failure({"exit_code": exit_status, "sentence": sentence, "rank": rank})
    if reports:
        if debug:
            traceback.print_exc()
        tell(sentence)
    elif run is not None:
        time.sleep(LINGER)
    if reports and isinstance(run, RunLines):
        time.sleep(LINGER / 4)  # until the other ranks of this host have found the claim
        run.remove_claim()
    return exit_status


def check_empty_arguments(command: click.Command, words: Sequence[str], ctx: click.Context) -> None:
    """UsageError for an empty argument, which would count as missing, unless it is the option's default.

    words: the arguments after the command's name; those after `--` are not checked.
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
            raise kind(f"empty argument{after}: is a variable not set?", ctx)


def usage_message(mistake: click.ClickException, words: Sequence[str]) -> str:
    """The error as one line with a hint. words: the command line; empty if the command starts no ranks."""
    ctx = _context(mistake)
    if typed := _misplaced_ranks(mistake, ctx, words) or _misplaced_restarts(mistake, ctx):
        return typed
    message = single_line(_message(mistake)).rstrip(".")
    message = message.replace("is not a valid integer range", "is not a valid integer")
    message = message.replace("is not a valid float range", "is not a valid float")
    message += _closest_choice(message)
    end = "" if message.endswith("?") else "."
    return f"{message}{end} Try: {ctx.command_path if ctx else 'meshrun'} --help"


def _message(mistake: click.ClickException) -> str:
    """The message as click writes it, without suggested options that hardly resemble the one typed."""
    first = _first(mistake)
    if not isinstance(first, click.NoSuchOption) or not first.possibilities:
        return mistake.format_message()
    names = {option.lstrip("-"): option for option in first.possibilities}
    close = difflib.get_close_matches(first.option_name.lstrip("-"), names, cutoff=NEAR)
    near = [names[name] for name in close]
    return click.NoSuchOption(first.option_name, first.message, near).format_message()


def _closest_choice(message: str) -> str:
    """The choice that was probably meant, as the end of the message; "" if none is close."""
    match = NOT_ONE_OF.search(message)
    if match is None:
        return ""
    choices = [word.strip(" '") for word in match[2].split(",")]
    close = difflib.get_close_matches(match[1], choices, 1)
    return f". Did you mean {close[0]!r}?" if close else ""


def _context(mistake: click.ClickException) -> click.Context | None:
    """The context of the command with the error; click omits it if an option's value is missing."""
    if isinstance(mistake, click.UsageError) and mistake.ctx is not None:
        return mistake.ctx
    found, trace = None, _first(mistake).__traceback__
    while trace is not None:
        ctx = trace.tb_frame.f_locals.get("ctx")
        found = ctx if isinstance(ctx, click.Context) else found
        trace = trace.tb_next
    return found


def _first(mistake: BaseException) -> BaseException:
    """The error as click raised it, before a command changed its exit status."""
    return mistake if mistake.__cause__ is None else _first(mistake.__cause__)


def _misplaced_ranks(mistake: BaseException, ctx: click.Context | None, words: Sequence[str]) -> str | None:
    """The message for a -n after the command instead of before it; None for other errors."""
    first = _first(mistake)
    if not (isinstance(first, click.NoSuchOption) and first.option_name in ("-n", "--ranks")):
        return None
    if ctx is None or ctx.parent is None:  # it is before the command
        return None
    if any("--ranks" in option.opts for option in ctx.command.params):
        return f"No such option {first.option_name!r}. Did you mean '--ranks'? Try: {ctx.command_path} --help"
    found = [(at, same[1]) for at, word in enumerate(words) if (same := RANKS.fullmatch(word))]
    if not found:
        return None
    at, count = found[-1]
    rest = [*words[:at], *words[at + (1 if count else 2) :]]
    count = count or "".join(words[at + 1 : at + 2])
    count = count if count.isdecimal() and int(count) else "N"
    typed = shlex.join(["meshrun", "-n", count, *rest])
    return f"{first.option_name}, the number of ranks, goes before the command. Try: {typed}"


def _misplaced_restarts(mistake: BaseException, ctx: click.Context | None) -> str | None:
    """The message for --on-failure after the command instead of before it; None for other errors."""
    first = _first(mistake)
    if not (isinstance(first, click.NoSuchOption) and first.option_name in RESTARTS) or ctx is None:
        return None
    if " launch " in ctx.command_path:  # a batch system starts it again, if anything does
        return None
    return (
        f"{first.option_name} goes before the command. "
        f"Try: meshrun -n N {' '.join(RESTARTS.values())} {ctx.command_path.partition(' ')[2]} ..."
    )


def single_line(text: object) -> str:
    return " ".join(str(text).split())
