"""A model of a fleet with injected faults, for rehearsals (`--simulate`), tests and benchmarks.

`spec` reads which fleet (`parse_fleet`, `FleetSpec`, `Fault`, `random_fault`); `fleet.SimulatedFleet`
measures like the ranks of a real one (`probe.api.Probe`). It may not know how its measurements are judged.
"""
