"""Counters read before and after a rung: which changes matter, and what they mean.

Counters of a healthy machine increase too: a GPU reaches its power limit, a link sometimes repeats a packet,
a network drops packets under load. So each counter has a rule that decides which changes are reported, and a
weight. Thresholds for NVLink and PCIe are those of NVIDIA DCGM's health checks
(`dcgm_gpu_hardware_limits.h`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from meshrun.jobs.validate.plan import RungName
from meshrun.jobs.validate.probe.api import CounterKey
from meshrun.jobs.validate.report.model import Change

Weight = Literal["fault", "note"]
Value = float | str
Values = Mapping[CounterKey, Value]
Part = tuple[str, str]  # host, part

MINUTE = 60.0
NEGLIGIBLE = 0.01  # seconds of throttling that do not affect any rate


@dataclass(frozen=True)
class CounterRule:
    """Which changes of a counter are reported, and what they mean.

    reported: "grows": a count that grows by more than `least` (if it falls, it was reset); other values: a
    state that rises, falls, falls while the GPU was throttled, or changes. usual: (count, seconds), growth up
    to which is a note and above which is a fault. share: the counter of the same part that this one is a
    share of, and the phrase for it.
    """

    weight: Weight
    meaning: str
    reported: Literal["grows", "rises", "falls", "falls if throttled", "changes"] = "grows"
    least: float = 0.0
    usual: tuple[float, float] | None = None
    share: tuple[str, str] | None = None


def fault(meaning: str) -> CounterRule:
    return CounterRule("fault", meaning)


def note(meaning: str) -> CounterRule:
    return CounterRule("note", meaning)


def throttle(weight: Weight, meaning: str) -> CounterRule:
    return CounterRule(weight, meaning, least=NEGLIGIBLE)


def state(weight: Weight, meaning: str) -> CounterRule:
    return CounterRule(weight, meaning, reported="rises")


GPU = {
    "PCIe replays": CounterRule("note", "packets repeated on the GPU's PCIe link", usual=(8, MINUTE)),
    "PCIe width": CounterRule("fault", "lanes of the GPU's PCIe link in use: it lost some", reported="falls"),
    "ECC corrected": note("single-bit errors of the GPU's memory, corrected"),
    "ECC uncorrected": fault("uncorrectable errors of the GPU's memory: data was lost"),
    "retired pages, corrected": note("memory pages no longer used because of repeated single-bit errors"),
    "retired pages, uncorrected": fault("memory pages no longer used because of uncorrected errors"),
    "retired pages, pending": state("fault", "memory pages are waiting to be retired: reset the GPU"),
    "remapped rows, corrected": note("memory rows remapped to spare ones because of corrected errors"),
    "remapped rows, uncorrected": fault("memory rows remapped to spare ones because of uncorrected errors"),
    "remapped rows, pending": state("fault", "memory rows are waiting to be remapped: reset the GPU"),
    "remapped rows, failure": state("fault", "a memory row could not be remapped: replace the GPU"),
    "recovery action": state("fault", "the driver asks for a reset of the GPU or a reboot (nvidia-smi -q)"),
    "Xid errors": CounterRule(
        "fault",
        "errors of the GPU that the driver reports, by their numbers in NVIDIA's Xid catalog; "
        "the usual cause of 13, 31, 43 and 45 is a program",
        reported="changes",
    ),
    "slowed by heat": throttle(
        "fault", "seconds during which the GPU reduced its clocks because it was too hot"
    ),
    "slowed by heat, driver": throttle(
        "fault", "seconds during which the driver reduced the clocks of a hot GPU"
    ),
    "slowed by heat, hardware": throttle("fault", "seconds at half the clocks or less: the GPU was too hot"),
    "slowed by power brake": throttle(
        "fault", "seconds at half the clocks or less: the host's power supply fell short"
    ),
    "slowed by power cap": throttle(
        "note", "seconds during which the clocks were reduced to stay within the power limit"
    ),
    "slowed by sync boost": throttle(
        "note", "seconds during which the clocks were those of the slowest GPU of its group"
    ),
    "slowed by board limit": throttle(
        "note", "seconds during which the clocks were reduced to stay within the board's limit"
    ),
    "slowed now by heat, driver": state("fault", "the driver reduces the clocks of a hot GPU"),
    "slowed now by heat, hardware": state("fault", "half the clocks or less: the GPU is too hot"),
    "slowed now by power brake": state(
        "fault", "half the clocks or less: the host's power supply falls short"
    ),
    "slowed now by power cap": state("note", "the clocks are reduced to stay within the power limit"),
    "slowed now by sync boost": state("note", "the clocks are those of the slowest GPU of its group"),
    "SM clock": CounterRule("note", "MHz; see what slowed the GPU", reported="falls if throttled"),
    "memory clock": CounterRule("note", "MHz; see what slowed the GPU", reported="falls if throttled"),
}
NVLINK = {
    "replays": fault("packets repeated on this NVLink"),
    "recoveries": fault("this NVLink was retrained after errors"),
    "CRC flit errors": CounterRule(
        "note", "corrupt flits received on this NVLink, and repeated", usual=(100, 1.0)
    ),
    "CRC data errors": CounterRule(
        "note", "corrupt data received on this NVLink, and repeated", usual=(100, 1.0)
    ),
    # These increase together with the two above: by 0 to 5 on most links of healthy H200s during a rung.
    "ECC data errors": CounterRule(
        "note", "errors in data received on this NVLink, corrected or repeated", usual=(100, 1.0)
    ),
    "symbol errors": fault("errors of this NVLink that error correction could not repair"),
    "effective errors": note("errors of this NVLink that were left to retransmission"),
    "link recoveries": fault("this NVLink was retrained after errors"),
    "link recoveries failed": fault("this NVLink could not be retrained after errors"),
    "receive errors": fault("corrupt packets received on this NVLink"),
    "receive errors, remote": note("packets that the other end marked as corrupt"),
    "malformed packets": fault("corrupt packets received on this NVLink"),
    "buffer overruns": fault("packets for which this NVLink had no buffer"),
    "local link integrity errors": fault("errors of this NVLink's own end beyond its limit"),
    "transmit discards": note("packets that this NVLink discarded instead of sending"),
}
RDMA = {
    "state": CounterRule("fault", "the link went down or came back", reported="changes"),
    "physical state": CounterRule("fault", "the link was lost or trained again", reported="changes"),
    "rate": CounterRule("fault", "the link trained to another rate", reported="changes"),
    "symbol_error": fault("corrupt symbols on the wire: cable, transceiver or port"),
    "link_error_recovery": fault("the link recovered from errors: cable, transceiver or port"),
    "link_downed": fault("the link went down"),
    "port_rcv_errors": fault("corrupt packets received: cable, transceiver, or the port at the other end"),
    "port_rcv_remote_physical_errors": note(
        "packets marked as corrupt by a switch: the fault is farther away"
    ),
    "port_rcv_constraint_errors": note("packets of another partition received"),
    "port_xmit_constraint_errors": note("packets not sent because of partitions"),
    "port_xmit_discards": note("packets discarded because the port was down or congested"),
    "local_link_integrity_errors": fault("errors of the port's own end beyond their limit"),
    "excessive_buffer_overrun_errors": fault("buffer overruns: flow control of the link failed"),
    "VL15_dropped": note("management packets dropped for lack of buffers"),
    "out_of_sequence": note("packets received out of sequence: some were lost, or took another path"),
    "packet_seq_err": note("requests to repeat lost packets: the network dropped some"),
    "implied_nak_seq_err": note("acknowledgements of later packets: the network dropped some"),
    "local_ack_timeout_err": note(
        "acknowledgement timeouts: the network dropped packets, or the peer is slow"
    ),
    "rnr_nak_retry_err": note("the receiver was not ready"),
    "out_of_buffer": note("packets dropped because the program had no buffer ready"),
    "rx_icrc_encapsulated": fault("RoCE packets with a wrong checksum: data was corrupted on the way"),
    "roce_adp_retrans": note("RoCE retransmissions: the network dropped packets"),
    "roce_slow_restart": note("RoCE sends slowed down after a pause"),
    "np_cnp_sent": note("congestion notifications sent: the network is congested"),
    "np_ecn_marked_roce_packets": note("packets marked by congested switches"),
    "rp_cnp_handled": note("sends slowed down because of congestion"),
    "rx_drops": note("packets dropped by the adapter"),
    "retrans_pkts": note("packets retransmitted: the network dropped some"),
    "retrans_timeout_events": note("acknowledgement timeouts"),
}
ETHERNET = {
    "carrier_changes": fault("the link went down or came back"),
    "rx_crc_errors": fault("corrupt frames received: cable, transceiver or port"),
    "rx_errors": note("frames that could not be received"),
    "tx_errors": note("frames that could not be sent"),
    "rx_dropped": note("frames dropped by the host on receipt"),
    "tx_dropped": note("frames dropped by the host before sending"),
}
OF_SENT = ("OutSegs", "of the segments sent")
TCP = {
    "RetransSegs": CounterRule(
        "note", "segments retransmitted: the network, often shared, dropped some", share=OF_SENT
    ),
    "TCPLostRetransmit": note("retransmitted segments that were lost, too"),
    "TCPTimeouts": note("acknowledgement timeouts"),
    "InErrs": note("corrupt segments received"),
}
PROCESSORS = {
    "stolen": CounterRule(
        "note",
        "seconds of processors with work that the hypervisor gave to others",
        least=1.0,
        share=("seconds", "of all processors' time"),
    ),
}
NVSWITCH = {
    "SXid errors": fault("errors of an NVSwitch or of a link to it: dmesg | grep SXid, and NVIDIA's catalog"),
}
KNOWN: dict[str, CounterRule] = NVSWITCH | GPU | NVLINK | RDMA | ETHERNET | TCP | PROCESSORS


def changes(rung: RungName, before: Values, after: Values) -> tuple[Change, ...]:
    """Return the changes that matter: lost parts first, then the others in the order of `before`.

    A part that lost most of its counters is only reported as lost.
    """
    lost, throttled = lost_parts(before, after), throttled_gpus(before, after)
    found = [
        Change(rung, *part, "counters", "read", "gone", "fault", "it no longer answers")
        for part in lost
        if not any(is_inside(part, other) for other in lost)
    ]
    for key, old in before.items():
        new, known = after.get(key), KNOWN.get(key[2])
        if new is None or known is None or key[:2] in lost:
            continue
        elapsed = growth(before, after, (key[0], "clock", "seconds"))
        if weight := weigh(known, old, new, elapsed, key[:2] in throttled):
            found.append(Change(rung, *key, old, new, weight, meaning(known, key, before, after)))
    return tuple(merge_nvlinks(found))


def merge_nvlinks(found: Sequence[Change]) -> Iterator[Change]:
    """Merge notes of several NVLinks of a GPU into one with the sum of the counts; faults stay separate."""
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


def weigh(known: CounterRule, old: Value, new: Value, elapsed: float, throttled: bool) -> Weight | None:
    """Return the weight of a change from `old` to `new`, or None if it is not reported.

    elapsed: seconds between the two. throttled: whether the GPU's clocks were reduced in between.
    """
    if known.reported == "changes":
        return known.weight if new != old else None
    if isinstance(old, str) or isinstance(new, str):
        return None
    grown = new - old
    match known.reported:
        case "falls" | "falls if throttled":
            return known.weight if grown < 0 and (throttled or known.reported == "falls") else None
        case "rises":
            return known.weight if grown > 0 else None
        case _ if grown < 0:
            return "note"
        case _ if grown <= known.least:
            return None
        case _:
            count, seconds = known.usual or (math.inf, 1.0)
            # A shorter time counts as the whole period.
            return "fault" if grown > count * max(1.0, elapsed / seconds) else known.weight


def lost_parts(before: Values, after: Values) -> list[Part]:
    """Return the hardware that lost most of its counters; the driver keeps a few of a GPU off the bus."""
    # Only hardware has one of these; other interfaces may come and go.
    hardware = dict.fromkeys(key[:2] for key in before if key[2] in ("state", "SM clock"))
    had = Counter(key[:2] for key in before)
    has = Counter(key[:2] for key in before if key in after)
    return [part for part in hardware if 2 * has[part] < had[part]]


def throttled_gpus(before: Values, after: Values) -> set[Part]:
    """Return the GPUs whose clocks were reduced."""
    reasons = [key for key in before if key[2].startswith("slowed ") and key[2] in KNOWN]
    return {key[:2] for key in reasons if growth(before, after, key) > KNOWN[key[2]].least}


def is_inside(part: Part, other: Part) -> bool:
    """Return whether `part` belongs to `other`, as an NVLink belongs to its GPU."""
    return part[0] == other[0] and part[1].startswith(f"{other[1]},")


def meaning(known: CounterRule, key: CounterKey, before: Values, after: Values) -> str:
    grown = growth(before, after, key)
    if known.reported == "grows" and grown < 0:
        return f"{known.meaning}; was reset meanwhile, so the increase is unknown"
    if known.share is None:
        return known.meaning
    whole, words = known.share
    total = growth(before, after, (*key[:2], whole))
    return f"{known.meaning} ({100 * grown / total:.2g} % {words})" if total > 0 else known.meaning


def growth(before: Values, after: Values, key: CounterKey) -> float:
    """Return by how much a counter grew; 0.0 if it was not read both times."""
    old, new = before.get(key), after.get(key)
    return new - old if isinstance(old, float | int) and isinstance(new, float | int) else 0.0
