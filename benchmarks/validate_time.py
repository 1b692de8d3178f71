"""Time of `meshrun validate` in the model, by rung.

    python benchmarks/validate_time.py [FLEET ...] [--budget SECONDS]

Columns: the fleet; seconds in the model, of which waiting; the status; the seconds of each rung without
waiting.
"""

from __future__ import annotations

import argparse

from meshrun.jobs.validate.plan import Plan
from meshrun.jobs.validate.run.options import ValidateOptions
from meshrun.jobs.validate.run.run import measure_simulated
from meshrun.jobs.validate.simulation.fleet import SimulatedFleet
from meshrun.jobs.validate.simulation.spec import parse_fleet

FLEETS = (
    *(f"hosts={hosts},gpus=8" for hosts in (16, 64, 256, 512, 4096)),
    *(f"hosts={hosts},gpus=8,fault=nic:h3:1:0.6" for hosts in (16, 64, 256, 512)),
    "hosts=16,gpus=8,fallback=tcp",
    *(
        f"hosts=64,gpus=8,leaf=8,{condition}"
        for condition in (
            "oversubscription=2", "ecmp=8", "spread=0.02", "drift=0.01", "hostnoise=0.05", "neighbours=0.05",
            "nics=4", "noise=0.08",
        )
    ),
)  # fmt: skip


class Waiting(SimulatedFleet):
    waited = 0.0

    def wait(self, seconds: float) -> None:
        self.waited += seconds
        super().wait(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("fleets", nargs="*", default=FLEETS, metavar="FLEET")
    parser.add_argument("--budget", type=float)
    options = parser.parse_args()
    print("| fleet | model s | waiting s | status | rungs |\n| --- | --- | --- | --- | --- |")
    for words in options.fleets:
        fleet = Waiting(parse_fleet(words))
        wanted = ValidateOptions(Plan(), budget=options.budget, simulate=words)
        verdict = measure_simulated(fleet, wanted, lambda rung: None, lambda line: None).verdict
        rungs = ", ".join(
            f"{rung.name} {rung.measured:.0f}" for rung in verdict.rungs if rung.measured >= 0.5
        )
        figures = f"{fleet.now:.0f} | {fleet.waited:.0f} | {verdict.status}"
        print(f"| `{words}` | {figures} | {rungs} |", flush=True)


if __name__ == "__main__":
    main()
