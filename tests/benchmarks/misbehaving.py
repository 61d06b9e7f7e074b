"""Stands for a placeit that does what is wrong in one way or another; light, because child processes import it."""

import os
import signal
import sys
import time
from pathlib import Path

WRONG = {
    **dict.fromkeys(("crash", "exit"), "crashed"),
    **dict.fromkeys(("raise", "bug"), "bug"),
    **dict.fromkeys(("lines", "noise", "library", "silent", "nan"), "unclear"),
    "code": "exit code",
    **dict.fromkeys(("beside", "above", "input", "early"), "wrote"),
    "process": "ran code",
    "memory": "memory",
    "refuse": "refused",
    "work": "done",
}
"""What each but ``hang`` has to be judged as."""
_SAYS = {
    "bug": ("error: This is a bug in placeit (KeyError: x). Please report it.", 70),
    "lines": ("error: It is wrong.\nAnd this, too.", 1),
    "noise": ("error: Exception from src/plugin.cpp:3.", 1),
    "library": ("error: It is wrong.", 1),
    "code": ("error: It is wrong.", 5),
    "early": ("error: It is wrong.", 1),
    "refuse": ("warning: It looks bad.\nerror: x is wrong, so nothing is done.", 2),
}
_WRITES = {
    "early": ("out", "half"),
    "beside": ("other", ""),
    "above": ("../other", ""),
    "input": ("x", "y"),
    "work": ("out", "whole"),
}


def misbehave(argv: tuple[str, ...]) -> None:
    """Do what is wrong, by the first argument."""
    match argv[0]:
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "exit":
            os._exit(3)
        case "hang":
            time.sleep(600)
        case "raise":
            raise KeyError("x")
        case "library":
            os.write(2, b"[E] something\n")
        case "process":
            os.system("true")
        case "memory":
            assert len(bytearray(b"x") * (1100 << 20))
    if argv[0] in _WRITES:
        path, text = _WRITES[argv[0]]
        Path(path).write_text(text)
    if argv[0] in _SAYS:
        text, code = _SAYS[argv[0]]
        sys.stderr.write(f"{text}\n")
        raise SystemExit(code)
    sys.stdout.write({"silent": "", "nan": '{"x": NaN}'}.get(argv[0], '{"x": 1}'))
