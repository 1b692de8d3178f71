"""What looks at the flow between two steps: forces, pictures of a film, files of fields, and when to stop.

Nothing here reads the files of shapes. `airflow` uses all of it.
"""
