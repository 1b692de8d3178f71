"""`meshrun completion`: let a shell complete commands, options, jobs and test cases."""

from __future__ import annotations

import os
from pathlib import Path

import click

VARIABLE = "_MESHRUN_COMPLETE"  # set by the shell's script when it asks for completions
MARK = "# meshrun completion"
# Where each shell reads it at start; fish reads a file of its own.
STARTUP = {"bash": "~/.bashrc", "zsh": "~/.zshrc", "fish": "~/.config/fish/completions/meshrun.fish"}


@click.command()
@click.argument("shell", type=click.Choice(sorted(STARTUP)), metavar="SHELL")
@click.option("--install", is_flag=True, help="Add it to the shell's start-up file.")
@click.pass_context
def completion(ctx: click.Context, shell: str, install: bool) -> None:
    """Print the completion script of a shell, or install it.

    SHELL is bash, fish or zsh.

    \b
    meshrun completion bash --install     for new shells, by a line in ~/.bashrc
    eval "$(meshrun completion bash)"     for this shell
    """
    script = script_of(ctx.find_root().command, shell)
    if not install:
        click.echo(script)
        return
    file = Path(os.path.expanduser(STARTUP[shell]))
    try:
        click.echo(add(file, shell, script))
    except OSError as reason:
        raise click.ClickException(f"cannot write {file}: {reason.strerror}") from reason


def script_of(command: click.Command, shell: str) -> str:
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, shell  # one of click's
    return kind(command, {}, "meshrun", VARIABLE).source()


def add(file: Path, shell: str, script: str) -> str:
    """Add the completion to a shell's file, once, whatever its encoding; returns what was done. OSError: the
    file is as it was."""
    from meshrun.runner.files import write_file

    before = file.read_bytes().decode(errors="surrogateescape") if file.exists() else ""
    if shell == "fish":
        after = script
    elif MARK in before:
        after = before
    else:
        line = f'command -v meshrun >/dev/null && eval "$(meshrun completion {shell})"  {MARK}\n'
        after = before + ("" if not before or before.endswith("\n") else "\n") + line
    if after == before:
        return f"{file} has it already"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_file(file.resolve(), after)  # not in place of a link to it
    return f"added to {file}; it works in new shells"


def answer(command: click.Command) -> int:
    """Print the completions that a shell asks for; returns the exit status."""
    from click.shell_completion import shell_complete

    return shell_complete(command, {}, "meshrun", VARIABLE, os.environ[VARIABLE])
