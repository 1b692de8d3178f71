"""A model of a fleet with injected faults, for rehearsals (`--simulate`), tests and benchmarks.

`spec` describes and parses a fleet (`parse_fleet`, `FleetSpec`, `Fault`, `random_fault`);
`fleet.SimulatedFleet` measures like the ranks of a real one (`probe.api.Probe`). It knows neither
measurements nor findings.
"""

MAY_NOT_IMPORT = ("meshrun.jobs.validate.measurements", "meshrun.jobs.validate.localize")
