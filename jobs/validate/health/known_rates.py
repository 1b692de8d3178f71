"""The library of known rates: peaks of GPU models and shares of limits that healthy machines reach.

The data, with its sources, is `known_rates.json`; a site's file of the same form adds to it or overrides it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshrun.jobs.validate.health.hardware_limits import NVLS_CAPABILITY, NominalRate, RankFacts
from meshrun.jobs.validate.plan import RUNGS
from meshrun.jobs.validate.probe.api import RankPlace
from meshrun.jobs.validate.report.model import HardwareLimit
from meshrun.runner.errors import UserError, shortened
from meshrun.runner.report.units import counted

DATA = Path(__file__).with_name("known_rates.json")
GPU_KEYS = {"model", "memory", "float32", "float16", "nvlink", "links", "source"}
GB, TERA = 1e9, 1e12
LARGEST = 1e12  # number in a file, of any unit
# What a simulated fleet calls them; it has the rates of an H200 unless it says otherwise.
SIMULATED = {
    "": "NVIDIA H200",
    "H200": "NVIDIA H200",
    "H100": "NVIDIA H100 80GB HBM3",
    "A100": "NVIDIA A100-SXM4-80GB",
}
# PCIe generation, and Gb/s of the NICs, of a simulated host with these GPUs; others are as of an H200.
SIMULATED_LINKS = {"NVIDIA A100-SXM4-80GB": (4, 200), "NVIDIA A100 80GB PCIe": (4, 200)}
PCIE = {4: 31.5 * GB, 5: 63 * GB}  # x16, one direction


@dataclass(frozen=True)
class KnownGpu:
    """Peaks of a GPU model; None if unknown. memory, nvlink: B/s. links: its NVLinks.

    float32, float16: FLOP/s, float16 on tensor cores with dense matrices.
    """

    model: str
    source: str
    memory: float | None = None
    float32: float | None = None
    float16: float | None = None
    nvlink: float | None = None
    links: int = 0


@dataclass(frozen=True)
class KnownRates:
    """gpus: the first whose model matches counts. shares: by "rung what", with their sources.

    network: B/s of each rank's share of its host's network, where a site states it.
    """

    gpus: tuple[KnownGpu, ...]
    shares: Mapping[str, tuple[float, str]]
    network: float | None = None

    def gpu(self, model: str) -> KnownGpu | None:
        return next((one for one in self.gpus if re.fullmatch(one.model, model)), None)


def known_rates(site: Path | None = None) -> KnownRates:
    """Read the library, and a site's file before it. Raises UserError for a wrong file."""
    known = parse_rates(DATA, json.loads(DATA.read_text()))
    if site is None:
        return known
    try:
        document = json.loads(site.read_text())
    except OSError as reason:
        raise UserError(f"cannot read the rates {site}", why=reason.strerror) from reason
    except (ValueError, RecursionError) as reason:
        raise UserError(f"the rates {site} are not JSON", why=reason) from reason
    own = parse_rates(site, document)
    return KnownRates(own.gpus + known.gpus, {**known.shares, **own.shares}, own.network)


def parse_rates(path: Path, document: Any) -> KnownRates:
    """Check a file's content. Raises UserError."""
    if not isinstance(document, dict) or (extra := document.keys() - {"about", "gpus", "shares", "network"}):
        got = (
            f"unknown: {', '.join(sorted(extra))}" if isinstance(document, dict) else type(document).__name__
        )
        raise wrong(path, got, 'an object of "gpus", "shares" and "network"')
    gpus = [parse_gpu(path, one) for one in items(path, document.get("gpus", []), list)]
    names = {f"{rung} {what}" for rung in RUNGS for what in WHAT}
    shares: dict[str, tuple[float, str]] = {}
    for name, one in items(path, document.get("shares", {}), dict).items():
        if name not in names:
            raise wrong(path, f"a share of {name!r}", 'a rung and a measurement, such as "host pairs flows"')
        share = number(path, name, one.get("share") if isinstance(one, dict) else one)
        if share > 1:
            raise wrong(path, f"a share of {share} for {name}", "at most 1")
        shares[name] = share, str(one.get("source", "")) if isinstance(one, dict) else f"in {path}"
    network = document.get("network")
    return KnownRates(tuple(gpus), shares, None if network is None else GB * number(path, "network", network))


WHAT = ("memory", "product", "tensor", "to_device", "to_host", "copies", "flows", "ring")


def parse_gpu(path: Path, one: Any) -> KnownGpu:
    if not isinstance(one, dict) or "model" not in one or one.keys() - GPU_KEYS:
        raise wrong(path, f"a GPU {one!r}", f'an object with a "model" and some of {sorted(GPU_KEYS)}')
    model = str(one["model"])
    try:
        re.compile(model)
    except re.error as reason:
        raise wrong(path, f"the model {model!r}: {reason}", "a regular expression") from reason
    rates = {name: number(path, f"{name} of {model}", one[name]) for name in one.keys() & {*SCALES}}
    found = {name: rate * SCALES[name] for name, rate in rates.items()}
    links = int(number(path, f"links of {model}", one["links"])) if "links" in one else 0
    return KnownGpu(model, str(one.get("source", f"in {path}")), **found, links=links)


SCALES = {"memory": GB, "float32": TERA, "float16": TERA, "nvlink": GB}


def items(path: Path, value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise wrong(path, f"{value!r}", "a list of GPUs, and an object of shares")
    return value


def number(path: Path, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < LARGEST:
        raise wrong(path, shortened(f"{name}: {value!r}"), f"a number above 0 and below {LARGEST:g}")
    return float(value)


def wrong(path: Path, got: str, expected: str) -> UserError:
    return UserError(f"the rates {path} are wrong", got=got, expected=expected)


def with_known(facts: RankFacts, model: str, known: KnownRates) -> RankFacts:
    """Add what is known of the rank's GPU model and of the site's network.

    Where NVML reports less NVLink than the model has, some links are down: the model's rate is expected.
    """
    if known.network is not None:
        facts = replace(facts, network=NominalRate(known.network, "stated by the site"))
    gpu = known.gpu(model)
    if gpu is None:
        return facts
    if gpu.float32 is not None:
        facts = replace(facts, product=NominalRate(gpu.float32, f"{gpu.source}: float32"))
    if gpu.float16 is not None:
        facts = replace(facts, tensor=NominalRate(gpu.float16, f"{gpu.source}: float16, tensor cores"))
    if gpu.memory is not None and facts.memory.rate is None:
        facts = replace(facts, memory=NominalRate(gpu.memory, gpu.source))
    if gpu.nvlink is not None and (facts.nvlink.rate or 0.0) < gpu.nvlink:
        up = f", {facts.nvlinks} active" if facts.nvlink.rate else ""
        words = f"{gpu.source}: {gpu.links} NVLinks{up}"
        facts = replace(facts, nvlink=NominalRate(gpu.nvlink, words), nvlinks=gpu.links)
    return facts


def simulated_facts(places: Sequence[RankPlace], known: KnownRates) -> list[RankFacts]:
    """Return the facts of a simulated fleet: its PCIe and NICs, and what is known of its GPU models.

    Ranks that name the same NIC of a host share it.
    """
    unknown = NominalRate(None, "the model has no such GPU")
    sharing = Counter((place.host, place.nic or place.rank) for place in places)
    found: list[RankFacts] = []
    known_facts: dict[tuple[str, int], RankFacts] = {}
    for place in places:
        key = place.model, sharing[place.host, place.nic or place.rank]
        if key in known_facts:
            found.append(known_facts[key])
            continue
        model = SIMULATED.get(place.model, place.model)
        generation, gigabits = SIMULATED_LINKS.get(model, (5, 400))
        pcie = NominalRate(PCIE[generation], f"PCIe generation {generation}, x16")
        ranks = key[1]
        words = f"a NIC of {gigabits} Gb/s for {counted(ranks, 'rank')}"
        network = NominalRate(gigabits / 8 * GB / ranks, words)
        facts = RankFacts(unknown, unknown, pcie, network, capability=NVLS_CAPABILITY)
        known_facts[key] = with_known(facts, model, known)
        found.append(known_facts[key])
    return found


def with_shares(limits: Sequence[HardwareLimit], known: KnownRates) -> tuple[HardwareLimit, ...]:
    """Add to each limit the least share of it that healthy machines reach, if known.

    Copies between GPUs are held to a share over NVLink only: PCIe trees differ too much.
    """
    return tuple(
        replace(one, least=known.shares[name][0])
        if one.rate and (name := f"{one.rung} {one.what}") in known.shares and on_known_path(one)
        else one
        for one in limits
    )


def on_known_path(limit: HardwareLimit) -> bool:
    """Whether each rank can reach this limit at the same time: PCIe trees share what lies above a switch."""
    return limit.rung != "pairs" or "PCIe" not in limit.assumption
