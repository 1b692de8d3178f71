"""Measure test cases as `bench copy` does; rank 0 prints them as nvbandwidth does."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TextIO

from meshrun import World
from meshrun.jobs.bench.copy.cases import Case, UnknownCase, chosen
from meshrun.jobs.bench.copy.measure import CopySettings
from meshrun.jobs.bench.copy.record import HostResults
from meshrun.jobs.bench.copy.run import CopyPrinter, measure_all, raise_if_wrong
from meshrun.jobs.bench.nvbandwidth import output
from meshrun.jobs.measure.record_file import Json, text_stream, write_record
from meshrun.runner.device.raw.box import open_box
from meshrun.runner.errors import UserError
from meshrun.runner.system.gpu import driver_version
from meshrun.runner.world.failure import FailureHandler


@dataclass(frozen=True)
class NvbandwidthOptions(CopySettings):
    """The command's options. names: of cases, also of unknown ones. output_file: "-" for JSON."""

    names: tuple[str, ...] = ()
    verbose: bool = False
    perf: bool = False
    json: bool = False
    output_file: str | None = None


def run(world: World, handler: FailureHandler, options: NvbandwidthOptions, cli_context: Any) -> Json:
    """Measure; returns the completion record. Raises WrongResults and UserError, after printing."""
    options = world.control.broadcast(options)
    names = dict.fromkeys(rank.host for rank in world.ranks)
    if len(names) > 1:
        raise UserError(
            "nvbandwidth's output is of one host",
            got=", ".join(names),
            hint="meshrun bench copy",
            everywhere=True,
        )
    cases, unknown = known_cases(options.names)
    group = world.control.split(0)
    with ExitStack() as stack:
        box = open_box()
        stack.callback(box.close)
        versions = {**world.versions(), "driver": driver_version(box.gpus[0].uuid)}
        stream = text_stream(options.output_file)
        printer = NvbandwidthPrinter(world, cli_context, stream, options, unknown, versions)
        (host,), settings = measure_all(world, group, box, cases, options, printer)
    if options.json and world.rank == 0:
        sentence = output.note(options.size, settings.size)
        write_record("-", output.document(host, unknown, versions, sentence, options.verbose))
    raise_if_wrong([host])
    if unknown:
        missing = ", ".join(name for _, name in unknown)
        raise UserError("there are no such test cases", got=missing, hint="-l lists them", everywhere=True)
    return {"command": "nvbandwidth", "cases": [case.name for case in cases], "ranks": world.size}


def known_cases(names: Sequence[str]) -> tuple[tuple[Case, ...], list[tuple[int, str]]]:
    """Return the cases in order, each once, and the other names with the number of cases before each."""
    cases, unknown = dict[str, Case](), list[tuple[int, str]]()
    for name in names:
        try:
            (case,) = chosen([name])
        except UnknownCase:
            unknown.append((len(cases), name))
        else:
            cases[case.name] = case
    return tuple(cases.values()), unknown


class NvbandwidthPrinter(CopyPrinter):
    """nvbandwidth's text, on rank 0; nothing but progress with -j."""

    def __init__(
        self,
        world: World,
        cli_context: Any,
        stream: TextIO,
        options: NvbandwidthOptions,
        unknown: Sequence[tuple[int, str]],
        versions: dict[str, str],
    ) -> None:
        super().__init__(world, cli_context, stream)
        self._options, self._unknown, self._versions = options, list(unknown), versions

    def begin(self, hosts: Sequence[HostResults], wanted: CopySettings, settings: CopySettings) -> None:
        self._print(output.head(hosts[0], self._versions, output.note(wanted.size, settings.size)))
        self._tell_unknown(0)

    def show(self, hosts: Sequence[HostResults]) -> None:
        results = hosts[0].results
        self._print(output.text(results[-1], self._options.verbose, self._options.perf))
        self._tell_unknown(len(results))

    def end(self, hosts: Sequence[HostResults]) -> None:
        """Print nothing: what was waived is printed in its place."""

    def _tell_unknown(self, before: int) -> None:
        for _, name in [one for one in self._unknown if one[0] == before]:
            self._print(f"ERROR: {output.not_found(name)}\n")

    def _print(self, text: str) -> None:
        if not self._options.json:
            self.write(text)
