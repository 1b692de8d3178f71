"""What looks at the flow between two steps: forces, pictures of a film, files of fields, and when to stop.

Films are drawn from the cells of a plane, files hold every cell; forces are sums over the body's links.
"""
