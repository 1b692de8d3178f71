"""The `meshrun` command: parses the command line, and either starts ranks or becomes one.

`main` is the command; `plugins` finds other commands by entry point, including `launch`, `plan` and `doctor`
of this room, and the command among arguments; `job_command` makes a command from a job; `params` has options
and their types; `errors` reports an error once for all ranks. This room may use all others, and imports
`runner` only inside a command.
"""
