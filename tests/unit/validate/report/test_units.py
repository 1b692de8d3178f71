"""Rates of a matrix product are in floating-point operations per second, all others in bytes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from meshrun.launch.cli.main import main

FLEET = "hosts=1,gpus=4,fault=gpu:h0:3:0.6"


@pytest.fixture
def outputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Every format of one rehearsal, whose model computes 50 TFLOP/s."""
    files = {"-J": "a.json", "--html": "a.html", "--junit": "a.xml", "--prometheus": "a.prom"}
    options = [word for option, name in files.items() for word in (option, str(tmp_path / name))]
    assert main(["validate", "--simulate", FLEET, "--rungs", "gpu", *options]) == 2
    text = capsys.readouterr().out
    return {"text": text, **{name[2:]: (tmp_path / name).read_text() for name in files.values()}}


def test_a_product_is_in_operations(outputs: dict[str, str]) -> None:
    report = json.loads(outputs["json"])
    (rung,) = (one for one in report["rungs"] if one["name"] == "gpu")
    assert rung["rates"]["product"] == pytest.approx(50e12, rel=0.1)
    assert rung["rates"]["memory"] < 10e12
    assert report["units"] == {"": "B/s", "product": "FLOP/s", "tensor": "FLOP/s"}
    assert re.search(r"\n +product +(4[5-9]|5[0-5])\.\d +67\.0 +TFLOP/s ", outputs["text"])
    assert re.search(r"memory +\d+ +4800 +GB/s ", outputs["text"])
    assert re.search(r"product: (4[5-9]|5[0-5])\.\d TFLOP/s", outputs["xml"])
    (rate,) = re.findall(r'rung_rate_flops_per_second{rung="gpu",what="product"} (\S+)', outputs["prom"])
    assert float(rate) == pytest.approx(50e12, rel=0.1)
    assert not re.search(r'bytes_per_second{rung="gpu",what="product"}', outputs["prom"])
    assert re.search(
        r"<td>product</td><td[^>]*>(4[5-9]|5[0-5])\.\d</td><td[^>]*>67\.0</td><td>TFLOP/s</td>",
        outputs["html"],
    )


def test_a_slow_part_is_in_the_unit_of_its_measurement(outputs: dict[str, str]) -> None:
    (found,) = json.loads(outputs["json"])["findings"]
    by_product = found["evidence"]["siblings"] > 20e12
    assert found["evidence"]["unit"] == ("FLOP/s" if by_product else "B/s")
    assert ("TFLOP/s" in found["sentence"]) is by_product
    assert ("TFLOP/s" in outputs["text"].split("Ladder")[0]) is by_product


def test_rates_of_an_older_baseline_are_not_compared_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has bytes of one operand."""
    words = ["validate", "--simulate", "hosts=1,gpus=4", "--rungs", "gpu"]
    assert main([*words, "--save-baseline", str(tmp_path / "b.json")]) == 0
    baseline = json.loads((tmp_path / "b.json").read_text())
    (run,) = baseline["runs"]
    run["sizes"]["gpu product"] = 256 << 20
    for figure in run["figures"]:
        if figure[1] == "product":
            figure[3] /= 4096
    (tmp_path / "b.json").write_text(json.dumps(baseline))
    capsys.readouterr()
    assert main([*words, "--baseline", str(tmp_path / "b.json")]) == 0
    assert "gpu product: not compared (earlier runs were of other sizes)" in capsys.readouterr().out
