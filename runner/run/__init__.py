"""One run from its first check to its record: declared jobs and their options, execution, verification, and
the commands that check an installation. It may use every other room. Others use `declare`, `execute.run` and
`options`.
"""
