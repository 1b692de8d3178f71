"""Turn a function's loops and conditions into calls of a control object, whose global name is `__control__`.

`convert.convert` makes the code, `plain.PlainControl` does what Python does. It knows no ranks.
"""

MAY_NOT_IMPORT = ("meshrun.runner.world",)
