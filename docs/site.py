"""What the site adds to the pages of docs/.

A page for each command and for linked files outside of docs/; commands to copy without prompts; a search that
also works when pages are opened as files; Markdown of every page, and llms.txt.

A hook of MkDocs (mkdocs.yml). `python docs/site.py FOLDER` checks that a built site loads nothing from
elsewhere.
"""

from __future__ import annotations

import html.parser
import inspect
import json
import posixpath
import re
import sys
from collections.abc import Iterator, Sequence
from html import escape, unescape
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)(#[\w-]+)?(?=\))")
COMMENT = re.compile(r"^<!--.*?-->\n|<!--.*?-->", re.MULTILINE | re.DOTALL)
COMMANDS = "reference/commands.md"
STEPS_JOB = "heat"  # a job that has every option of a run
NAVIGATION: list[Any] = []  # its entries
SOURCES: dict[str, str] = {}  # Markdown of every page, by its URI
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
    """Add a page for each command, and for each file or folder outside of docs/ that a page links to."""
    from mkdocs.structure.files import File, InclusionLevel

    def add(uri: str, text: str) -> None:
        files.append(File.generated(config, uri, content=text, inclusion=InclusionLevel.NOT_IN_NAV))

    for ctx in all_commands(root_context()):
        uri = command_uri(ctx)
        files.append(
            File.generated(config, uri, content=command_page(ctx), inclusion=InclusionLevel.INCLUDED)
        )
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
    """Add the list of commands to their page, and let links to files outside of docs/ lead to their pages."""
    uri = page.file.src_uri
    if uri == COMMANDS:
        markdown += command_list()

    def changed(match: re.Match[str]) -> str:
        path = outside(uri, match[1])
        if path is None and not uri.startswith(f"{SOURCE}/"):
            return match[0]
        target = inside(uri, match[1]) if path is None else source_uri(path)
        return posixpath.relpath(target, posixpath.dirname(uri) or ".") + (match[2] or "")

    shown = LINK.sub(changed, markdown)
    SOURCES[uri] = COMMENT.sub("", shown)
    return shown


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


# --- The commands' reference: a page for each command, made from the command ---


def on_config(config: Any) -> Any:
    """Put the pages of the commands into the navigation."""

    def changed(entry: Any) -> Any:
        if isinstance(entry, dict):
            return {title: changed(value) for title, value in entry.items()}
        if isinstance(entry, list):
            return [changed(value) for value in entry]
        return [entry, *(child for _, child in command_nav(root_context()))] if entry == COMMANDS else entry

    config.nav = changed(config.nav)
    return config


def root_context() -> click.Context:
    from meshrun.launch.cli.main import command

    return click.Context(command, info_name="meshrun", **command.context_settings)


def children(ctx: click.Context) -> Iterator[click.Context]:
    """The commands of a group that have pages. `plan` and `kernel` have the same options for every job."""
    from meshrun.launch.cli.job_command import JobsShown

    group = ctx.command
    if isinstance(group, click.Group) and not isinstance(group, JobsShown):
        for name in group.list_commands(ctx):
            child = group.get_command(ctx, name)
            if child is not None and not child.hidden:
                yield click.Context(child, info_name=name, parent=ctx)


def command_uri(ctx: click.Context) -> str:
    """The page of a command, such as reference/commands/bench/all_reduce.md."""
    _, *words = ctx.command_path.split()
    return posixpath.join("reference/commands", *words) + ".md"


def command_nav(ctx: click.Context) -> Iterator[tuple[str, Any]]:
    """The pages of the commands of a group: (page, entry of the navigation)."""
    for child in children(ctx):
        below = [entry for _, entry in command_nav(child)]
        yield (
            command_uri(child),
            {child.info_name: [command_uri(child), *below] if below else command_uri(child)},
        )


def all_commands(ctx: click.Context) -> Iterator[click.Context]:
    """The commands of a group and of the groups in it."""
    for child in children(ctx):
        yield child
        yield from all_commands(child)


def help_option(ctx: click.Context) -> click.Option:
    """The option for help: click keeps the one of the first context that it was asked in."""
    return click.Option(
        ctx.command.get_help_option_names(ctx), is_flag=True, help="Show this message and exit."
    )


def command_page(ctx: click.Context) -> str:
    """The page of a command, as Markdown: its help, its options by section, and the commands in it."""
    from meshrun.launch.cli.job_command import JobCommand, Jobs

    command = ctx.command
    pieces = " ".join(command.collect_usage_pieces(ctx))
    text = [f"# {ctx.command_path}\n\n`{ctx.command_path} {pieces}`\n\n", help_text(command.help or "")]
    if isinstance(command, JobCommand):  # the options of every job are on the page of the group
        parent = posixpath.relpath(command_uri(ctx.parent), posixpath.dirname(command_uri(ctx)))
        own = [row for row in command.params if isinstance(row, click.Option)][: command.own]
        text += option_list(ctx, "Options of this job", own)
        text.append(f"The [options of every job]({parent}) apply, too.\n")
    elif isinstance(command, Jobs):
        text += options_of_every_job(ctx, command)
    else:
        text += option_list(ctx, "Options", [*command.params, help_option(ctx)])
    below = [
        (child, posixpath.relpath(command_uri(child), posixpath.dirname(command_uri(ctx))))
        for child in children(ctx)
    ]
    if below:
        text.append("## Jobs\n\n" if isinstance(command, Jobs) else "## Commands\n\n")
        text += [
            f"- [{child.command_path}]({page}): {escaped(child.command.get_short_help_str(200))}\n"
            for child, page in below
        ]
    return "".join(text)


def command_list() -> str:
    """The commands with a line each, as Markdown."""
    lines = [
        f"- [{child.command_path}]({posixpath.relpath(command_uri(child), 'reference')}): "
        f"{escaped(child.command.get_short_help_str(200))}\n"
        for child in children(root_context())
    ]
    return "\n" + "".join(lines)


def options_of_every_job(ctx: click.Context, group: Any) -> Iterator[str]:
    """The options of a job's command that are not its own, by the section of the help."""
    child = group.get_command(ctx, STEPS_JOB)
    inside = click.Context(child, info_name="JOB", parent=ctx)
    options = [row for row in child.params if isinstance(row, click.Option)][child.own :]
    named = {row.name: row for row in options}
    groups = child.groups or {"Options": list(named)}
    for title, names in groups.items():
        yield from option_list(inside, title, [named[name] for name in names])


def option_list(ctx: click.Context, title: str, parameters: Sequence[click.Parameter]) -> Iterator[str]:
    """A section with a list of options; nothing if there are none."""
    records = [row.get_help_record(ctx) for row in parameters]
    if any(records):
        yield f"## {title}\n\n"
    for flags, text in filter(None, records):
        yield f"`{flags}`\n:   {escaped(text) or '&nbsp;'}\n\n"


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


# --- Copying, offline search, and Markdown of every page ---

BLOCK = re.compile(r'<div class="language-(console|pycon)[^"]*">.*?</div>', re.DOTALL)
PROMPTS = {"console": ("$ ",), "pycon": (">>> ", "... ")}


def on_page_content(html: str, **_: Any) -> str:
    """Let the copy button of a session copy its commands, without prompts and output."""

    def changed(match: re.Match[str]) -> str:
        text = unescape(re.sub(r"<[^>]+>", "", match[0]))
        copied = session_commands(text, PROMPTS[match[1]])
        return match[0].replace("<div ", f'<div data-copy="{escape(copied)}" ', 1) if copied else match[0]

    return BLOCK.sub(changed, html)


def session_commands(text: str, prompts: tuple[str, ...]) -> str:
    """The commands of a session: the lines after prompts, and what continues them after a backslash."""
    commands, continued = [], False
    for line in text.splitlines():
        prompt = next((word for word in prompts if line.startswith(word)), None)
        if prompt is not None or continued:
            commands.append(line.removeprefix(prompt or ""))
        continued = (prompt is not None or continued) and line.endswith("\\")
    return "\n".join(commands)


def on_nav(nav: Any, **_: Any) -> None:
    NAVIGATION[:] = nav.items


def on_post_build(config: Any) -> None:
    """Write the script of the search on pages opened as files, Markdown of every page, and llms.txt."""
    site = Path(config.site_dir)
    worker = next((site / "assets" / "javascripts" / "workers").glob("search.*.js"))
    source = json.dumps(worker.read_text()).replace("</", "<\\/")
    (site / "search" / "worker.js").write_text(f"var searchWorker = {source};\n")
    for uri, text in SOURCES.items():
        page = site / uri
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(with_docstrings(text))
    lines = [f"# {config.site_name}\n\n> {config.site_description}\n"]
    for item in NAVIGATION:
        lines.append(f"\n## {item.title}\n\n")
        lines += [f"- [{page.title}]({page.file.src_uri})\n" for page in pages_in(item)]
    (site / "llms.txt").write_text("".join(lines))


def pages_in(item: Any) -> Iterator[Any]:
    """The pages of an entry of the navigation."""
    if item.children is None:
        yield item
    for child in item.children or ():
        yield from pages_in(child)


def with_docstrings(text: str) -> str:
    """A page of Markdown with a public name's signature and docstring in place of `::: NAME`."""
    import meshrun

    def described(match: re.Match[str]) -> str:
        value = getattr(meshrun, match[1])
        signature = "" if inspect.isclass(value) else inspect.signature(value)
        return f"## {match[1]}\n\n```text\nmeshrun.{match[1]}{signature}\n\n{inspect.getdoc(value)}\n```\n"

    return re.sub(r"^::: meshrun\.(\w+)$", described, text, flags=re.MULTILINE)


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


def missing_files(site: Path) -> list[str]:
    """What the built site lacks: of the search on pages opened as files, and of Markdown for each page."""
    wanted = [site / "llms.txt", site / "search" / "search_index.js", site / "search" / "worker.js"]
    pages = [page.with_suffix(".md") for page in sorted(site.rglob("*.html")) if page.name != "404.html"]
    wanted += [page for page in pages if SOURCE not in page.relative_to(site).parts]
    return [f"{path} is missing" for path in wanted if not path.exists()]


if __name__ == "__main__":
    built = Path(sys.argv[1])
    if not (built / "index.html").exists():
        sys.exit(f"{built} holds no site")
    if found := loaded_from_elsewhere(built):
        sys.exit("\n".join(["the site loads from elsewhere:", *found]))
    if missing := missing_files(built):
        sys.exit("\n".join(missing))
