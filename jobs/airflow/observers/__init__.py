"""What looks at the flow between two steps: forces, pictures of a film, files of fields, and when to stop.

It may not know the shapes' files, or how the job's options are given. `airflow` uses all of it.
"""
