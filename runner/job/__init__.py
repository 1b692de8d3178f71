"""Jobs: their declaration, the options read from a function's signature, discovery by name, and the context
of a block that a function is called on. It may not know ranks or files. Others use `declaration.Job`,
`discover.find` and `block_context.BlockContext`.
"""
