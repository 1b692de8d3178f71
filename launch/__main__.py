"""`python -m launch`, and the file by which ranks are started.

Python puts a folder of its own choice first on the import path: the working directory with -m,
this file's folder when it is given by path. Either could hold a `jobs` or a `runner` that is not
ours, so it goes. Ranks are started by path: -m would look in the working directory before this
file has a say.
"""

import os
import sys


def remove_the_folder_python_added() -> None:
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        del sys.path[0]
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if root not in sys.path:  # run from a checkout that is not installed
        sys.path.append(root)


if __name__ == "__main__":
    remove_the_folder_python_added()
    from launch.cli.main import main

    sys.exit(main())
