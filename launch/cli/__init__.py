"""The `meshrun` command: reads the words of a command line, and either starts ranks or becomes one.

`main` is the command; `plugins` finds further ones by entry point, also `launch`, `plan` and `doctor` of this
room; `job_command` makes a command of a job; `params` has options and their types; `errors` says what is
wrong, once for all ranks. This room may use all others, and enters `runner` only inside a command.
"""
