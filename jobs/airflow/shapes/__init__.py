"""The shape in the wind tunnel: what SHAPE means, which cells are solid, and where exactly the surface lies.

shape       reads SHAPE into a body, and refuses those that no flow gets around
bodies      what all bodies have in common; bodies of cells, cylinders and spheres
surface     bodies bounded by segments or triangles
parts       parts of a body that do not touch each other
airfoil     the outline of NACA's airfoils of four digits
stl         STL files
"""
