"""What a job is: its declaration, the options read from its function's signature, how it is found by name,
and what its function may know of the block it is given. It knows neither ranks nor files. Others use
`declaration.Job`, `discover.find` and `block_context.BlockContext`.
"""
