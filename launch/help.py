"""`meshrun help`: the pages of docs/, on a terminal without a browser."""

from __future__ import annotations

import difflib
import re
import shutil
import sys
from pathlib import Path
from typing import ClassVar

import click

# Folders of pages, and how the list names them; "" is docs/ itself.
SECTIONS = {
    "tutorials": "Tutorials",
    "": "How to",
    "coming-from": "Coming from",
    "reference": "Reference",
    "explanations": "Explanations",
}
WIDEST = 120  # columns of a page
OF_THE_SITE = ("index.md", "gallery.md", "reference/commands.md", "reference/python.md")  # need a browser
IMAGE = re.compile(r"^!\[[^\]]*\]\([^)]*\)\n+", re.MULTILINE)
COMMENT = re.compile(r"^<!--.*?-->\n|<!--.*?-->", re.MULTILINE)  # where figures come from: docs/figures.py
LINK = re.compile(r"\[([^\]]+)\]\([^)\s]+\)")


@click.command("help")
@click.argument("topic", required=False)
@click.pass_context
def show_help(ctx: click.Context, topic: str | None) -> None:
    """Show a page of the documentation, or list all pages.

    \b
    meshrun help            list the pages
    meshrun help streaming  read one, in $PAGER on a terminal
    meshrun help doctor     a command without a page: its options

    In a pipe, a page is its Markdown source, without comments.
    """
    found = pages()
    if topic is None:
        click.echo(listing(found), nl=False)
    elif topic in found:
        text = COMMENT.sub("", found[topic].read_text(encoding="utf-8"))
        if sys.stdout.isatty():
            click.echo_via_pager(rendered(text, shutil.get_terminal_size().columns))
        else:
            click.echo(text, nl=False)
    else:
        click.echo(help_of_command(ctx, topic, found))


def pages(folder: Path | None = None) -> dict[str, Path]:
    """Return the pages by topic, in the order of `SECTIONS`. folder: of the pages; None to find it."""
    if folder is None:
        installed = Path(__file__).with_name("pages")  # made by hatch_build.py
        folder = installed if installed.is_dir() else Path(__file__).parents[2] / "docs"
    found = {}
    for section in SECTIONS:
        for path in sorted((folder / section).glob("*.md")):
            if path.relative_to(folder).as_posix() not in OF_THE_SITE:
                found[path.parent.name if path.stem == "index" else path.stem] = path
    return found


def listing(found: dict[str, Path]) -> str:
    """Return the list of pages, by section, each with its title."""
    width = max(map(len, found), default=0)
    lines = ["meshrun help TOPIC shows a page; meshrun COMMAND --help describes a command.\n"]
    section = None
    for topic, path in found.items():
        here = SECTIONS.get(path.parent.name, SECTIONS[""])
        if here != section:
            section = here
            lines.append(f"\n{here}:\n")
        with path.open(encoding="utf-8") as page:
            title = page.readline().lstrip("# ").replace("`", "").strip()
        lines.append(f"  {topic:{width}}  {title}\n")
    return "".join(lines)


def rendered(text: str, columns: int) -> str:
    """Return a page as it looks on a terminal: without pictures, and links by their words."""
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.markdown import Markdown, TableElement
    from rich.table import Table

    class WholeCells(TableElement):
        """A table whose long words continue on the next line; rich's own cuts them."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            for table in super().__rich_console__(console, options):
                assert isinstance(table, Table)
                for column in table.columns:
                    column.overflow = "fold"
                yield table

    class Page(Markdown):
        elements: ClassVar = {**Markdown.elements, "table_open": WholeCells}

    console = Console(width=min(columns, WIDEST), force_terminal=True)
    with console.capture() as captured:
        console.print(Page(LINK.sub(r"\1", IMAGE.sub("", text))))
    return captured.get()


def help_of_command(ctx: click.Context, topic: str, found: dict[str, Path]) -> str:
    """Return the help of a command that has no page. Raises UsageError for an unknown topic."""
    root = ctx.find_root()
    assert isinstance(root.command, click.Group)
    command = root.command.get_command(root, topic)
    if command is None:
        known = [*found, *root.command.list_commands(root)]
        close = difflib.get_close_matches(topic, known, 1)
        meant = f" Did you mean {close[0]!r}?" if close else " meshrun help lists the pages."
        raise click.UsageError(f"There is no page or command {topic!r}.{meant}", ctx)
    return command.get_help(click.Context(command, info_name=topic, parent=root))
