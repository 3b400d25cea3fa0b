"""Where a message comes from: the line of the program that called, not ours; and whether a launcher says which rank it is."""

import os
import sys

_OURS = tuple(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), name) + os.sep
              for name in ("capstan", "deepspeed"))
_BETWEEN = (os.path.join("torch", "nn", "modules", "module.py"), os.path.join("torch", "utils", "_contextlib.py"),
            "contextlib.py")


def stacklevel():
    """For a call of logging in the function that calls this: the first frame that is neither ours nor torch's way to us."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and _is_passed_over(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    return level


def _is_passed_over(file):
    return file.startswith(_OURS) or file.endswith(_BETWEEN)


def launcher_names_ranks():
    """Whether every line of this process gets its rank from `capstan launch`; the command `deepspeed` asks it not to."""
    return bool(os.environ.get("CAPSTAN_LAUNCHER")) and not os.environ.get("CAPSTAN_NO_PREFIX")
