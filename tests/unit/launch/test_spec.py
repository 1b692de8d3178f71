"""What is asked for, as a spec; what cannot be one is refused with its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.launch.host_list import HostSlots, parse_hosts, read_hostfile
from meshrun.launch.mpi.rank_command import spec_options
from meshrun.launch.spec import LaunchSpec, make_spec, parse_shape

WORDS = ("bench", "all_reduce")


@pytest.mark.parametrize(("text", "expected"), [("2x8", (2, 8)), ("8", (None, 8)), ("1x1", (1, 1))])
def test_shapes(text: str, expected: tuple[int | None, int]) -> None:
    assert parse_shape(text) == expected


@pytest.mark.parametrize("text", ["", "x8", "2x", "0x8", "00x8", "2x0", "0", "2 x 8", "2x8x1", "-2x8", "two"])
def test_no_shapes(text: str) -> None:
    with pytest.raises(ValueError, match="expected HOSTSxGPUS such as 2x8"):
        parse_shape(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:8,b:8", [HostSlots("a", 8), HostSlots("b", 8)]),
        ("a,b", [HostSlots("a"), HostSlots("b")]),
        ("me@10.0.0.7:2", [HostSlots("me@10.0.0.7", 2)]),
        ("node[01-03,7]", [HostSlots(name) for name in ("node01", "node02", "node03", "node7")]),
        (
            "a:8,n[9-11]:4,b",
            [HostSlots("a", 8), *(HostSlots(f"n{i}", 4) for i in (9, 10, 11)), HostSlots("b")],
        ),
        ("me@r[1-2]n[08-09].site", [HostSlots(f"me@r{r}n{n}.site") for r in (1, 2) for n in ("08", "09")]),
        ("[1-2]", [HostSlots("1"), HostSlots("2")]),
    ],
)
def test_hosts(text: str, expected: list[HostSlots]) -> None:
    assert parse_hosts(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a,,b", "'' is not a host"),
        ("a:x", "'a:x' is not a host"),
        ("a;reboot", "'a;reboot' is not a host"),
        ("-oProxyCommand", "is not a host"),
        ("a:0", "a host with 0 slots"),
        ("a,b,a:2", "host a is listed twice, with different slots: none and 2 slots"),
        ("n[1-3],n2", "host n2 is listed twice"),
        ("n[3-1]", r"n\[3-1\] has no hosts: 3-1 goes from 3 down to 1"),
        ("n[]", r"'' in n\[\] is no number or range such as 01-03"),
        ("n[1,]", "'' in "),
        ("n[a-c]", "'a-c' in "),
        ("n[1-3", "'n\\[1-3' is not a host"),
        ("n[1-2]]", "is not a host"),
        ("-n[1-2]", "is not a host"),
        ("n[1-1000000]", r"is 1,000,000 hosts; a list has at most 65,536"),
        ("r[1-1000]n[1-1000]", r"is 1,000,000 hosts; a list has at most 65,536"),
        ("n[1-999999999999999999]", "is 999,999,999,999,999,999 hosts"),
        ("n[1-99999999999999999999]", "is no number or range"),
    ],
)
def test_no_hosts(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_hosts(text)


@pytest.mark.parametrize(
    "word",
    ["::1", "fd00::7", "[fd00::7]", "[fd00::7]:4", "me@fd00::7", "me@[::1]:2", "fe80::1%eth0",
     "[fe80::1%eth0]", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8:4", "::ffff:10.0.0.7", "[::1"],
)  # fmt: skip
def test_ipv6_addresses(word: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as refused:
        parse_hosts(f"n1,{word}")
    assert str(refused.value).startswith(
        f"--hosts: {word} is an IPv6 address, which MPI launchers do not take. "
    )
    (tmp_path / "hosts").write_text(f"n1\n{word} slots=2\n")
    with pytest.raises(ValueError, match=r"hosts, line 2: .* is an IPv6 address"):
        read_hostfile(tmp_path / "hosts")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_hostfiles_of_windows(tmp_path: Path, encoding: str, end: str) -> None:
    file = tmp_path / "hosts"
    file.write_bytes(end.join(["n1 slots=8", "", "n2:4", "# n3", ""]).encode(encoding))
    assert read_hostfile(file) == [HostSlots("n1", 8), HostSlots("n2", 4)]
    file.write_bytes(f"# of rack 7{end}n1{end}".encode(encoding))
    assert read_hostfile(file) == [HostSlots("n1")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n1 slots = 8\nn2 slots= 4 max_slots = 9\n", [HostSlots("n1", 8), HostSlots("n2", 4)]),
        ("n[1-2] slots=8\nn3:4\n", [HostSlots("n1", 8), HostSlots("n2", 8), HostSlots("n3", 4)]),
        ("n2\nn2\nn1\nn1\n", [HostSlots("n2", 2), HostSlots("n1", 2)]),  # $PBS_NODEFILE
        ("n1\nn2\nn1\nn2\nn1\n", [HostSlots("n1", 3), HostSlots("n2", 2)]),
        ("n[1-2]\n" * 3, [HostSlots("n1", 3), HostSlots("n2", 3)]),
    ],
)
def test_hostfiles_of_batch_systems(tmp_path: Path, text: str, expected: list[HostSlots]) -> None:
    file = tmp_path / "hosts"
    file.write_text(text)
    assert read_hostfile(file) == expected


def test_hostfiles_of_both_kinds(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# rack 7\nn1 slots=8 max_slots=8\n\nn2:4   # half of it\nn3\n")
    assert read_hostfile(file) == [HostSlots("n1", 8), HostSlots("n2", 4), HostSlots("n3")]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("n1 slots=8\nn2 slots 8\n", r"hosts, line 2: expected HOST slots=N or HOST:N, not 'n2 slots 8'"),
        ("n1 slots=\n", "line 1: expected HOST slots=N"),
        ("n1\nn2 slots=4\nn1\n", "host n1 is listed twice"),
        ("n1:4\nn1:8\n", "host n1 is listed twice, with different slots: 4 slots and 8 slots"),
        ("n1:4\nn1:4\n", "host n1 is listed twice$"),
        ("n[1-2]\nn[4-3]\n", r"hosts, line 2: n\[4-3\] has no hosts"),
        ("n1 slots=eight\n", "line 1: expected HOST slots=N"),
        ("n1\nn2 cpus=4\n", "line 2: expected"),
        ("n1 slots=0\n", "line 1: a host with 0 slots"),
        ("n1:8:8\n", "line 1: 'n1:8:8' is not a host"),
        ("# nothing\n", "contains no hosts"),
    ],
)
def test_hostfiles_that_are_none(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "hosts"
    file.write_text(text)
    with pytest.raises(ValueError, match=reason):
        read_hostfile(file)


def test_a_hostfile_that_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    for content in (b"\x7fELF\xff\xfe", "n1\n".encode("utf-16")):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=f"{file} is not a text file"):
            read_hostfile(file)


def test_the_first_of_the_known_hosts() -> None:
    known = [HostSlots("a", 8), HostSlots("b", 4), HostSlots("c", 8)]
    assert make_spec(WORDS, (2, 4), known) == LaunchSpec(WORDS, 2, 4, ("a", "b"))
    assert make_spec(WORDS, (None, 4), known) == LaunchSpec(WORDS, 3, 4, ("a", "b", "c"))
    assert make_spec(WORDS, (2, 8)) == LaunchSpec(WORDS, 2, 8)
    assert make_spec(WORDS, (None, 8)) == LaunchSpec(WORDS, 1, 8)
    assert make_spec(WORDS, None, parse_hosts("a:8,b:8")) == LaunchSpec(WORDS, 2, 8, ("a", "b"))


def test_hosts_with_different_slots() -> None:
    spec = make_spec(WORDS, None, parse_hosts("a:8,b:4,c:8"))
    assert spec == LaunchSpec(WORDS, 3, 8, ("a", "b", "c"), slots=(8, 4, 8))
    assert (spec.ranks, spec.counts) == (20, (8, 4, 8))
    assert [spec.without([], rank) for rank in (0, 7)] == [spec.without(["a"], None)] * 2
    assert [spec.without([], rank) for rank in (8, 11)] == [spec.without(["b"], None)] * 2
    assert [spec.without([], rank) for rank in (12, 19)] == [spec.without(["c"], None)] * 2
    left = spec.without(["b"], None)
    assert left is not None
    assert (left.names, left.counts, left.ranks) == (("a", "c"), (8, 8), 16)
    assert "--expect 3 8,4,8 -n 20" in " ".join(spec_options(spec))
    assert "--expect 2 8,8 -n 16" in " ".join(spec_options(left))


@pytest.mark.parametrize(
    ("wanted", "text", "reason"),
    [
        ((3, 1), "a,b", "3 hosts requested, but only 2 listed"),
        ((2, 8), "a:8,b:4", "host b has 4 slots, but 8 ranks are requested"),
        (None, "a:8,b", "the number of ranks is missing"),
        (None, "a,b", "the number of ranks is missing"),
    ],
)
def test_what_does_not_fit(wanted: tuple[int, int] | None, text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        make_spec(WORDS, wanted, parse_hosts(text))


def test_nothing_is_known() -> None:
    with pytest.raises(ValueError, match="the number of ranks is missing"):
        make_spec(WORDS)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_a_plan_has_what_was_asked_for_or_is_refused(hosts: int, per_host: int, there: int) -> None:
    known = [HostSlots(f"n{i}", 4) for i in range(there)]
    if hosts <= there and per_host <= 4:
        spec = make_spec(WORDS, (hosts, per_host), known)
        assert spec.ranks == hosts * per_host
        assert spec.names == tuple(host.name for host in known[:hosts])
    else:
        with pytest.raises(ValueError, match="requested"):
            make_spec(WORDS, (hosts, per_host), known)
