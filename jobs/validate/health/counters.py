"""Counters before and after a rung: what of it means something, and what it means.

A healthy machine counts too: a GPU reaches its power limit, links repeat a packet now and then, networks drop
under load. So every counter has its own idea of a change, and a weight. Thresholds for NVLink and PCIe are
those of NVIDIA DCGM's health checks (`dcgm_gpu_hardware_limits.h`).
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from jobs.validate.plan import RungName
from jobs.validate.probe import Counter
from jobs.validate.report.model import Change

Weight = Literal["fault", "note"]
Value = float | str
Part = tuple[str, str]  # host, part

MINUTE = 60.0
SLIVER = 0.01  # seconds; clocks held back for less do not show in any rate


@dataclass(frozen=True)
class Known:
    """What a counter tells.

    told: when it grows by more than `least`, a count that falls was reset; when it rises; when it falls; when
    it falls while the GPU was slowed; at any change. usual: so many in so many seconds are a note, more are a
    fault. share: the counter of the same part that it is a share of, and in words.
    """

    weight: Weight
    meaning: str
    told: Literal["grows", "rises", "falls", "falls if slowed", "changes"] = "grows"
    least: float = 0.0
    usual: tuple[float, float] | None = None
    share: tuple[str, str] | None = None


def fault(meaning: str) -> Known:
    return Known("fault", meaning)


def note(meaning: str) -> Known:
    return Known("note", meaning)


def held(weight: Weight, meaning: str) -> Known:
    return Known(weight, meaning, least=SLIVER)


def now(weight: Weight, meaning: str) -> Known:
    return Known(weight, meaning, told="rises")


GPU = {
    "PCIe replays": Known("note", "packets sent again over the GPU's PCIe link", usual=(8, MINUTE)),
    "PCIe width": Known("fault", "lanes of the GPU's PCIe link in use: it lost some", told="falls"),
    "ECC corrected": note("single-bit errors of the GPU's memory, corrected"),
    "ECC uncorrected": fault("errors of the GPU's memory that could not be corrected: data was lost"),
    "retired pages, corrected": note("memory pages no longer used because of repeated single-bit errors"),
    "retired pages, uncorrected": fault("memory pages no longer used because of uncorrected errors"),
    "retired pages, pending": now("fault", "memory pages wait to be retired: reset the GPU"),
    "remapped rows, corrected": note("memory rows replaced by spare ones because of corrected errors"),
    "remapped rows, uncorrected": fault("memory rows replaced by spare ones because of uncorrected errors"),
    "remapped rows, pending": now("fault", "memory rows wait to be replaced: reset the GPU"),
    "remapped rows, failure": now("fault", "a memory row could not be replaced: the GPU has to be exchanged"),
    "recovery action": now("fault", "the driver asks for a reset of the GPU or a reboot (nvidia-smi -q)"),
    "slowed by heat": held("fault", "seconds that the GPU held back its clocks because it was too hot"),
    "slowed by heat, driver": held("fault", "seconds that the driver held back the clocks of a hot GPU"),
    "slowed by heat, hardware": held("fault", "seconds at half the clocks or less: the GPU was too hot"),
    "slowed by power brake": held("fault", "seconds at half the clocks or less: the host's power ran short"),
    "slowed by power cap": held("note", "seconds that the clocks were held back to keep the power limit"),
    "slowed by sync boost": held("note", "seconds that the clocks were those of the slowest of its group"),
    "slowed by board limit": held("note", "seconds that the clocks were held back to keep the board's limit"),
    "slowed now by heat, driver": now("fault", "the driver holds back the clocks of a hot GPU"),
    "slowed now by heat, hardware": now("fault", "half the clocks or less: the GPU is too hot"),
    "slowed now by power brake": now("fault", "half the clocks or less: the host's power runs short"),
    "slowed now by power cap": now("note", "the clocks are held back to keep the power limit"),
    "slowed now by sync boost": now("note", "the clocks are those of the slowest of its group"),
    "SM clock": Known("note", "MHz; see what slowed the GPU", told="falls if slowed"),
    "memory clock": Known("note", "MHz; see what slowed the GPU", told="falls if slowed"),
}
NVLINK = {
    "replays": fault("packets sent again over this NVLink"),
    "recoveries": fault("this NVLink was retrained after errors"),
    "CRC flit errors": Known(
        "note", "damaged flits that this NVLink received and got again", usual=(100, 1.0)
    ),
    "CRC data errors": Known(
        "note", "damaged data that this NVLink received and got again", usual=(100, 1.0)
    ),
    # They count with those: on healthy H200s, 0 to 5 of each on most links while a rung is measured.
    "ECC data errors": Known(
        "note", "errors in data that this NVLink received, and mended or got again", usual=(100, 1.0)
    ),
    "symbol errors": fault("errors of this NVLink that error correction could not mend"),
    "effective errors": note("errors of this NVLink that were left to its retransmission"),
    "link recoveries": fault("this NVLink was retrained after errors"),
    "link recoveries failed": fault("this NVLink could not be retrained after errors"),
    "receive errors": fault("packets with errors that this NVLink received"),
    "receive errors, remote": note("packets that the other end marked as damaged"),
    "malformed packets": fault("packets with errors that this NVLink received"),
    "buffer overruns": fault("packets that this NVLink had no room for"),
    "local link integrity errors": fault("errors of this NVLink's own end beyond its limit"),
    "transmit discards": note("packets that this NVLink gave up to send"),
}
RDMA = {
    "state": Known("fault", "the link went down or came back", told="changes"),
    "physical state": Known("fault", "the link was lost or trained again", told="changes"),
    "rate": Known("fault", "the link trained to another rate", told="changes"),
    "symbol_error": fault("damaged symbols on the wire: cable, transceiver or port"),
    "link_error_recovery": fault("the link recovered from errors: cable, transceiver or port"),
    "link_downed": fault("the link went down"),
    "port_rcv_errors": fault("damaged packets received: cable, transceiver, or the port at the other end"),
    "port_rcv_remote_physical_errors": note(
        "packets marked as damaged by a switch: the fault is farther away"
    ),
    "port_rcv_constraint_errors": note("packets of another partition received"),
    "port_xmit_constraint_errors": note("packets not sent because of partitions"),
    "port_xmit_discards": note("packets given up because the port was down or congested"),
    "local_link_integrity_errors": fault("errors of the port's own end beyond their limit"),
    "excessive_buffer_overrun_errors": fault("buffer overruns: flow control of the link failed"),
    "VL15_dropped": note("management packets dropped for want of room"),
    "out_of_sequence": note("packets received out of sequence: some were lost, or took another way"),
    "packet_seq_err": note("answers that ask for lost packets: the network dropped some"),
    "implied_nak_seq_err": note("answers that came for later packets: the network dropped some"),
    "local_ack_timeout_err": note(
        "sends without an answer in time: the network dropped it, or the peer is slow"
    ),
    "rnr_nak_retry_err": note("the receiver was not ready"),
    "out_of_buffer": note("packets dropped because the program had no buffer ready"),
    "rx_icrc_encapsulated": fault("RoCE packets whose checksum is wrong: data was damaged on the way"),
    "roce_adp_retrans": note("RoCE retransmissions: the network dropped packets"),
    "roce_slow_restart": note("RoCE sends slowed after a pause"),
    "np_cnp_sent": note("congestion told to senders: the network is congested"),
    "np_ecn_marked_roce_packets": note("packets marked by congested switches"),
    "rp_cnp_handled": note("sends slowed because of congestion"),
    "rx_drops": note("packets dropped by the adapter"),
    "retrans_pkts": note("packets sent again: the network dropped some"),
    "retrans_timeout_events": note("sends without an answer in time"),
}
ETHERNET = {
    "carrier_changes": fault("the link went down or came back"),
    "rx_crc_errors": fault("damaged frames received: cable, transceiver or port"),
    "rx_errors": note("frames that could not be received"),
    "tx_errors": note("frames that could not be sent"),
    "rx_dropped": note("frames dropped by the host on receipt"),
    "tx_dropped": note("frames dropped by the host before sending"),
}
OF_SENT = ("OutSegs", "of the segments sent")
TCP = {
    "RetransSegs": Known(
        "note", "segments sent again: the network, often shared, dropped some", share=OF_SENT
    ),
    "TCPLostRetransmit": note("segments lost once more when they were sent again"),
    "TCPTimeouts": note("sends without an answer in time"),
    "InErrs": note("damaged segments received"),
}
PROCESSORS = {
    "stolen": Known(
        "note",
        "seconds that the hypervisor gave processors with work to others",
        least=1.0,
        share=("seconds", "of all processors' time"),
    ),
}
KNOWN: dict[str, Known] = GPU | NVLINK | RDMA | ETHERNET | TCP | PROCESSORS


def changes(
    rung: RungName, before: Mapping[Counter, Value], after: Mapping[Counter, Value]
) -> tuple[Change, ...]:
    """What of the counters around a rung means something: parts that are gone, then in the order of `before`.

    A part that lost most of its counters is told as gone, and nothing else of it.
    """
    lost, slowed = gone(before, after), held_back(before, after)
    found = [
        Change(rung, *part, "counters", "read", "gone", "fault", "it no longer answers")
        for part in lost
        if not any(_inside(part, other) for other in lost)
    ]
    for key, old in before.items():
        new, known = after.get(key), KNOWN.get(key[2])
        if new is None or known is None or key[:2] in lost:
            continue
        elapsed = _grown(before, after, (key[0], "clock", "seconds"))
        if weight := weigh(known, old, new, elapsed, key[:2] in slowed):
            meaning = _meaning(known, key, before, after)
            found.append(Change(rung, *key, old, new, weight, meaning))
    return tuple(together(found))


def together(found: Sequence[Change]) -> Iterator[Change]:
    """Notes of several NVLinks of one GPU as one, with the sums of what they counted; faults alone."""
    groups: dict[tuple[str, ...], list[Change]] = {}
    for number, one in enumerate(found):
        gpu, is_link, _ = one.part.partition(", NVLink ")
        alike = is_link and one.weight == "note" and not isinstance(one.before, str)
        key = (one.host, gpu, one.counter) if alike else (str(number),)
        groups.setdefault(key, []).append(one)
    for first, *more in groups.values():
        if not more:
            yield first
            continue
        before, after = (sum(getattr(one, when) for one in (first, *more)) for when in ("before", "after"))
        part = f"{first.part.partition(', ')[0]}, {len(more) + 1} NVLinks"
        yield Change(first.rung, first.host, part, first.counter, before, after, "note", first.meaning)


def weigh(known: Known, old: Value, new: Value, elapsed: float, slowed: bool) -> Weight | None:
    """What it means that a value became another; None where it means nothing.

    elapsed: seconds between the two. slowed: the GPU's clocks were held back meanwhile.
    """
    if known.told == "changes":
        return known.weight if new != old else None
    if isinstance(old, str) or isinstance(new, str):
        return None
    grown = new - old
    match known.told:
        case "falls" | "falls if slowed":
            return known.weight if grown < 0 and (slowed or known.told == "falls") else None
        case "rises":
            return known.weight if grown > 0 else None
        case _:
            if grown < 0:
                return "note"
            return _beyond(known, grown, elapsed) if grown > known.least else None


def _beyond(known: Known, grown: float, elapsed: float) -> Weight:
    """A note becomes a fault where it is more than usual; a short time counts as the whole one."""
    if known.usual is None:
        return known.weight
    count, seconds = known.usual
    return "fault" if grown > count * max(1.0, elapsed / seconds) else known.weight


def gone(before: Mapping[Counter, Value], after: Mapping[Counter, Value]) -> list[Part]:
    """Hardware that lost most of its counters: a GPU off its bus keeps what the driver remembers."""
    # Only hardware has one of these; other interfaces come and go.
    hardware = dict.fromkeys(key[:2] for key in before if key[2] in ("state", "SM clock"))
    had = Counts(key[:2] for key in before)
    has = Counts(key[:2] for key in before if key in after)
    return [part for part in hardware if 2 * has[part] < had[part]]


def held_back(before: Mapping[Counter, Value], after: Mapping[Counter, Value]) -> set[Part]:
    """GPUs whose clocks were held back."""
    held = [key for key in before if key[2].startswith("slowed ") and key[2] in KNOWN]
    return {key[:2] for key in held if _grown(before, after, key) > KNOWN[key[2]].least}


def _inside(part: Part, other: Part) -> bool:
    """An NVLink is inside its GPU."""
    return part[0] == other[0] and part[1].startswith(f"{other[1]},")


def _meaning(
    known: Known, key: Counter, before: Mapping[Counter, Value], after: Mapping[Counter, Value]
) -> str:
    some = _grown(before, after, key)
    if known.told == "grows" and some < 0:
        return f"{known.meaning}; was reset meanwhile, so what it counted is not known"
    if known.share is None:
        return known.meaning
    whole, words = known.share
    total = _grown(before, after, (*key[:2], whole))
    return f"{known.meaning} ({100 * some / total:.2g} % {words})" if total > 0 else known.meaning


def _grown(before: Mapping[Counter, Value], after: Mapping[Counter, Value], key: Counter) -> float:
    """By how much a counter grew; 0.0 where it was not read both times."""
    old, new = before.get(key), after.get(key)
    return new - old if isinstance(old, float | int) and isinstance(new, float | int) else 0.0
