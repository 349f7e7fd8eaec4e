"""`python -m demo.child COMMAND …`: becomes the command, after asking to be ended when the parent dies.

On Linux a child then gets SIGTERM also when its parent is killed with kill -9; elsewhere it would stay.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """The program; the request outlives the exec."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - the command is the demo's own


if __name__ == "__main__":
    main()
