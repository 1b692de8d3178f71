"""Known rates: the library, a site's file, and fleets that are slow as a whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshrun.jobs.validate.health.hardware_limits import NominalRate, RankFacts
from meshrun.jobs.validate.health.known_rates import known_rates, with_known
from meshrun.launch.cli.main import main
from meshrun.runner.errors import UserError

NONE = NominalRate(None, "NVML: no active NVLink")


@pytest.mark.parametrize(
    "model",
    ["Tesla V100-SXM2-32GB", "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe",
     "NVIDIA H100 NVL", "NVIDIA H200", "NVIDIA H200 NVL", "NVIDIA B200", "NVIDIA L40S",
     "NVIDIA GB200", "NVIDIA GB300", "NVIDIA B300 SXM6 AC",
     "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "AMD Instinct MI300X OAM"],
)  # fmt: skip
def test_each_model_has_memory_arithmetic_and_a_source(model: str) -> None:
    gpu = known_rates().gpu(model)
    assert gpu is not None
    assert gpu.memory
    assert gpu.float32
    assert "data sheet" in gpu.source or "announcement" in gpu.source


def test_an_unknown_model_has_none() -> None:
    assert known_rates().gpu("NVIDIA H2000") is None


def test_inactive_nvlinks_do_not_lower_the_expectation() -> None:
    facts = RankFacts(NONE, NominalRate(300e9, "NVML: 12 active NVLinks"), NONE, NONE, nvlinks=12)
    found = with_known(facts, "NVIDIA H200", known_rates())
    assert found.nvlink.rate == 450e9
    assert found.nvlink.source.endswith("18 NVLinks, 12 active")
    assert found.product.rate == 67e12


def test_a_site_adds_and_overrides(tmp_path: Path) -> None:
    site = tmp_path / "site.json"
    document = {
        "gpus": [{"model": "NVIDIA H200", "memory": 4000}, {"model": "Own", "float32": 1}],
        "shares": {"pairs copies": 0.5},
        "network": 12.5,
    }
    site.write_text(json.dumps(document))
    known = known_rates(site)
    h200, own = known.gpu("NVIDIA H200"), known.gpu("Own")
    assert h200 is not None
    assert own is not None
    assert (h200.memory, own.float32, known.network) == (4e12, 1e12, 12.5e9)
    assert known.shares["pairs copies"][0] == 0.5
    assert known.shares["gpu memory"] == known_rates().shares["gpu memory"]


@pytest.mark.parametrize(
    "text",
    ["[]", "{", '{"gpu": []}', '{"gpus": [{}]}', '{"gpus": [{"model": "("}]}', '{"shares": {"gpu": 0.5}}',
     '{"gpus": [{"model": "x", "memory": -1}]}', '{"shares": {"gpu memory": 2}}', '{"network": "fast"}',
     f'{{"network": 1{"0" * 400}}}', '{"gpus": [{"model": "x", "float32": 1e300}]}'],
)  # fmt: skip
def test_a_wrong_file_is_refused(tmp_path: Path, text: str) -> None:
    site = tmp_path / "site.json"
    site.write_text(text)
    with pytest.raises(UserError, match="rates"):
        known_rates(site)


def faults(form: str, hosts: int, gpus: int, factor: float) -> str:
    return "".join(f",fault={form.format(h=h, g=g)}:{factor}" for h in range(hosts) for g in range(gpus))


def nics(hosts: int, factor: float) -> str:
    return faults("nic:h{h}:{g}", hosts, 4, factor)


@pytest.mark.parametrize(
    ("fleet", "status", "words"),
    [
        ("", 0, ""),
        (",oversubscription=2,leaf=2", 0, ""),
        (",nvlink=mesh", 0, ""),
        (",nvlink=bridge", 0, ""),
        (",nvlink=none", 0, ""),
        (",nics=2", 0, ""),
        (nics(6, 1.17 / 48), 2, "does NCCL use TCP"),
        (nics(6, 0.5), 2, "all GPUs alike: host pairs flows"),
        (faults("gpu:h{h}:{g}", 6, 4, 0.5), 2, "all GPUs alike: gpu memory"),
    ],
)
def test_what_is_common_to_all_is_seen(
    capsys: pytest.CaptureFixture[str], fleet: str, status: int, words: str
) -> None:
    assert main(["validate", "--quick", "--simulate", f"hosts=6,gpus=4,seed=3{fleet}"]) == status
    printed = capsys.readouterr().out
    assert words in " ".join(printed.split())
    assert "no known rate for" in printed


def test_most_nics_slow_is_not_ok(capsys: pytest.CaptureFixture[str]) -> None:
    """Of 60 % of the hosts: the siblings' median is slow itself."""
    fleet = "hosts=10,gpus=2,seed=3" + faults("nic:h{h}:{g}", 6, 2, 0.6)
    assert main(["validate", "--quick", "--simulate", fleet]) in (1, 2)
    printed = " ".join(capsys.readouterr().out.split())
    assert "12 of 20 GPUs (hosts h0, h1, h2, h3, h4, h5) reach" in printed  # some are named, not all


@pytest.mark.parametrize(
    ("fleet", "statuses"),
    [
        (
            "oversubscription=2,ecmp=8",
            (0, 3),
        ),  # a cable of an uplink carries a quarter of what its flows need
        ("oversubscription=2,ecmp=8,fallback=tcp", (2,)),
        ("fallback=tcp", (2,)),
        ("fault=all-nics:0.6", (1, 2)),
    ],
)
def test_where_partners_are_sampled_uplinks_that_are_slow_by_design_are_no_alarm(
    fleet: str, statuses: tuple[int, ...]
) -> None:
    words = f"hosts=72,gpus=2,leaf=8,seed=3,{fleet}"
    assert main(["validate", "--rungs", "host pairs", "--simulate", words]) in statuses


def test_peaks_are_in_operations_for_prometheus(tmp_path: Path) -> None:
    path = tmp_path / "a.prom"
    main(["validate", "--quick", "--rungs", "gpu", "--simulate", "hosts=1,gpus=2", "--prometheus", str(path)])
    limits = [line for line in path.read_text().splitlines() if "rung_limit" in line and '"product"' in line]
    assert [line.partition("{")[0] for line in limits] == ["meshrun_validate_rung_limit_flops_per_second"]
