"""Specification of a simulated fleet, such as `hosts=512,fault=nic:h37:3:0.6`."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from meshrun.jobs.validate.simulation.fleet_file import file_words
from meshrun.runner.errors import UserError

# kind: the numbers that identify its part. `hardware.SLOWED` lists what each kind slows down.
FORMS = {
    "gpu": ("HOST", "GPU"),  # its clocks and its memory
    "pcie": ("HOST", "GPU"),  # copies between host and GPU, and what its NIC moves
    "nvlink": ("HOST", "GPU"),  # a GPU's traffic with all others of its host
    "nvpair": ("HOST", "GPU", "GPU"),  # between two GPUs of a host
    "nic": ("HOST", "GPU"),
    "send": ("HOST", "GPU"),  # a NIC in one direction
    "receive": ("HOST", "GPU"),
    "host": ("HOST",),  # processor, memory and PCIe: its copies between host and GPU, and all its NICs
    "link": ("HOST", "HOST"),  # the path between two hosts, both directions, all rails
    "oneway": ("HOST", "HOST"),  # the path from the first host to the second, all rails
    "rail": ("GPU",),  # the leaf switches of one rail
    "leaf": ("LEAF",),  # the uplinks of one leaf switch; group of hosts x rails + rail
    "flap": ("HOST", "GPU"),  # a NIC that is slow in random episodes
    "stall": ("HOST", "GPU"),  # a NIC with single calls that take FACTOR times as long
    "all-nics": (),  # every NIC of the fleet
}
SHARES = {"flap": 0.3, "stall": 0.05}  # of the time, or of the calls, unless stated
DIGITS_MOST = 9  # of a number in a fault
LONGEST = 200  # characters of a fault


@dataclass(frozen=True)
class Fault:
    """A part at `factor` of its bandwidth or speed, for `share` of the time.

    A stall: calls that take `factor` times as long, `share` of them. where: the numbers that FORMS lists for
    this kind: ("nic", (37, 3)) is the NIC of GPU 3 of host h37.
    """

    kind: str
    where: tuple[int, ...]
    factor: float
    share: float = 1.0

    @property
    def hosts(self) -> tuple[int, ...]:
        return self._numbers("HOST")

    @property
    def gpus(self) -> tuple[int, ...]:
        return self._numbers("GPU")

    @property
    def name(self) -> str:
        """Name of the part, such as "nic h37:3"."""
        pairs = zip(FORMS[self.kind], self.where, strict=True)
        words = (f"h{number}" if role == "HOST" else str(number) for role, number in pairs)
        return f"{self.kind} {':'.join(words)}".strip()

    def __str__(self) -> str:
        """Format as `parse_fault` reads it."""
        share = f":{self.share!r}" if self.kind in SHARES else ""
        return f"{self.name.replace(' ', ':')}:{self.factor!r}{share}"

    def _numbers(self, wanted: str) -> tuple[int, ...]:
        pairs = zip(FORMS[self.kind], self.where, strict=True)
        return tuple(number for role, number in pairs if role == wanted)


def form(kind: str) -> str:
    """Return the syntax of a fault of this kind."""
    return ":".join([kind, *FORMS[kind], "FACTOR"]) + ("[:SHARE]" if kind in SHARES else "")


def parse_fault(text: str) -> Fault:
    """Parse a fault. Raises UserError for wrong syntax; FleetSpec checks that the part exists."""
    if len(text) > LONGEST:
        got = f"{len(text):,} characters"
        raise UserError(f"fault {text[:LONGEST]}... is too long", got=got, expected=f"at most {LONGEST}")
    kind, *words = text.split(":")
    if kind not in FORMS:
        near = difflib.get_close_matches(kind, FORMS, 1)
        hint = form(near[0]) if near else form("nic")
        raise UserError(f"fault {text}: unknown kind", got=repr(kind), expected=", ".join(FORMS), hint=hint)
    roles = FORMS[kind]
    optional = 1 if kind in SHARES else 0
    if not len(roles) < len(words) <= len(roles) + 1 + optional:
        raise UserError(
            f"fault {text} has the wrong number of words", got=len(words) + 1, expected=form(kind)
        )
    where = tuple(_number(text, role, word) for role, word in zip(roles, words, strict=False))
    of_factor = _times if kind == "stall" else _fraction
    factor, *share = words[len(roles) :]
    return Fault(
        kind,
        where,
        of_factor(text, factor),
        _fraction(text, share[0]) if share else SHARES.get(kind, 1.0),
    )


def _number(text: str, role: str, word: str) -> int:
    digits = word.removeprefix("h") if role == "HOST" else word
    if not digits.isdecimal() or len(digits) > DIGITS_MOST or (role == "HOST" and digits == word):
        expected = "a host's name such as h0" if role == "HOST" else "a number"
        raise UserError(f"fault {text}: no {role}", got=repr(word), expected=expected)
    return int(digits)


def _fraction(text: str, word: str) -> float:
    hint = "0.6 is 60 % of a healthy part's bandwidth or speed, or of the time"
    return _between(text, word, 0, 1, "more than 0, at most 1", hint)


def _times(text: str, word: str) -> float:
    hint = "10 is a call that takes 10 times as long"
    return _between(text, word, 1, 1e6, "more than 1, at most 1e6", hint)


def _between(text: str, word: str, above: float, most: float, expected: str, hint: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = above
    if not above < value <= most:
        raise UserError(f"fault {text}", got=repr(word), expected=expected, hint=hint)
    return value


HOSTS, GPUS = 65_536, 64  # maximum, so that a typing error does not exhaust memory


@dataclass(frozen=True)
class FleetSpec:
    """A fleet in which GPU i of each host is on rail i.

    gpus: number per host. noise: relative standard deviation of a measurement; 0 also disables all other
    randomness except flapping links. leaf: hosts whose NICs of one rail share a leaf switch.
    oversubscription: a leaf switch's bandwidth to its hosts / bandwidth of its uplinks. coupling: a rank's
    flows of a round wait for each other, as in the real probe. pxn: flows across rails leave through the NIC
    on the destination's rail. ecmp: paths over which a leaf switch hashes flows, for good; 0: adaptive.
    spread, drift: relative standard deviations between parts, and of their speed in time; None: by `noise`.
    hostnoise: of a factor that a host's measurements share. neighbours: share of the time that other users
    load each host's NICs and each leaf switch's uplinks, for seconds. nics: of each host; 0: one per GPU.
    pcie: GPUs that share a PCIe switch's link to the host. domain: hosts that share one NVLink network.
    models: of GPUs, host by host, repeated. fallback: "tcp" if the fleet's NICs are not used.
    Raises UserError if a fault names a part that the fleet does not have.
    """

    gpus: tuple[int, ...]
    faults: tuple[Fault, ...] = ()
    noise: float = 0.03
    seed: int = 0
    leaf: int = 32
    oversubscription: float = 1.0
    coupling: bool = True
    pxn: bool = False
    ecmp: int = 0
    spread: float | None = None
    drift: float | None = None
    hostnoise: float = 0.0
    neighbours: float = 0.0
    nics: int = 0
    pcie: int = 1
    nvlink: str = "switch"
    domain: int = 1
    models: tuple[str, ...] = ("H200",)
    fallback: str = "none"

    def __post_init__(self) -> None:
        for fault in self.faults:
            _check(fault, self)

    @property
    def hosts(self) -> int:
        return len(self.gpus)

    @property
    def rails(self) -> int:
        return max(self.gpus)

    @property
    def leaf_switches(self) -> int:
        """Number of leaf switches: one per rail for each group of `leaf` hosts, numbered group by group."""
        return -(-self.hosts // self.leaf) * self.rails

    def __str__(self) -> str:
        """Format as `parse_fleet` reads it."""
        even = len(set(self.gpus)) == 1
        gpus = str(self.gpus[0]) if even else "/".join(map(str, self.gpus))
        words = [f"hosts={self.hosts}", f"gpus={gpus}", f"noise={self.noise!r}", f"seed={self.seed}"]
        words += [f"leaf={self.leaf}", f"oversubscription={self.oversubscription!r}"]
        for field in fields(self)[6:]:
            value = getattr(self, field.name)
            if value != field.default:
                words.append(f"{field.name}={_written(value)}")
        return ",".join([*words, *(f"fault={fault}" for fault in self.faults)])


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return "/".join(value)
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _check(fault: Fault, spec: FleetSpec) -> None:
    for number in fault.hosts:
        if number >= spec.hosts:
            _refuse(fault, f"h{number}", f"h0 to h{spec.hosts - 1}")
    here = fault.hosts[:1]  # no host: a rail
    gpus = spec.gpus[here[0]] if here else spec.rails
    for number in fault.gpus:
        if number >= gpus:
            whose = f" on h{here[0]}" if here else ""
            _refuse(fault, f"GPU {number}", f"0 to {gpus - 1}{whose}")
    if fault.kind == "leaf" and fault.where[0] >= spec.leaf_switches:
        groups = spec.leaf_switches // spec.rails
        _refuse(
            fault,
            f"leaf {fault.where[0]}",
            f"0 to {spec.leaf_switches - 1} ({groups} groups x {spec.rails} rails)",
        )
    if fault.kind in ("link", "oneway", "nvpair") and fault.where[-1] == fault.where[-2]:
        both = "GPUs" if fault.kind == "nvpair" else "hosts"
        _refuse(fault, f"one of the {both} twice", f"two {both}")


def _refuse(fault: Fault, got: str, expected: str) -> None:
    raise UserError(f"fault {fault}: the fleet has no such part", got=got, expected=expected)


def parse_fleet(text: str) -> FleetSpec:
    """Parse KEY=VALUE,KEY=VALUE,..., or the file of that name if it ends with .json or .toml.

    Requires `hosts`, or a list in `gpus`. `fault` may be repeated.
    """
    values: dict[str, Any] = {}
    faults = []
    from_file = "=" not in text and text.endswith((".json", ".toml"))
    for word in file_words(text) if from_file else text.split(","):
        key, equals, value = (part.strip() for part in word.partition("="))
        if key not in _READERS and key != "fault":
            near = difflib.get_close_matches(key, [*_READERS, "fault"], 1)
            hint = f"{near[0]}=..." if near else "hosts=4,gpus=8,fault=nic:h3:1:0.6"
            expected = ", ".join([*_READERS, "fault"])
            raise UserError("unknown key of a simulated fleet", got=repr(word), expected=expected, hint=hint)
        if not equals or key in values:
            got = f"{key} twice" if equals else repr(word)
            raise UserError(
                "a simulated fleet is KEY=VALUE,KEY=VALUE,...", got=got, expected=f"one {key}=..."
            )
        if key == "fault":
            faults.append(parse_fault(value))
        else:
            values[key] = _READERS[key](key, value)
    gpus = _gpus(values.pop("hosts", None), values.pop("gpus", (8,)))
    for fault in faults:
        if fault.kind == "nvlink" and values.get("nvlink") == "none":
            _refuse(fault, "nvlink=none", "nvlink=switch, mesh or bridge")
    if values.get("pxn") and (nvlink := values.get("nvlink", "switch")) != "switch":
        what = "pxn=on has no effect in this simulated fleet"
        raise UserError(what, got=f"nvlink={nvlink}", expected="nvlink=switch")
    return FleetSpec(gpus, tuple(faults), **values)


def _gpus(hosts: int | None, gpus: tuple[int, ...]) -> tuple[int, ...]:
    if hosts is None and len(gpus) == 1:
        raise UserError("a simulated fleet needs its number of hosts", hint="hosts=4,gpus=8")
    if hosts is not None and len(gpus) not in (1, hosts):
        listed = "/".join(map(str, gpus))
        raise UserError(f"gpus={listed} is not one number for each host", got=len(gpus), expected=hosts)
    return gpus if hosts is None or len(gpus) == hosts else gpus * hosts


def _reader(convert: Callable[[str], Any], low: float, high: float) -> Callable[[str, str], Any]:
    def read(key: str, word: str) -> Any:
        try:
            value = convert(word)
        except ValueError:
            value = None
        if value is None or not low <= value <= high:
            kind = "a whole number" if convert is int else "a number"
            expected = f"{kind} from {low:g} to {high:g}"
            raise UserError(f"{key} of a simulated fleet", got=repr(word), expected=expected)
        return value

    return read


def _gpu_counts(key: str, word: str) -> tuple[int, ...]:
    count = _reader(int, 1, GPUS)
    return tuple(count(key, part) for part in word.split("/"))


def _choice(*words: str) -> Callable[[str, str], Any]:
    def read(key: str, word: str) -> Any:
        if word not in words:
            near = difflib.get_close_matches(word, words, 1)
            raise UserError(
                f"{key} of a simulated fleet",
                got=repr(word),
                expected=", ".join(words),
                hint=f"{key}={near[0]}" if near else None,
            )
        return word

    return read


def _switch(key: str, word: str) -> bool:
    return bool(_choice("on", "off")(key, word) == "on")


def _models(key: str, word: str) -> tuple[str, ...]:
    model = _choice(*MODELS)
    return tuple(model(key, part) for part in word.split("/"))


NVLINKS = ("switch", "mesh", "bridge", "none")
MODELS = ("H200", "H100", "A100")
_READERS: dict[str, Callable[[str, str], Any]] = {
    "hosts": _reader(int, 1, HOSTS),
    "gpus": _gpu_counts,
    "noise": _reader(float, 0, 0.5),
    "seed": _reader(int, 0, 2**63),
    "leaf": _reader(int, 1, HOSTS),
    "oversubscription": _reader(float, 1, HOSTS),
    "coupling": _switch,
    "pxn": _switch,
    "ecmp": _reader(int, 0, HOSTS),
    "spread": _reader(float, 0, 0.3),
    "drift": _reader(float, 0, 0.3),
    "hostnoise": _reader(float, 0, 0.5),
    "neighbours": _reader(float, 0, 0.9),
    "nics": _reader(int, 0, GPUS),
    "pcie": _reader(int, 1, GPUS),
    "nvlink": _choice(*NVLINKS),
    "domain": _reader(int, 1, HOSTS),
    "models": _models,
    "fallback": _choice("none", "tcp"),
}


def random_fault(rng: np.random.Generator, spec: FleetSpec) -> Fault:
    """Draw a fault that this fleet can have: its kind, then its part, then a factor of 0.5 to 0.85.

    A fleet of one host has no traffic through NICs, so it gets none of their faults.
    """
    network = ("link", "nic", "flap", "direction") if spec.hosts > 1 else ()
    kind = str(rng.choice(["gpu", "host", *network]))
    if kind == "direction":
        kind = str(rng.choice(["send", "receive"]))
    hosts = rng.choice(spec.hosts, FORMS[kind].count("HOST"), replace=False).tolist()
    gpus = [int(rng.integers(spec.gpus[hosts[0]]))] if "GPU" in FORMS[kind] else []
    return Fault(kind, (*hosts, *gpus), float(rng.uniform(0.5, 0.85)), SHARES.get(kind, 1.0))
