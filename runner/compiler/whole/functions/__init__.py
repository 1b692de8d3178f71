"""NumPy's functions on whole arrays that are not those of each cell.

`shifts` and `padding` move cells, `masks` has cells that conditions pick, `products` sums products, `outside`
has the arrays from outside of a function.
"""
