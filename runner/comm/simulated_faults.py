"""What can be wrong with a part of a simulated fleet, and how it is written: `nic:h37:3:0.6`."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from runner.errors import UserError

# kind: which part, by these numbers. `runner.comm.simulated_parts.slowed` says what each of them slows down.
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
    "rail": ("GPU",),  # the leaf switches of one rail
    "leaf": ("LEAF",),  # the uplinks of one leaf switch; group of hosts x rails + rail
    "flap": ("HOST", "GPU"),  # a NIC that is slow in random episodes
}
FLAP_SHARE = 0.3


@dataclass(frozen=True)
class Fault:
    """A part at `factor` of its bandwidth or speed, for `share` of the time.

    where: the numbers that FORMS names for this kind, so ("nic", (37, 3)) is the NIC of GPU 3 of host h37.
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
        """Of the part, such as "nic h37:3"."""
        pairs = zip(FORMS[self.kind], self.where, strict=True)
        words = (f"h{number}" if role == "HOST" else str(number) for role, number in pairs)
        return f"{self.kind} {':'.join(words)}"

    def __str__(self) -> str:
        """As `parse_fault` reads it."""
        share = f":{self.share!r}" if self.kind == "flap" else ""
        return f"{self.name.replace(' ', ':')}:{self.factor!r}{share}"

    def _numbers(self, wanted: str) -> tuple[int, ...]:
        pairs = zip(FORMS[self.kind], self.where, strict=True)
        return tuple(number for role, number in pairs if role == wanted)


def form(kind: str) -> str:
    """How a fault of this kind is written."""
    return ":".join([kind, *FORMS[kind], "FACTOR"]) + ("[:SHARE]" if kind == "flap" else "")


def parse_fault(text: str) -> Fault:
    """Raises UserError where `text` has no FORM; whether a fleet has such a part is for FleetSpec to say."""
    kind, *words = text.split(":")
    if kind not in FORMS:
        near = difflib.get_close_matches(kind, FORMS, 1)
        hint = form(near[0]) if near else form("nic")
        raise UserError(f"fault {text}: unknown kind", got=repr(kind), expected=", ".join(FORMS), hint=hint)
    roles = FORMS[kind]
    optional = 1 if kind == "flap" else 0
    if not len(roles) < len(words) <= len(roles) + 1 + optional:
        raise UserError(
            f"fault {text} has the wrong number of words", got=len(words) + 1, expected=form(kind)
        )
    where = tuple(_number(text, role, word) for role, word in zip(roles, words, strict=False))
    factor, *share = [_fraction(text, word) for word in words[len(roles) :]]
    return Fault(kind, where, factor, share[0] if share else FLAP_SHARE if kind == "flap" else 1.0)


def _number(text: str, role: str, word: str) -> int:
    digits = word.removeprefix("h") if role == "HOST" else word
    if not digits.isdecimal() or (role == "HOST" and digits == word):
        expected = "a host's name such as h0" if role == "HOST" else "a number"
        raise UserError(f"fault {text}: no {role}", got=repr(word), expected=expected)
    return int(digits)


def _fraction(text: str, word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        hint = "0.6 is 60 % of a healthy part's bandwidth or speed, or of the time"
        raise UserError(f"fault {text}", got=repr(word), expected="more than 0, at most 1", hint=hint)
    return value
