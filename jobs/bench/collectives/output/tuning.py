"""Judge a sweep over NCCL's algorithms, protocols and channels: what is faster, and what to set."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshrun.jobs.bench.collectives.output.nccl_tests_text import cells, figure, titles
from meshrun.jobs.bench.collectives.output.reader import RowKey
from meshrun.jobs.measure.plots import Sheet, label_ticks, save
from meshrun.runner.comm.collectives.api import NcclChoice, NcclTuning
from meshrun.runner.report.units import size_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OWN = NcclTuning()  # NCCL's own choice
CERTAIN = 4.0  # standard errors
COLUMNS = (
    ("size", "(B)", 12),
    ("type", "", 8),
    ("redop", "", 6),
    ("NCCL's choice", "", 20),
    ("time", "(us)", 9),
    ("busbw", "(GB/s)", 7),
    ("fastest", "", 20),
    ("time", "(us)", 9),
    ("busbw", "(GB/s)", 7),
    ("gain", "(%)", 6),
    ("noise", "(%)", 6),
)


@dataclass
class TuningSweep:
    """The times of one operation.

    seconds: of each tuning and row, one for each round. gigabytes: of each row, its busbw times its seconds.
    choices: what NCCL chose for a row by itself. refused: what cannot be used, with the reason.
    """

    operation: str
    backend: str
    seconds: dict[NcclTuning, dict[RowKey, list[float]]] = field(default_factory=dict)
    gigabytes: dict[RowKey, float] = field(default_factory=dict)
    choices: dict[RowKey, tuple[NcclChoice, ...]] = field(default_factory=dict)
    refused: dict[NcclTuning, str] = field(default_factory=dict)

    def busbw(self, tuning: NcclTuning, key: RowKey) -> float:
        """GB/s, of the median over rounds."""
        seconds = statistics.median(self.seconds[tuning][key])
        return self.gigabytes[key] / seconds if seconds else 0.0


@dataclass(frozen=True)
class TuningVerdict:
    """One row. noise: the least gain that is reported. faster: gains of what is faster than NCCL's own choice
    beyond noise: of speed, own / its - 1. slower: what is slower beyond noise."""

    noise: float
    faster: Mapping[NcclTuning, float] = field(default_factory=dict)
    slower: frozenset[NcclTuning] = frozenset()

    @property
    def best(self) -> NcclTuning | None:
        return max(self.faster, key=lambda tuning: self.faster[tuning], default=None)


def judge(seconds: Mapping[NcclTuning, Sequence[float]]) -> TuningVerdict:
    """Compare the times of one row with those of NCCL's own choice.

    The logarithms of the two times of a round are subtracted, so that what changes from round to round for
    all cancels. The spread of these differences is pooled over all tunings. A mean beyond CERTAIN standard
    errors is a difference.
    """
    rounds = len(seconds[OWN])
    differences = {
        tuning: [math.log(own / other) for own, other in zip(seconds[OWN], times, strict=True)]
        for tuning, times in seconds.items()
        if tuning != OWN
    }
    if not differences:
        return TuningVerdict(math.inf)
    pooled = statistics.fmean(statistics.variance(values) for values in differences.values())
    least = CERTAIN * math.sqrt(pooled / rounds)
    means = {tuning: statistics.fmean(values) for tuning, values in differences.items()}
    faster = {tuning: math.expm1(mean) for tuning, mean in means.items() if mean > least}
    slower = frozenset(tuning for tuning, mean in means.items() if mean < -least)
    return TuningVerdict(math.expm1(least), faster, slower)


def verdicts(sweep: TuningSweep) -> dict[RowKey, TuningVerdict]:
    return {
        key: judge({tuning: rows[key] for tuning, rows in sweep.seconds.items()}) for key in sweep.gigabytes
    }


def plain(tuning: NcclTuning) -> NcclTuning:
    """The tuning without the operation that it is for: "Tree" of "allreduce:Tree"."""
    algorithm, protocol = (
        None if word is None else word.rpartition(":")[2] for word in (tuning.algorithm, tuning.protocol)
    )
    return NcclTuning(algorithm, protocol, tuning.channels)


def name(tuning: NcclTuning) -> str:
    """Such as "Ring/LL/8": algorithm, protocol, channels; only what is set."""
    bare = plain(tuning)
    words = [word for word in (bare.algorithm, bare.protocol) if word is not None]
    words += [] if bare.channels is None else [f"{bare.channels} channels"]
    return "/".join(words) or "NCCL's choice"


def variables(tuning: NcclTuning) -> str:
    """The environment variables that have the tuning's effect on every communicator of a process."""
    words = {
        "NCCL_ALGO": tuning.algorithm,
        "NCCL_PROTO": tuning.protocol,
        "NCCL_MIN_CTAS": tuning.channels,
        "NCCL_MAX_CTAS": tuning.channels,
    }
    return " ".join(f"{variable}={value}" for variable, value in words.items() if value is not None)


def render(sweep: TuningSweep, found: Mapping[RowKey, TuningVerdict]) -> str:
    """Format the table and the sentences below it."""
    rounds = len(next(iter(sweep.seconds[OWN].values())))
    lines = [
        f"# Tuning of {sweep.operation}, out of place: {len(sweep.seconds)} settings in {rounds} rounds",
        f"# backend: {sweep.backend}",
        *titles(COLUMNS),
    ]
    for key, verdict in found.items():
        chosen = "+".join(
            f"{one.algorithm}/{one.protocol}" + (f"/{one.channels}" if one.channels else "")
            for one in sweep.choices.get(key, ())
        )
        row = [str(key.size), key.datatype, key.reduction, chosen or "-", *_figures(sweep, OWN, key)]
        if verdict.best is None:
            row += ["-"] * 4
        else:
            row += [
                name(verdict.best),
                *_figures(sweep, verdict.best, key),
                figure(100 * verdict.faster[verdict.best], 6),
            ]
        lines.append(cells(COLUMNS, [*row, figure(100 * verdict.noise, 6)]))
    lines += [f"# not usable: {name(tuning)}: {why}" for tuning, why in sweep.refused.items()]
    lines += [f"# {sentence}" for sentence in advice(found)]
    return "\n".join([*lines, "#"]) + "\n"


def _figures(sweep: TuningSweep, tuning: NcclTuning, key: RowKey) -> tuple[str, str]:
    return (
        figure(statistics.median(sweep.seconds[tuning][key]) * 1e6, 9),
        figure(sweep.busbw(tuning, key), 7),
    )


def advice(found: Mapping[RowKey, TuningVerdict]) -> list[str]:
    """Say what to set: a setting that is faster for some sizes and slower for none, else by size."""
    gains: dict[NcclTuning, list[float]] = {}
    for verdict in found.values():
        for tuning, gain in verdict.faster.items():
            gains.setdefault(tuning, []).append(100 * gain)
    if not gains:
        noise = [100 * verdict.noise for verdict in found.values()]
        return [f"Set nothing: no setting is faster than NCCL's own choice beyond noise ({_range(noise)} %)"]
    slower = {tuning for verdict in found.values() for tuning in verdict.slower}
    safe = {tuning: sum(several) for tuning, several in gains.items() if tuning not in slower}
    if safe:
        best = max(safe, key=lambda tuning: safe[tuning])
        return [
            f"To set: {variables(best)}: faster by {_range(gains[best])} % in {len(gains[best])} of "
            f"{len(found)} rows, slower in none beyond noise"
        ]
    lines = ["No setting suits all sizes: each is slower than NCCL's own choice for some. By size:"]
    for tuning, group in groupby(found.items(), key=lambda item: item[1].best):
        keys = [key for key, _ in group]
        if tuning is not None:
            sizes = dict.fromkeys(size_name(key.size) for key in (keys[0], keys[-1]))
            lines.append(f"  {' to '.join(sizes)}: {variables(tuning)}")
    return [*lines, "The variables apply to all sizes of a process: set them where messages have these sizes"]


def _range(values: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(f"{value:.2g}" for value in (min(values), max(values))))


def document(sweep: TuningSweep, found: Mapping[RowKey, TuningVerdict]) -> dict[str, Any]:
    """Convert to JSON. Times in seconds, by round; gain and noise as fractions."""
    return {
        "operation": sweep.operation,
        "backend": sweep.backend,
        "rows": [
            {
                **asdict(key),
                "nccl_choices": [asdict(choice) for choice in sweep.choices.get(key, ())],
                "best": None if verdict.best is None else asdict(verdict.best),
                "gain": 0.0 if verdict.best is None else verdict.faster[verdict.best],
                "noise": verdict.noise,
                "seconds": [
                    asdict(tuning) | {"seconds": rows[key]} for tuning, rows in sweep.seconds.items()
                ],
            }
            for key, verdict in found.items()
        ],
        "refused": [asdict(tuning) | {"reason": why} for tuning, why in sweep.refused.items()],
        "advice": advice(found),
    }


def draw(sweeps: Sequence[tuple[TuningSweep, Mapping[RowKey, TuningVerdict]]], target: str) -> None:
    """Draw a heat map of each operation: bandwidth over that of NCCL's own choice, by setting and size.

    A difference beyond noise is in bold. Raises UserError as `jobs.measure.plots.save`.
    """

    def figures(canvas: Figure) -> None:
        canvas.set_size_inches(11, sum(1.6 + 0.3 * len(sweep.seconds) for sweep, _ in sweeps))
        panels = canvas.subplots(len(sweeps), 1, squeeze=False).flat
        for axes, (sweep, found) in zip(panels, sweeps, strict=True):
            tunings, keys = [*sweep.seconds], [*found]
            shares = [[_share(sweep, tuning, key) for key in keys] for tuning in tunings]
            # Red is slower, blue faster; half and double as fast have the full colours.
            image = axes.imshow(shares, cmap="RdBu", aspect="auto", vmin=50, vmax=150)
            canvas.colorbar(image, ax=axes, label="% of NCCL's choice", fraction=0.04, pad=0.01)
            for row, tuning in enumerate(tunings):
                for column, key in enumerate(keys):
                    certain = tuning == found[key].best or tuning in found[key].slower
                    weight = "bold" if certain else "normal"
                    word = f"{shares[row][column]:.0f}"
                    axes.text(
                        column, row, word, ha="center", va="center", fontsize="x-small", fontweight=weight
                    )
            label_ticks(axes, range(len(keys)), [size_name(key.size) for key in keys])
            axes.set_yticks(range(len(tunings)), [name(tuning) for tuning in tunings])
            axes.set_title(sweep.operation, fontsize="small")

    heads = ("operation", "setting", "size", "type", "redop", "busbw (GB/s)", "% of NCCL's choice")
    rows = [
        (sweep.operation, name(tuning), size_name(key.size), key.datatype, key.reduction,
         f"{sweep.busbw(tuning, key):.4g}", f"{_share(sweep, tuning, key):.1f}")
        for sweep, found in sweeps for tuning in sweep.seconds for key in found
    ]  # fmt: skip
    title = "Bandwidth by algorithm, protocol and channels, against NCCL's own choice"
    save(figures, Path(target), title, [Sheet(heads, rows)])


def _share(sweep: TuningSweep, tuning: NcclTuning, key: RowKey) -> float:
    own = sweep.busbw(OWN, key)
    return 100 * sweep.busbw(tuning, key) / own if own else math.nan
