"""What NCCL's log says about its choices, in the lines of its versions."""

from __future__ import annotations

import pytest

from meshrun.runner.comm.collectives.api import NcclChoice
from meshrun.runner.comm.nccl_log import choices

PREFIX = "node7:4242:4250 [3] NCCL INFO "


@pytest.mark.parametrize(
    ("line", "choice"),
    [
        (
            "AllReduce: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}",
            NcclChoice("Ring", "LL", 2),
        ),
        (
            "AllReduce: 8589934592 Bytes -> Algo NVLS_TREE proto SIMPLE channel{Lo..Hi}={0..23}",
            NcclChoice("NVLSTree", "Simple", 24),
        ),
        (
            "Broadcast: 64 Bytes -> Algo COLLNET_DIRECT proto LL128 channel{Lo..Hi}={4..4}",
            NcclChoice("CollNetDirect", "LL128", 1),
        ),
        # 2.23, and 2.21: numbers, and no channels
        ("AllGather: 64 Bytes -> Algo 6 proto 2 time 12.120000", NcclChoice("PAT", "Simple", None)),
        ("64 Bytes -> Algo 0 proto 1 time 12.120000", NcclChoice("Tree", "LL128", None)),
        # Names that this version of the parser does not know are passed on
        (
            "AllReduce: 64 Bytes -> Algo STAR proto LL256 channel{Lo..Hi}={0..0}",
            NcclChoice("STAR", "LL256", 1),
        ),
        ("AllReduce: 64 Bytes -> Algo 9 proto 7 time 1.0", NcclChoice("9", "7", None)),
        (
            "AllReduce [Symmetric]: 4096 Bytes -> Kernel AllReduce_RSxLDMC_AGxSTMC nchannels 16 nthreads 512 "
            "nWorks 1",
            NcclChoice("Symmetric", "RSxLDMC_AGxSTMC", 16),
        ),
        (
            "AllGather [Copy Engine]: 4096 Bytes -> cudaMemcpyBatchAsync",
            NcclChoice("CopyEngine", "cudaMemcpyBatchAsync", None),
        ),
    ],
)
def test_each_form_of_line(line: str, choice: NcclChoice) -> None:
    assert choices(PREFIX + line + "\n") == [choice]


def test_other_lines_are_skipped_and_the_order_is_kept() -> None:
    """The table of latencies that a communicator logs when it opens, and a user's own subsystems."""
    log = [
        "  Algorithm   |                             Tree                  |",
        "    AllReduce |     4.4/   8.0 |     7.7/   0.0 |",
        "AllReduce: 8 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}",
        "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
        "AllReduce: 16 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}",
    ]
    assert [one.algorithm for one in choices("\n".join(PREFIX + line for line in log))] == ["Tree", "Ring"]
