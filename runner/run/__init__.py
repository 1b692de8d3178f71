"""One run from its first check to its record, in the order of `execute`: `files` and `prepare` open the files
and let the ranks agree once; `map_run`, `step_run`, `image_run` and `services` compute; `finish` names the
outputs and makes the record. `verify` checks results, and `installation` has the commands
that check an installation. It may use every other room. Others use `declare` and `execute.run`.
"""
