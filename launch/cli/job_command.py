"""A job as a command: its parameters and the runner's own options, parsed by click."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Container
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from meshrun.launch.cli.params import SIZE, ParsedText, debug_option, device_option

if TYPE_CHECKING:
    from meshrun.runner.job.declaration import Job
    from meshrun.runner.job.signature import Parameter

RUN = "--run-"  # before the name of a run's option of which a job has a parameter
OWN = "of_job_"  # before a parameter's name among the values of a command: an option may have that name too
VERIFY = CHECKSUM = ("off", "sample", "full")
FORM = ("shape", "dtype", "order")


class Jobs(click.Group):
    """Every job as a command: installed ones by name, a user's by FILE.py:NAME or MODULE:NAME."""

    texts = True  # a job's own options may be empty

    def list_commands(self, ctx: click.Context) -> list[str]:
        from meshrun.runner.job.discover import names

        return names()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return job_command(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Jobs"):
            formatter.write_text(f"{', '.join(self.list_commands(ctx))}, FILE.py:NAME or MODULE:NAME")


def job_command(name: str) -> click.Command:
    """The command `meshrun run NAME`. Raises UserError if there is no such job or it cannot be loaded."""
    from meshrun.runner.job.discover import find
    from meshrun.runner.options.spelling import renamed
    from meshrun.runner.run.declare import renamed_options

    job = find(name)
    names = renamed_options(job)
    own = [job_option(parameter) for parameter in job.parameters]
    with renamed(names):
        ours = runner_options({parameter.name for parameter in job.parameters}, steps=job.takes_steps)
        help_text = _help_text(job)
    several = takes_several(job)

    def run(files: tuple[str, ...] = (), **values: Any) -> int:
        from meshrun.runner.forecast.machine import rates_file
        from meshrun.runner.options.form import form_of
        from meshrun.runner.options.step_options import StepOptions
        from meshrun.runner.options.stream_options import StreamOptions
        from meshrun.runner.run.entry import main
        from meshrun.runner.run.execute import file_names, wrong_number
        from meshrun.runner.run.options import Options

        inputs, outputs = list(files[: len(job.arrays)]), list(files[len(job.arrays) :])
        if several and len(files) != len(file_names(job)):
            raise wrong_number(job, files)
        if not several:
            inputs = [values.pop("input")]
            output = values.pop("output")
            outputs = [] if output is None else [output]
        parameters = {parameter.name: values.pop(OWN + parameter.name) for parameter in job.parameters}
        with renamed(names):
            values["form"] = form_of(*(values.pop(f"input_{name}") for name in FORM))
        values["rates"] = rates_file()
        values["stream"] = StreamOptions(
            **{name: values.pop(name) for name in StreamOptions.__dataclass_fields__}
        )
        if job.takes_steps:
            values["steps"] = StepOptions(
                **{name: values.pop(name) for name in StepOptions.__dataclass_fields__}
            )
        cli_context = click.get_current_context().obj
        with renamed(names):
            return main(
                job,
                inputs,
                outputs,
                parameters,
                Options(**values),
                started=cli_context.started,
                columns=cli_context.columns,
            )

    return JobCommand(
        name,
        callback=run,
        params=[*files_of(job), *own, *with_free_names(ours, own)],
        help=help_text,
        short_help=job.summary,
        own=len(own),
        input_hint=job.option_hint,
    )


def takes_several(job: Job) -> bool:
    """Whether a job's command takes more files than INPUT and OUTPUT."""
    from meshrun.runner.run.execute import file_names

    return len(file_names(job)) > 2


def files_of(job: Job) -> list[click.Argument]:
    """The files of a job's command: INPUT and OUTPUT, or the names of its inputs and outputs."""
    from meshrun.runner.run.execute import file_names

    if takes_several(job):
        return [click.Argument(["files"], nargs=-1, metavar=" ".join(file_names(job)))]
    return [
        click.Argument(["input"]),
        click.Argument(["output"], required=False, metavar="OUTPUT" if job.kind == "map" else None),
    ]


class JobsShown(Jobs):
    """Every job as a command that shows something of it without running it, for inputs or their shape.

    about: what is shown, after the job's summary. options: besides the job's own and the input's. show:
    called with the job, the inputs, the job's parameters and the values of the options.
    """

    about: str
    options: Callable[[Job], list[click.Option]]
    show: Callable[..., None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """The command for a job. Raises UserError if there is no such job or it cannot be loaded."""
        from meshrun.runner.job.discover import find
        from meshrun.runner.options.spelling import option, renamed
        from meshrun.runner.run.declare import renamed_options

        job = find(cmd_name)
        names = renamed_options(job)
        own = [job_option(parameter) for parameter in job.parameters]
        taken = {parameter.name for parameter in job.parameters}
        several = "; RxC,RxC for two" if len(job.arrays) > 1 else ""
        shape_help = f"Shape of a raw INPUT, or instead of INPUT{several}."
        with renamed(names):
            dtype_help = f"Dtype for {option('shape')}, such as float32."
        ours = [
            input_option("shape", taken, metavar="RxC", help=shape_help),
            input_option("dtype", taken, metavar="NAME", help=dtype_help),
            order_option(taken),
            *self.options(job),
            debug_option(),
        ]
        takes = " ".join(name.upper() for name in job.arrays) if len(job.arrays) > 1 else "INPUT"

        def run(inputs: tuple[str, ...], debug: bool, **values: Any) -> None:
            parameters = {parameter.name: values.pop(OWN + parameter.name) for parameter in job.parameters}
            with renamed(names | _renamed(ours)):
                self.show(job, inputs, parameters, **values)

        return JobCommand(
            cmd_name,
            callback=run,
            params=[
                click.Argument(["inputs"], nargs=-1, metavar=f"[{takes}]"),
                *own,
                *with_free_names(ours, own),
            ],
            help=f"{job.summary}\n\n{self.about.format(cmd_name)}",
            short_help=job.summary,
            own=len(own),
            input_hint=job.option_hint,
        )


class JobCommand(click.Command):
    """A command whose help separates the job's options from the runner's.

    own: number of the job's options. input_hint: `Job.option_hint`.
    """

    def __init__(
        self, *arguments: Any, own: int, input_hint: Callable[[str], str | None], **keywords: Any
    ) -> None:
        super().__init__(*arguments, **keywords)
        self.own, self.input_hint = own, input_hint

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
            if ctx.params[option.name or ""] == "":
                raise click.UsageError(f"empty argument after {option.opts[0]}: is a variable not set?", ctx)
        return rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [row.get_help_record(ctx) for row in self.get_params(ctx) if isinstance(row, click.Option)]
        rows = [row for row in options if row is not None]
        for title, section in (("Options of this job", rows[: self.own]), ("Options", rows[self.own :])):
            if section:
                with formatter.section(title):
                    formatter.write_dl(section)


def with_free_names(ours: list[click.Option], own: list[click.Option]) -> list[click.Option]:
    """Rename the flags of the runner's options that are flags of the job's: --depth becomes --run-depth."""
    from meshrun.runner.job.signature import run_name

    taken = {_name_of(flag) for option in own for flag in (*option.opts, *option.secondary_opts)}
    for option in ours:
        clash = {_name_of(flag) for flag in (*option.opts, *option.secondary_opts)} & taken
        if clash and option.secondary_opts:  # --overlap/--no-overlap
            flag = _flag(run_name(f"run_{option.name}", taken))
            option.opts, option.secondary_opts = [flag], [f"--no-{flag[2:]}"]
        elif clash:
            option.opts = [_flag(run_name(_name_of(flag), taken)) for flag in option.opts]
    return ours


def _renamed(ours: list[click.Option]) -> dict[str, str]:
    """Return the options that do not have their usual name: that name, and theirs."""
    names = {str(option.name): _name_of(option.opts[0]) for option in ours}
    return {name: new for name, new in names.items() if new != name}


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _name_of(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


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
    # For click, None is a default too, which a required option must not have.
    default = {} if parameter.required else {"default": parameter.default}
    return click.Option(
        [flag, OWN + parameter.name],
        **default,
        type=_click_type(parameter.type),
        required=parameter.required,
        show_default=parameter.default is not None,
        help=parameter.help,
    )


def _click_type(declared: Any) -> Any:
    if isinstance(declared, tuple):
        return click.Choice(declared)
    if declared is Path:
        return click.Path(path_type=Path)
    return str if declared is object else declared


def runner_options(taken: Container[str] = (), *, steps: bool) -> list[click.Option]:
    """The options that every job has, as in `runner.run.options`. taken: the job's own names.

    steps: those of jobs that take steps, too. If the job has its own --dtype, only --input-dtype remains.
    """
    return [
        device_option(),
        click.Option(
            ["--json"], metavar="FILE", help="Write the run's record to FILE; - is standard output."
        ),
        click.Option(
            ["--verify"],
            type=click.Choice(VERIFY),
            is_flag=False,
            flag_value="sample",
            default="off",
            metavar="[sample|full]",
            help="Check some (sample) or all (full) blocks of the result against the job's reference.",
        ),
        click.Option(
            ["--checksum"],
            type=click.Choice(CHECKSUM),
            default="off",
            help="Check arrays that cross ranks by checksums: 1 message in 64 (sample), or all (full)."
            "  [default: off]",
        ),
        *grid_options(),
        click.Option(["--overlap/--no-overlap"], default=None, help="Compute while data is in transfer."),
        click.Option(["--oversubscribe"], is_flag=True, help="Let ranks share a GPU."),
        click.Option(["--overwrite-input"], is_flag=True, help="Let an output replace an input."),
        input_option(
            "shape",
            taken,
            metavar="RxC",
            help="Shape of an input without a header, such as .raw; RxC,RxC for two.",
        ),
        input_option("dtype", taken, metavar="NAME", help="Dtype of such an input: float32."),
        order_option(taken),
        *((fuse_option(), fuse_math_option(), *step_options()) if steps else ()),
        *stream_options(),
        debug_option(),
    ]


def grid_options() -> list[click.Option]:
    """How a job's array is split, and its boundary."""
    from meshrun.runner.options.choices import BOUNDARIES
    from meshrun.runner.options.spelling import option

    return [
        click.Option(["--grid"], metavar="RxC", help="Split the array into this grid, a number per axis."),
        click.Option(["--boundary"], type=click.Choice(BOUNDARIES), help="Values beyond the array's edges."),
        click.Option(["--cval"], type=float, help=f"The constant of {option('boundary', 'constant')}."),
    ]


def order_option(taken: Container[str]) -> click.Option:
    """The order of a raw input."""
    text = "Order of such an input; F: the first index varies fastest."
    return input_option("order", taken, type=click.Choice(("C", "F")), help=text)


def input_option(name: str, taken: Container[str], **details: Any) -> click.Option:
    """--input-NAME, and --NAME if the job has no such parameter."""
    short = [] if name in taken else [f"--{name}"]
    return click.Option([f"--input-{name}", *short, f"input_{name}"], **details)


def fuse_option() -> click.Option:
    """Whether a job's function becomes one kernel."""
    from meshrun.runner.options.choices import FUSE

    return click.Option(
        ["--fuse"],
        type=click.Choice(FUSE),
        help="Compute the function as one kernel: where it can be traced, or fail.  [default: auto]",
    )


def fuse_math_option() -> click.Option:
    """How that kernel rounds."""
    from typing import get_args

    from meshrun.runner.options.choices import FuseMath

    FUSE_MATH = get_args(FuseMath)

    return click.Option(
        ["--fuse-math"],
        type=click.Choice(FUSE_MATH),
        default=FUSE_MATH[0],
        help="fast: that kernel may contract a*b+c, which changes the last bits.  [default: strict]",
    )


def step_options() -> list[click.Option]:
    """The fields of `runner.options.step_options.StepOptions`."""
    from typing import get_args

    from meshrun.runner.options.choices import COLORS, HaloChoice
    from meshrun.runner.options.spelling import option

    HALOS = get_args(HaloChoice)
    from meshrun.runner.options.step_options import (
        STEPS_MOST,
        parse_interval,
        parse_range,
        parse_until,
    )

    count = click.IntRange(1, STEPS_MOST)
    return [
        steps_option("Take N steps: each result is the next step's input."),
        click.Option(
            ["--steps-per-exchange"], type=count, metavar="K",
            help="Exchange halos K times as wide, every K steps.  [default: as one kernel takes, or 1]",
        ),
        click.Option(
            ["--halo"], type=click.Choice(HALOS), default=HALOS[0],
            help="How GPUs exchange halos: by messages, or by storing into each other's memory.  "
            f"[default: {HALOS[0]}]",
        ),
        copies_option(),
        click.Option(
            ["--until"], type=ParsedText("TOLERANCE", parse_until),
            metavar="TOLERANCE[:FIELD,...]|steady[:TOLERANCE]",
            help="Stop when no cell, of the fields named or of any, changes by more than this in a step, "
            f"checked every 10 or {option('every')} steps; or when a flow is steady.",
        ),
        click.Option(
            ["--check-finite"], type=count, metavar="N",
            help="Fail if a value is not finite, checked every N steps.",
        ),
        click.Option(
            ["--every"], type=count, metavar="N",
            help=f"Steps between two frames, or checks of {option('until')}.",
        ),
        click.Option(
            ["--frames"], metavar="DIR|FILE",
            help="Write frames: a folder of PNGs, .gif, .webp, .png or .mp4; or all cells to .npy or .zarr.",
        ),
        click.Option(["--frame-field"], metavar="NAME", help="Input that frames show.  [default: the first]"),
        click.Option(
            ["--frame-range"], type=ParsedText("LOW:HIGH", parse_range), metavar="LOW:HIGH",
            help="Values of the first and the last colour.  [default: the first frame's]",
        ),
        click.Option(
            ["--frame-colors"], type=click.Choice(COLORS), default=COLORS[0],
            help=f"Colour map.  [default: {COLORS[0]}]",
        ),
        click.Option(
            ["--checkpoint"], type=ParsedText("EVERY", parse_interval), metavar="EVERY",
            help="Save the state every N steps, or every 30s, 5min or 1h; continue with "
            f"{option('resume', True)}.",
        ),
    ]  # fmt: skip


def stream_options() -> list[click.Option]:
    """The fields of `runner.options.stream_options.StreamOptions`."""
    return [
        click.Option(["--chunk-bytes"], type=SIZE, help="Process the array in chunks of this size."),
        click.Option(["--host-memory"], type=SIZE, help="Host memory for the chunks of each rank."),
        click.Option(["--device-memory"], type=SIZE, help="GPU memory for the chunks of each rank."),
        depth_option(),
        click.Option(["--resume"], is_flag=True, help="Continue an unfinished run of the same job."),
        click.Option(["--static"], is_flag=True, help="Do not move chunks from slower ranks to faster ones."),
        click.Option(["--timeline"], metavar="FILE", help="Write a timeline: .html, or .json for Perfetto."),
    ]


def steps_option(text: str) -> click.Option:
    """Return the option --steps. text: its help."""
    from meshrun.runner.options.step_options import STEPS_MOST

    return click.Option(["--steps"], type=click.IntRange(1, STEPS_MOST), metavar="N", help=text)


def copies_option() -> click.Option:
    """Return the option of the copies of a run's fields that steps change."""
    from typing import get_args

    from meshrun.runner.options.choices import Copies

    COPIES = get_args(Copies)

    return click.Option(
        ["--copies"], type=click.Choice(COPIES), default=COPIES[0],
        help="Copies of the fields in memory: two, or one, which takes half the bytes.  "
        "[default: two where they fit]",
    )  # fmt: skip


def depth_option() -> click.Option:
    """The option --depth; None if not given."""
    from meshrun.runner.options.stream_options import DEPTH, DEPTH_MOST

    return click.Option(
        ["--depth"],
        type=click.IntRange(1, DEPTH_MOST),
        metavar="N",
        help=f"Chunks in flight.  [default: {DEPTH}]",
    )


def _help_text(job: Job) -> str:
    """The job's docstring without its parameters, which are options; click must not rewrap its lines."""
    from meshrun.runner.options.spelling import option
    from meshrun.runner.run.execute import writes_files

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
