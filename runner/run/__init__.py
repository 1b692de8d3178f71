"""One run from its first check to its record: declared jobs, their options and execution here, the record in
`record`, verification in `verify`, and in `installation` the commands that check an installation. It may use
every other room. Others use `declare`, `execute.run` and `options`.
"""
