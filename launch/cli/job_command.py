"""A job as a command: its parameters and the runner's own options, parsed by click."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from meshrun.launch.cli.params import ParsedText

if TYPE_CHECKING:
    from meshrun.runner.job.declaration import Job
    from meshrun.runner.job.signature import Parameter
    from meshrun.runner.options.table import OptionRow

RUN = "--run-"  # before the name of a run's option of which a job has a parameter
OWN = "of_job_"  # before a parameter's name among the values of a command: an option may have that name too
VERIFY = ("off", "sample", "full")
HELP_ALL = "--help-all"
MANY = 10  # options of a job; the short help has one line for each of more
FLAGS = 22  # characters of an option and its value that the short help shows on one line


class Jobs(click.Group):
    """Every job as a command: installed ones by name, a user's by FILE.py:NAME or MODULE:NAME."""

    texts = True  # a job's own options may be empty

    def list_commands(self, ctx: click.Context) -> list[str]:
        from meshrun.runner.job.discover import names

        return names()

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from meshrun.runner.system.launcher import detect_launcher

        # The device is known once the job is, whose modules are imported meanwhile.
        if detect_launcher() is not None and {"cpu", "--device=cpu"}.isdisjoint(args):
            from meshrun.runner.world.preload import start_driver

            start_driver()
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return job_command(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Jobs"):
            formatter.write_text(f"{', '.join(self.list_commands(ctx))}, FILE.py:NAME or MODULE:NAME")


def job_command(name: str) -> click.Command:
    """The command `meshrun run NAME`. Raises UserError if there is no such job or it cannot be loaded."""
    from meshrun.runner.job.discover import find
    from meshrun.runner.job.signature import option_names
    from meshrun.runner.options.run_options import COMMON, run_groups
    from meshrun.runner.spelling import renamed

    job = find(name)
    own = [job_option(parameter) for parameter in job.parameters]
    groups = run_groups(steps=job.takes_steps)
    table = [row for group in groups.values() for row in group]
    names, taken = option_names(job.parameters, table, in_command=True), {p.name for p in job.parameters}
    with renamed(names):
        ours, help_text = [click_option(row, names, taken) for row in table], _help_text(job)
    several = takes_several(job)

    @renamed(names)
    def run(files: tuple[str, ...] = (), **values: Any) -> int:
        from meshrun.runner.forecast.machine import rates_file
        from meshrun.runner.options.run_options import run_options
        from meshrun.runner.run.entry import main
        from meshrun.runner.run.files import file_names, wrong_number

        inputs, outputs = list(files[: len(job.arrays)]), list(files[len(job.arrays) :])
        if several and len(files) != len(file_names(job)):
            raise wrong_number(job, files)
        if not several:
            inputs = [values.pop("input")]
            output = values.pop("output")
            outputs = [] if output is None else [output]
        parameters = {parameter.name: values.pop(OWN + parameter.name) for parameter in job.parameters}
        cli_context = click.get_current_context().obj
        return main(
            job,
            inputs,
            outputs,
            parameters,
            run_options(values, rates_file()),
            started=cli_context.started,
            columns=cli_context.columns,
        )

    return JobCommand(
        name,
        callback=run,
        params=[*files_of(job), *own, *ours],
        help=help_text,
        short_help=job.summary,
        own=len(own),
        input_hint=job.option_hint,
        groups={title: [row.name for row in group] for title, group in groups.items()},
        common=COMMON,
    )


def takes_several(job: Job) -> bool:
    """Whether a job's command takes more files than INPUT and OUTPUT."""
    from meshrun.runner.run.files import file_names

    return len(file_names(job)) > 2


def files_of(job: Job) -> list[click.Argument]:
    """The files of a job's command: INPUT and OUTPUT, or the names of its inputs and outputs."""
    from meshrun.runner.run.files import file_names

    if takes_several(job):
        return [click.Argument(["files"], nargs=-1, metavar=" ".join(file_names(job)))]
    return [
        click.Argument(["input"]),
        click.Argument(["output"], required=False, metavar="OUTPUT" if job.kind == "map" else None),
    ]


class JobsShown(Jobs):
    """Every job as a command that shows something of it without running it, for inputs or their shape.

    about: what is shown, after the job's summary. table: the rows of its options, besides the input's. show:
    called with the job, the inputs, the job's parameters and the values of the options.
    """

    about: str
    table: Callable[[Job], list[OptionRow]]
    show: Callable[..., None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """The command for a job. Raises UserError if there is no such job or it cannot be loaded."""
        from meshrun.runner.job.discover import find
        from meshrun.runner.job.signature import option_names
        from meshrun.runner.options.plan_options import shown_inputs
        from meshrun.runner.options.run_options import Options
        from meshrun.runner.options.table import rows
        from meshrun.runner.spelling import renamed

        job = find(cmd_name)
        own = [job_option(parameter) for parameter in job.parameters]
        table = [*shown_inputs(len(job.arrays) > 1), *self.table(job), rows(Options)["debug"]]
        names, taken = option_names(job.parameters, table, in_command=True), {p.name for p in job.parameters}
        with renamed(names):
            ours = [click_option(row, names, taken) for row in table]
        takes = " ".join(name.upper() for name in job.arrays) if len(job.arrays) > 1 else "INPUT"

        @renamed(names)
        def run(inputs: tuple[str, ...], debug: bool, **values: Any) -> None:
            parameters = {parameter.name: values.pop(OWN + parameter.name) for parameter in job.parameters}
            self.show(job, inputs, parameters, **values)

        return JobCommand(
            cmd_name,
            callback=run,
            params=[click.Argument(["inputs"], nargs=-1, metavar=f"[{takes}]"), *own, *ours],
            help=f"{job.summary}\n\n{self.about.format(cmd_name)}",
            short_help=job.summary,
            own=len(own),
            input_hint=job.option_hint,
        )


class JobCommand(click.Command):
    """A command whose help separates the job's options from the runner's.

    own: number of the job's options. input_hint: `Job.option_hint`. groups: names of the runner's options by
    the section of the help; empty: one section. common: names of those that `--help` shows; `--help-all`
    shows the others too.
    """

    def __init__(
        self,
        *arguments: Any,
        own: int,
        input_hint: Callable[[str], str | None],
        groups: Mapping[str, Sequence[str]] = MappingProxyType({}),
        common: Container[str] = (),
        **keywords: Any,
    ) -> None:
        super().__init__(*arguments, **keywords)
        self.own, self.input_hint, self.groups, self.common = own, input_hint, groups, common
        if groups:
            details: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False}
            text = "Show all options and exit."
            self.params.append(click.Option([HELP_ALL], help=text, callback=_show_all, **details))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = [one for one in self.params if isinstance(one, click.Option)]
        flags = {flag for one in options for flag in (*one.opts, *one.secondary_opts)}
        end = args.index("--") if "--" in args else len(args)
        args = [*(_usual(word, flags) for word in args[:end]), *args[end:]]
        verify = next((one.opts[0] for one in options[self.own :] if one.name == "verify"), None)
        # In `--verify INPUT OUTPUT`, click would take INPUT as the value.
        following = [*args, ""][1:]
        pairs = enumerate(zip(args, following, strict=True))
        valueless = [word == verify and after not in VERIFY and at < end for at, (word, after) in pairs]
        words = [f"{verify}=sample" if bare else word for word, bare in zip(args, valueless, strict=True)]
        try:
            rest = super().parse_args(ctx, words)
        except click.NoSuchOption as reason:
            hint = self.input_hint(reason.option_name.lstrip("-").replace("-", "_"))
            if hint is not None:
                message = f"{reason.option_name} is an input of this job, not an option. Write {hint}"
                raise click.UsageError(message, ctx) from None
            raise
        except click.UsageError as reason:
            after = next((after for after, bare in zip(following, valueless, strict=True) if bare), "")
            if after and f"extra argument ({after})" in reason.message:
                raise click.UsageError(f"{verify}: got {after!r}, expected sample or full", ctx) from reason
            raise
        for option in options[self.own :]:
            if ctx.params.get(option.name or "") == "":
                raise click.UsageError(f"empty argument after {option.opts[0]}: is a variable not set?", ctx)
        return rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [row for row in self.get_params(ctx) if isinstance(row, click.Option)]
        own, ours = options[: self.own], options[self.own :]
        brief = bool(self.groups) and not ctx.meta.get(HELP_ALL)
        sections = {"Options": ours}
        if brief:
            known = {name for names in self.groups.values() for name in names}
            sections = {
                "Options of every job": [
                    row for row in ours if row.name in self.common or row.name not in known
                ]
            }
        elif self.groups:
            named = {row.name: row for row in ours}
            sections = {title: [named.pop(name) for name in names] for title, names in self.groups.items()}
            sections["Help"] = [*named.values()]
        for title, section in {"Options of this job": own, **sections}.items():
            records = [record for row in section if (record := row.get_help_record(ctx)) is not None]
            if brief and (section is not own or len(own) > MANY):
                records = [_one_line(flags, text, formatter.width) for flags, text in records]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _one_line(flags: str, text: str, width: int) -> tuple[str, str]:
    """Return an option's record of one line: without what stands for its value, if that is long."""
    name = flags if len(flags) <= FLAGS else max(re.findall(r"--[\w-]+", flags), key=len)
    return name, shorten(text, width - FLAGS - 6, placeholder=" ...")


def _show_all(ctx: click.Context, _: click.Parameter, requested: bool) -> None:
    if requested:
        ctx.meta[HELP_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def click_option(row: OptionRow, names: Mapping[str, str], taken: Container[str] = ()) -> click.Option:
    """The option of a row. names: of options that are called otherwise. taken: short names to leave out."""
    from meshrun.runner.options.values import (
        BoundaryValue,
        ChoiceValue,
        CountValue,
        FlagValue,
        NumberValue,
        ParsedValue,
        SizeValue,
    )

    flags = [_flag(names.get(name, name)) for name in row.names if name == row.name or name not in taken]
    flags = [f"-{row.letter}", *flags] if row.letter else flags
    default = f"  [default: {row.default_text}]" if row.default_text else ""
    details: dict[str, Any] = {"help": row.help_text + default, "metavar": row.metavar}
    if not row.required:  # for click, None is a default too
        details["default"] = row.default
    match row.values:
        case ChoiceValue() as choice:
            details["type"] = click.Choice(choice.words)
            if choice.flags:  # the option without a value
                details |= {"is_flag": False, "flag_value": choice.words[True]}
        case FlagValue() if row.is_two_sided:
            flags = [f"{flags[0]}/--no-{flags[0][2:]}"]
        case FlagValue():
            details["is_flag"] = True
        case CountValue(most):
            details["type"] = click.IntRange(1, most)
        case NumberValue(positive):
            details["type"] = click.FloatRange(min=0, min_open=True) if positive else float
        case SizeValue() | ParsedValue() | BoundaryValue():
            details["type"] = ParsedText(row.metavar or "", row.values.read)
    return click.Option([*flags, row.name], required=row.required, **details)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _usual(word: str, flags: Container[str]) -> str:
    """Return --depth for --run-depth, which every job's command takes, unless it is called that here."""
    flag, *value = word.split("=", 1)
    usual = f"--{flag.removeprefix(RUN)}"
    replaced = flag.startswith(RUN) and flag not in flags and usual in flags
    return "=".join([usual, *value]) if replaced else word


def job_option(parameter: Parameter) -> click.Option:
    """The option for one parameter of a job: `--bin-count` for bin_count, `--x/--no-x` for a bool."""
    flag = _flag(parameter.name)
    if parameter.type is bool:
        flag += "/--no-" + flag[2:]
    # For click, None is a default too, which a required option must not have. An array has no text.
    shown = None if hasattr(parameter.default, "dtype") else parameter.default
    default: dict[str, Any] = {} if parameter.required else {"default": shown}
    return click.Option(
        [flag, OWN + parameter.name],
        **default,
        type=_click_type(parameter.type),
        required=parameter.required,
        show_default=shown is not None,
        help=parameter.help,
    )


def _click_type(declared: Any) -> Any:
    from meshrun.runner.job.series import Series

    if isinstance(declared, tuple):
        return click.Choice(declared)
    if declared in (Path, Series):  # a table in time is read when the run begins
        return click.Path(path_type=Path)
    return str if declared is object else declared


def _help_text(job: Job) -> str:
    """The job's docstring without its parameters, which are options; click must not rewrap its lines."""
    from meshrun.runner.run.files import writes_files
    from meshrun.runner.spelling import option

    text = inspect.getdoc(job.function) or ""
    for parameter in job.parameters:
        text = re.sub(rf"^ *{parameter.name}: .+(\n {{2,}}.+)*\n?", "", text, flags=re.MULTILINE)
    parts = [f"\b\n{part}" for part in text.split("\n\n") if part.strip()]
    if writes_files(job) or job.whole_rows:
        parts.append(
            "An existing OUTPUT is replaced when the new one is complete; one that is also an input, only "
            f"with {option('overwrite_input', True)}."
        )
    return "\n\n".join(parts)
