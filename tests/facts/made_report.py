"""Made reports of validations: one of each way that they end."""

from __future__ import annotations

from dataclasses import replace

from meshrun.jobs.validate.plan import RUNGS, RungName
from meshrun.jobs.validate.probe.api import LoadReadings, WrongData
from meshrun.jobs.validate.report.model import (
    Change,
    Drift,
    HardwareLimit,
    Member,
    RateCurve,
    RateMatrix,
    Report,
)
from meshrun.jobs.validate.verdict import Alarm, Evidence, Finding, RungResult, Verdict
from meshrun.runner.world.stuck.nccl_ras import NcclDiagnostics

GB = 1e9
RATES: dict[RungName, dict[str, float]] = {
    "gpu": {"memory": 4021.4 * GB, "product": 41820 * GB},
    "host": {"to_device": 55.43 * GB, "to_host": 55.12 * GB},
    "pairs": {"copies": 396.4 * GB, "flows": 389.2 * GB},
    "node": {"ring": 364.9 * GB},
    "host pairs": {"flows": 48.13 * GB},
    "rails": {"ring": 47.02 * GB},
    "all": {"ring": 361.7 * GB},
}
LIMITS = (
    HardwareLimit("gpu", "memory", 4800 * GB, "HBM3e of an NVIDIA H200"),
    HardwareLimit("host", "to_device", 63.0 * GB, "PCIe 5.0 x16, one direction"),
    HardwareLimit("host", "to_host", 63.0 * GB, "PCIe 5.0 x16, one direction"),
    HardwareLimit("pairs", "copies", 450 * GB, "18 x NVLink 4, one direction"),
    HardwareLimit("pairs", "flows", 450 * GB, "18 x NVLink 4, one direction"),
    HardwareLimit("node", "ring", 450 * GB, "a ring: each GPU's NVLink, one direction"),
    HardwareLimit("host pairs", "flows", 50 * GB, "NIC of 400 Gb/s, one for each GPU"),
    HardwareLimit("rails", "ring", None, "no rate of mlx5_7 is known"),
)
ENVIRONMENT = {
    "meshrun": "0.1.0",
    "driver": "580.95.05",
    "CUDA": "13.0",
    "NCCL": "2.28.9",
    "MPI": "Open MPI 4.1.7",
    "CuPy": "14.2.0",
    "kernel": "6.8.0-60-generic",
    "NCCL_IB_HCA": "",
}
STARTED = "2026-11-22T01:23:45Z"


def members(hosts: int, gpus: int, device: str = "NVIDIA H200", start: str = "c") -> tuple[Member, ...]:
    """Hosts c0, c1, ...; without identifiers where the device is no GPU."""
    found = []
    for rank in range(hosts * gpus):
        host, gpu = divmod(rank, gpus)
        ids = (
            ("", "") if device.startswith(("CPU", "sim")) else (f"GPU-{rank:08}", f"0000:{gpu + 16:02x}:00.0")
        )
        found.append(Member(rank, f"{start}{host}", gpu, device, *ids))
    return tuple(found)


def rung(name: RungName) -> RungResult:
    at = RUNGS.index(name) + 1
    return RungResult(name, "ok", "", 7 * at, 280 * at, RATES[name], 0.04 * at)


def unmeasured(name: RungName, why: str) -> RungResult:
    return RungResult(name, "not measured", why)


def wobble(row: int, column: int) -> float:
    """About one, the same on every run."""
    return 1 + 0.01 * ((row * 7 + column * 13) % 5 - 2)


def pairs(host: str, gpus: int = 8, bad: tuple[int, int] | None = None) -> RateMatrix:
    rows = tuple(
        tuple(
            None if a == b else 396 * GB * wobble(a, b) * (0.55 if bad and {a, b} == set(bad) else 1)
            for b in range(gpus)
        )
        for a in range(gpus)
    )
    return RateMatrix(
        "pairs", "copies", f"host {host}, GPU to GPU", tuple(f"GPU {gpu}" for gpu in range(gpus)), rows
    )


def rail(title: str, hosts: int, bad: int | None = None, start: str = "c") -> RateMatrix:
    """bad: a host whose NIC is slow. Many hosts met some of the others only."""
    rows = tuple(
        tuple(
            None
            if a == b or (hosts > 64 and (a ^ b) % 3)
            else 48.1 * GB * wobble(a, b) * (0.61 if bad in (a, b) else 1)
            for b in range(hosts)
        )
        for a in range(hosts)
    )
    return RateMatrix(
        "host pairs",
        "flows",
        f"host to host, {title}",
        tuple(f"{start}{host}" for host in range(hosts)),
        rows,
    )


def curve(title: str, rung: RungName, top: float, limit: float | None) -> RateCurve:
    sizes = [1 << power for power in range(10, 31, 2)]
    return RateCurve(rung, title, tuple((size, top * size / (size + 4e6)) for size in sizes), limit)


CURVES = (
    curve("GPU 0 to GPU 1, c0", "pairs", 396.4 * GB, 450 * GB),
    curve("all GPUs of a host, ring", "node", 364.9 * GB, 450 * GB),
    curve("c0 to c1, rail 0", "host pairs", 48.1 * GB, 50 * GB),
    curve("all ranks, ring", "all", 361.7 * GB, None),
)
NIC = Finding(
    "nic", ("c7",), (3,), 0.609, "host pairs",
    Evidence("flows", 29.31 * GB, 48.13 * GB, 240, ("c1:3", "c2:3", "c4:3", "c5:3"), 1.0),
    ranks=(59,),
)  # fmt: skip
GPU = Finding(
    "gpu", ("c2",), (5,), 0.874, "gpu",
    Evidence("memory, product", 3514.2 * GB, 4021.4 * GB, 30, (), 0.97),
    ranks=(21,),
)  # fmt: skip
PAIR = Finding(
    "pair", ("c4",), (0, 6), 0.553, "pairs",
    Evidence("copies, flows", 219.2 * GB, 396.4 * GB, 60, ("c4:0", "c4:6"), 1.0),
    instead=("host c4, GPU 6: its NVLink",),
)  # fmt: skip
FLAP = Finding(
    "flap", ("c5",), (1,), 0.702, "host pairs",
    Evidence("flows", 33.8 * GB, 48.13 * GB, 400, ("c0:1", "c3:1"), 0.31),
    ranks=(41,), time=0.3,
)  # fmt: skip
CHANGES = (
    Change("host pairs", "c7", "mlx5_3 port 1", "symbol_error", 0.0, 1841.0, "fault",
           "bits that arrived wrong on the wire: a bad cable, transceiver or port"),
    Change("gpu", "c2", "GPU 5", "throttle reasons", "none", "hardware thermal slowdown", "fault",
           "the GPU slows itself down because it is too hot"),
    Change("rails", "c0", "eth0", "tcp retransmits", 12.0, 19.0, "note",
           "segments sent twice; a shared network loses some"),
)  # fmt: skip
WRONG = (WrongData("flows", 59, 11, 256 << 20, 4096, 4, "0x3f80a1c4", "0x3f80a1c0"),)
ALARMS = (
    Alarm(
        "critical",
        "rank 59 (host c7, GPU 3): wrong data from rank 11 (host c1, GPU 3) (flows, 268,435,456 bytes): "
        "4 bytes, the first at 4,096, 0x3f80a1c4 instead of 0x3f80a1c0",
    ),
    Alarm(
        "warning",
        "host c7, mlx5_3 port 1: symbol_error 0 -> 1841 (bits that arrived wrong on the wire: "
        "a bad cable, transceiver or port)",
    ),
    Alarm(
        "warning",
        "host c2, GPU 5: throttle reasons none -> hardware thermal slowdown (the GPU slows "
        "itself down because it is too hot)",
    ),
)
DRIFTS = (
    Drift("host pairs", "flows", "host c7, GPU 3: its NIC", 29.31 * GB, 48.0 * GB, -31.2, 12),
    Drift("node", "ring", "", 364.9 * GB, 359.1 * GB, 3.4, 12),
)  # fmt: skip


def healthy() -> Report:
    """Two hosts of eight GPUs."""
    note = "two hosts: a slowdown of all their NICs (the link, or either host's network) cannot be detected"
    return Report(
        Verdict("ok", (), tuple(map(rung, RUNGS)), (note,)),
        members(2, 8),
        STARTED,
        41.2,
        "meshrun validate --budget 60s",
        ENVIRONMENT,
        limits=LIMITS,
        matrices=(pairs("c0"), pairs("c1"), *(rail(f"rail {number}", 2) for number in range(8))),
        curves=CURVES,
        nccl=NcclDiagnostics(
            (
                "GPU inventory: 8x NVIDIA H200 per node consistent across 16 ranks in comm 0x254",
                "ECC: no uncorrected volatile errors across 16 ranks in comm 0x254",
            )
        ),
    )


# Rank 26 is a GPU whose clocks are low; of rank 9, little could be read.
LOADS = (
    *(LoadReadings(rank, 689.6, 701.2, 1684.0, 1590.0, 63.0, 72.0) for rank in (0, 1)),
    LoadReadings(9, clock=1710.0, lowest_clock=1695.0),
    LoadReadings(26, 512.0, 540.3, 1211.0, 1140.0, 88.0, 95.0),
)


def critical() -> Report:
    """A NIC, a GPU, a pair and a flapping NIC of eight hosts; wrong data, counters and a baseline besides."""
    found = (GPU, PAIR, NIC, FLAP)
    bad = {one.rung for one in found}
    rungs = tuple(replace(rung(name), result="broken" if name in bad else "ok") for name in RUNGS[:5])
    why = "rung gpu is broken"
    note = "uplinks of leaf switches: no round fills all uplinks of one, so a slow one is not judged"
    rungs += (unmeasured("rails", why), unmeasured("all", why))
    verdict = Verdict("critical", found, rungs, (note,), ALARMS)
    return Report(
        verdict,
        members(8, 8),
        STARTED,
        163.7,
        "meshrun validate --keep-going --baseline fleet.json",
        ENVIRONMENT,
        limits=LIMITS,
        changes=CHANGES,
        wrong=WRONG,
        matrices=(
            *(pairs(f"c{host}", bad=(0, 6) if host == 4 else None) for host in range(8)),
            *(rail(f"rail {number}", 8, bad=7 if number == 3 else None) for number in range(8)),
        ),
        curves=CURVES,
        baseline="fleet.json",
        drifts=DRIFTS,
        changed=("driver 570.86.15 -> 580.95.05",),
        loads=LOADS,
        nccl=NcclDiagnostics(
            ("ECC: no uncorrected volatile errors across 64 ranks in comm 0x254",),
            (
                "NCCL environment: NCCL_IB_TIMEOUT=21 on rank(s) {0,...} (N=8)",
                "NCCL environment: NCCL_IB_TIMEOUT=(unset) on rank(s) {8,...} (N=56)",
            ),
        ),
    )


def warned() -> Report:
    """One GPU a little slow: its rung is not broken."""
    one = replace(GPU, factor=0.92, evidence=replace(GPU.evidence, rate=3699.7 * GB))
    return replace(healthy(), verdict=replace(healthy().verdict, status="warning", findings=(one,)))


def unknown() -> Report:
    """A rank that could not be measured with: a rate is missing."""
    rungs = [rung(name) for name in RUNGS]
    rungs[-1] = replace(rungs[-1], rates={"ring": float("nan")})
    lost = ("all: some of the measurements failed", "pairs: flows could not be measured with rank 3")
    return replace(healthy(), verdict=Verdict("unknown", (), tuple(rungs), lost))


def ended() -> Report:
    """A rank died in the third rung."""
    sentence = "rank 11 (host c1, GPU 3) was killed by signal 9 in rung pairs"
    rungs = (rung("gpu"), rung("host"), *(unmeasured(name, sentence) for name in RUNGS[2:]))
    verdict = Verdict("critical", (), rungs, (), (Alarm("critical", sentence),))
    return replace(healthy(), verdict=verdict, ended=sentence, seconds=9.8, matrices=(), curves=())


def one_rank() -> Report:
    """One GPU: there is nothing to compare it with."""
    whys = {"pairs": "no host has two GPUs", "node": "no host has two GPUs", "all": "there is one rank"}
    rungs = [rung("gpu"), rung("host")]
    rungs += [unmeasured(name, whys.get(name, "there is one host")) for name in RUNGS[2:]]
    note = "one rank: nothing to compare it with; its figures are reported, not judged"
    verdict = Verdict("ok", (), tuple(rungs), (note,))
    return replace(healthy(), verdict=verdict, members=members(1, 1), seconds=3.25, matrices=(), curves=())


def cpu() -> Report:
    """Four CPU ranks on one host, one of them with a busy neighbour."""
    low = {"memory": 11.2 * GB, "product": 63.9 * GB}
    rungs = [
        replace(rung("gpu"), result="broken", rates=low),
        unmeasured("host", "CPUs have no host-to-GPU link"),
    ]
    rungs += [unmeasured(name, "rung gpu is broken") for name in RUNGS[2:4]]
    rungs += [unmeasured(name, "there is one host") for name in RUNGS[4:6]]
    rungs += [unmeasured("all", "rung gpu is broken")]
    evidence = Evidence("memory, product", 5.38 * GB, 11.2 * GB, 30, (), 1.0)
    slow = Finding("gpu", ("laptop",), (2,), 0.48, "gpu", evidence, ranks=(2,), unit="CPU")
    verdict = Verdict(
        "critical", (slow,), tuple(rungs), ("one host: a slowdown of all its GPUs cannot be detected",)
    )
    ranks = tuple(replace(one, host="laptop", kind="cpu") for one in members(1, 4, "CPU"))
    return Report(verdict, ranks, STARTED, 6.1, "mpirun -n 4 meshrun validate", {"MPI": "MPICH 4.3.1"})


def simulated(hosts: int = 20, bad: int = 13) -> Report:
    """A rehearsal: the NIC of GPU 3 of one of many hosts."""
    spec = f"hosts={hosts},gpus=8,fault=nic:h{bad}:3:0.6"
    one = replace(NIC, hosts=(f"h{bad}",), ranks=(bad * 8 + 3,))
    one = replace(one, evidence=replace(one.evidence, partners=("h1:3", "h9:3", "h12:3", "h18:3")))
    rungs = [rung(name) for name in RUNGS]
    rungs[4] = replace(rungs[4], result="broken")
    rungs[5:] = [unmeasured(name, "rung host pairs is broken") for name in RUNGS[5:]]
    return Report(
        Verdict("critical", (one,), tuple(rungs), ()),
        members(hosts, 8, "simulated GPU", "h"),
        STARTED,
        4.4,
        f"meshrun validate --simulate {spec}",
        {"meshrun": "0.1.0"},
        simulated=spec,
        matrices=(rail("the slowest rail of each pair", hosts, bad, "h"),),
    )


def crowd(hosts: int = 4096) -> Report:
    """Every host with something slow, and every counter up: far more than anyone reads."""
    found = tuple(replace(NIC, hosts=(f"c{host}",), ranks=(host * 8 + 3,)) for host in range(hosts))
    changes = tuple(replace(CHANGES[0], host=f"c{host}") for host in range(hosts))
    report = critical()
    return replace(
        report,
        verdict=replace(
            report.verdict,
            findings=found,
            not_judged=tuple(f"note {n}" for n in range(99)),
            alarms=ALARMS * 200,
        ),
        members=members(hosts, 8),
        changes=changes,
        wrong=WRONG * 50,
        matrices=(),
    )


ALL = {made.__name__: made for made in (healthy, critical, warned, unknown, ended, one_rank, cpu, simulated)}
