"""What the site adds to the pages of docs/: the commands' reference, and linked files outside of docs/.

A hook of MkDocs (mkdocs.yml). `python docs/site.py FOLDER` checks that a built site loads nothing from
elsewhere.
"""

from __future__ import annotations

import html.parser
import inspect
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)(#[\w-]+)?(?=\))")
COMMANDS = "reference/commands.md"
SOURCE = "source"  # folder of the site for files outside of docs/
LANGUAGES = {
    ".py": "python",
    ".sh": "sh",
    ".sbatch": "sh",
    ".yaml": "yaml",
    ".json": "json",
    ".c": "c",
    ".cu": "cpp",
}
LARGEST = 100_000  # bytes of a file that is shown


# --- Files outside of docs/, as pages ---


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each file or folder outside of docs/ that a page links to."""
    from mkdocs.structure.files import File, InclusionLevel

    def add(uri: str, text: str) -> None:
        files.append(File.generated(config, uri, content=text, inclusion=InclusionLevel.NOT_IN_NAV))

    pages = {file.src_uri: (ROOT / "docs" / file.src_uri) for file in files.documentation_pages()}
    waiting = [(uri, path.read_text()) for uri, path in pages.items() if path.exists()]
    done: set[str] = set()
    while waiting:
        uri, text = waiting.pop()
        for match in LINK.finditer(text):
            path = outside(uri, match[1])
            if path is None or path in done:
                continue
            done.add(path)
            shown = (ROOT / path).read_text() if path.endswith(".md") else as_page(path)
            add(source_uri(path), shown)
            if path.endswith(".md"):
                waiting.append((source_uri(path), shown))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Add the commands to their page, and let links to files outside of docs/ lead to their pages."""
    uri = page.file.src_uri
    if uri == COMMANDS:
        return markdown + commands()

    def changed(match: re.Match[str]) -> str:
        path = outside(uri, match[1])
        if path is None and not uri.startswith(f"{SOURCE}/"):
            return match[0]
        target = inside(uri, match[1]) if path is None else source_uri(path)
        return posixpath.relpath(target, posixpath.dirname(uri) or ".") + (match[2] or "")

    return LINK.sub(changed, markdown)


def real_path(uri: str, target: str) -> str:
    """The path from the repository's root that a link of a page leads to."""
    page = (
        uri.removeprefix(f"{SOURCE}/").removesuffix(".page.md")
        if uri.startswith(f"{SOURCE}/")
        else f"docs/{uri}"
    )
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target))


def outside(uri: str, target: str) -> str | None:
    """The path from the root of a linked file that is not in docs/; None for others."""
    path = real_path(uri, target)
    return None if path.startswith(("docs/", "..")) or not (ROOT / path).exists() else path


def inside(uri: str, target: str) -> str:
    return real_path(uri, target).removeprefix("docs/")


def source_uri(path: str) -> str:
    return f"{SOURCE}/{path}" if path.endswith(".md") else f"{SOURCE}/{path}.page.md"


def as_page(path: str) -> str:
    """A file as a page with its text, a folder as a list of its files' names."""
    place = ROOT / path
    if place.is_dir():
        names = sorted(one.name for one in place.iterdir() if not one.name.startswith((".", "__")))
        return f"# {path}\n\n" + "".join(f"- `{name}`\n" for name in names)
    text = place.read_text(errors="replace")
    if len(text) > LARGEST:
        return f"# {path}\n\nThis file of {len(text)} bytes is in the repository.\n"
    return f"# {path}\n\n````{LANGUAGES.get(place.suffix, 'text')}\n{text.rstrip()}\n````\n"


# --- The commands' reference, from the commands ---


def commands() -> str:
    """Every command with its help and options, as Markdown."""
    from meshrun.launch.cli.main import command

    root = click.Context(command, info_name="meshrun", **command.context_settings)
    return "\n" + "".join(sections(root, 2))


def sections(ctx: click.Context, level: int) -> Iterator[str]:
    command = ctx.command
    yield f"{'#' * level} {ctx.command_path}\n\n"
    pieces = " ".join(command.collect_usage_pieces(ctx))
    yield f"`{ctx.command_path} {pieces}`\n\n" if pieces else ""
    yield help_text(command.help or "")
    records = [one.get_help_record(ctx) for one in command.get_params(ctx)]
    for flags, text in filter(None, records):
        yield f"`{flags}`\n:   {escaped(text) or '&nbsp;'}\n\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            child = command.get_command(ctx, name)
            if child is not None and not child.hidden:
                yield from sections(click.Context(child, info_name=name, parent=ctx), min(level + 1, 4))


def help_text(text: str) -> str:
    """Paragraphs of a command's help; those that click does not wrap are code."""
    made = []
    for part in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        body = part.removeprefix("\b\n")
        made.append(f"```text\n{body}\n```" if body != part else escaped(body))
    return "\n\n".join(made) + "\n\n"


def escaped(text: str) -> str:
    """Text whose characters have no meaning in Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", " ".join(text.split()))


# --- The check of a built site ---


class Loaded(html.parser.HTMLParser):
    """Addresses that a browser loads when it opens a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "video"):
            self.found.append(values.get("src") or "")
        if tag == "link" and values.get("rel") not in ("canonical", "next", "prev"):
            self.found.append(values.get("href") or "")


def loaded_from_elsewhere(site: Path) -> list[str]:
    """`PAGE: ADDRESS` for everything that the site's pages and style sheets load from another server."""
    faults = []
    for page in sorted(site.rglob("*.html")):
        parser = Loaded()
        parser.feed(page.read_text())
        faults += [f"{page}: {one}" for one in parser.found if re.match(r"(https?:)?//", one)]
    for sheet in sorted(site.rglob("*.css")):
        faults += [
            f"{sheet}: {one}" for one in re.findall(r"url\(['\"]?((?:https?:)?//[^)]+)", sheet.read_text())
        ]
    return faults


if __name__ == "__main__":
    built = Path(sys.argv[1])
    if not (built / "index.html").exists():
        sys.exit(f"{built} holds no site")
    if found := loaded_from_elsewhere(built):
        sys.exit("\n".join(["the site loads from elsewhere:", *found]))
