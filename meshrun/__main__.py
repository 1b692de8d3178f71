"""`python -m meshrun`, and the file that starts a rank.

Python puts a folder first on the import path: the working directory with -m, this file's folder if
run by path. Either could contain a file called like a module that is imported here, so it is removed. Ranks
are started by path, because -m would search the working directory before this file can remove it.
"""

import os
import signal
import sys


def remove_the_folder_python_added() -> None:
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        del sys.path[0]
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if root not in sys.path:  # run from a checkout that is not installed
        sys.path.append(root)


if __name__ == "__main__":
    remove_the_folder_python_added()
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:  # no traceback of an import, and the launcher sees the signal
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from meshrun.launch.cli.main import main

    signal.signal(signal.SIGINT, interrupt)
    sys.exit(main())
