"""Jobs: their declaration, the options read from a function's signature, discovery by name, and the context
of a block that a function is called on. It knows neither ranks nor array files. Others use `declaration.Job`,
`discover.find` and `block_context.BlockContext`.
"""

MAY_NOT_IMPORT = ("meshrun.runner.world", "meshrun.runner.storage")
