"""Traffic matrices, read as nccl-tests does (src/alltoallv.cu), with error messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshrun.jobs.bench.collectives.config import BenchOptions, SweepSettings
from meshrun.jobs.bench.collectives.session import traffic_of
from meshrun.jobs.bench.collectives.specs import Traffic, expert_shares, read_matrix
from meshrun.runner.errors import UserError


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    """The example in nccl-tests' comment."""
    path = tmp_path / "matrix.txt"
    path.write_text("100  200  150\n50   100  75\n\n300  150  200\n")
    return path


def test_cells_are_rounded_down_to_16_bytes(matrix: Path) -> None:
    assert read_matrix(matrix, 1.0, 3) == ((96, 192, 144), (48, 96, 64), (288, 144, 192))


@pytest.mark.parametrize(
    ("scale", "first_row"),
    [(0.0, (0, 0, 0)), (0.5, (48, 96, 64)), (2.0, (192, 400, 288)), (1024.0, (102400, 204800, 153600))],
)
def test_cells_are_scaled_before_they_are_rounded(
    matrix: Path, scale: float, first_row: tuple[int, ...]
) -> None:
    assert read_matrix(matrix, scale, 3)[0] == first_row


@pytest.mark.parametrize(
    ("text", "report"),
    [
        ("1 2\n3 4\n", "got 2 x 2"),
        ("1 2 3\n4 5 6\n7 8\n", "got 3 x 2 or 3"),
        ("1 2 3\n4 5 6\n", "got 2 x 3"),
        ("", "got 0 x 0"),
        ("1 2 3\n4 five 6\n7 8 9\n", "five"),
        ("1 2 3\n4 -5 6\n7 8 9\n", "not a number of bytes"),
        ("1 2 3\n4 nan 6\n7 8 9\n", "not a number of bytes"),
        ("1 2 3\n4 inf 6\n7 8 9\n", "not a number of bytes"),
    ],
)
@pytest.mark.parametrize("scale", [1.0, 0.0])
def test_what_does_not_fit_is_refused(tmp_path: Path, text: str, report: str, scale: float) -> None:
    path = tmp_path / "matrix.txt"
    path.write_text(text)
    with pytest.raises(UserError, match=r"the traffic matrix .*matrix\.txt") as refused:
        read_matrix(path, scale, 3)
    assert report in str(refused.value)


def test_no_cell_holds_more_than_an_address_reaches(tmp_path: Path) -> None:
    path = tmp_path / "matrix.txt"
    path.write_text(f"{2**61}\n")
    assert read_matrix(path, 2.0, 1) == ((2**62,),)
    with pytest.raises(UserError, match="not a number of bytes"):
        read_matrix(path, 2.1, 1)


def test_a_matrix_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_matrix(tmp_path / "none", 1.0, 2)


def options(matrix: Path, size: int, last: int | None = None, **others: float) -> BenchOptions:
    settings = SweepSettings(minbytes=size, maxbytes=last or size)
    return BenchOptions(("alltoallv",), settings, matrix=matrix, **others)


def traffic(matrix: Path, size: int, ranks: int = 3, last: int | None = None, **others: float) -> Traffic:
    wanted = options(matrix, size, last, **others)
    return traffic_of(wanted, ranks, "alltoallv", wanted.settings)


def test_a_matrix_needs_the_busiest_ranks_bytes_and_no_sweep(matrix: Path) -> None:
    # Rank 2 sends 288 + 144 + 192 = 624 bytes; nobody receives more than 432.
    assert traffic(matrix, 624).matrix == ((96, 192, 144), (48, 96, 64), (288, 144, 192))
    with pytest.raises(UserError, match="at least the busiest rank's 624 bytes"):
        traffic(matrix, 623)
    with pytest.raises(UserError, match="-b and -e equal"):
        traffic(matrix, 624, last=1248)
    # Two ranks use a part of it: rank 0 sends 96 + 192.
    with pytest.raises(UserError, match="at least the busiest rank's 288 bytes"):
        traffic(matrix, 287, ranks=2)
    assert traffic(matrix, 624, matrix_scale=-1.0).matrix == ((0, 0, 0),) * 3


def test_a_matrix_is_of_alltoallv_alone(matrix: Path) -> None:
    wanted = options(matrix, 8)
    assert traffic_of(wanted, 3, "alltoall", wanted.settings) == Traffic(1.0)


@pytest.mark.parametrize(("given", "taken"), [(-1.0, 0.0), (0.25, 0.25), (7.0, 1.0)])
def test_the_spread_is_between_0_and_1(given: float, taken: float) -> None:
    wanted = BenchOptions(("alltoallv",), SweepSettings(), spread=given)
    assert traffic_of(wanted, 3, "alltoallv", wanted.settings) == Traffic(taken)


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("skew", [0.0, 1.2])
def test_a_mixture_of_experts(ranks: int, skew: float) -> None:
    """Every rank sends the same parts; the busiest rank receives the size, and no other rank more."""
    options = BenchOptions(("alltoallv",), SweepSettings(), experts=2 * ranks, skew=skew)
    traffic = traffic_of(options, ranks, "alltoallv", options.settings)
    table = traffic.elements(1 << 20, 4, ranks)
    assert table == (table[0],) * ranks
    received = [4 * sum(column) for column in zip(*table, strict=True)]
    assert (1 << 20) - 16 * ranks <= max(received) <= 1 << 20
    assert (len(set(received)) == 1) is (skew == 0.0 or ranks == 1)
    assert all(4 * part % 16 == 0 for part in table[0])


def test_experts_have_the_popularity_of_their_number() -> None:
    shares = expert_shares(4, 2.0, 4)
    assert sorted(shares, reverse=True) == pytest.approx(
        [k**-2 / (1 + 1 / 4 + 1 / 9 + 1 / 16) for k in (1, 2, 3, 4)]
    )
    assert sum(expert_shares(7, 1.0, 3)) == pytest.approx(1.0)


def test_more_ranks_than_experts() -> None:
    options = BenchOptions(("alltoallv",), SweepSettings(), experts=3)
    with pytest.raises(UserError, match="at least one expert per rank"):
        traffic_of(options, 4, "alltoallv", options.settings)
