"""One run from its first check to its record: declared jobs and their options, execution and record here,
verification in `verify`, and in `installation` the commands that check an installation. It may use every
other room. Others use `declare`, `execute.run` and `options`.
"""
