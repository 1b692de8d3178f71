"""`meshrun nvbandwidth`: the measurements of `bench copy` with nvbandwidth 0.10's options and output.

cli         the command: nvbandwidth's options with its meanings
output      its text and its JSON
run         measure, and write these

It knows neither bench's collectives nor lessons. Others use `jobs.bench.cli`.
"""

MAY_NOT_IMPORT = ("meshrun.jobs.bench.collectives", "meshrun.jobs.bench.lessons")
