"""Stands for a placeit that does what is wrong in one way or another; light, because child processes import it."""

import os
import signal
import sys
import time
from pathlib import Path


def fail(text: str, code: int = 1) -> None:
    sys.stderr.write(f"{text}\n")
    raise SystemExit(code)


def misbehave(argv: tuple[str, ...]) -> None:
    """Stand for a placeit that does what is wrong in one way or another."""
    match argv[0]:
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "exit":
            os._exit(3)
        case "hang":
            time.sleep(60)
        case "raise":
            raise KeyError("x")
        case "bug":
            fail("error: This is a bug in placeit (KeyError: x). Please report it.", 70)
        case "lines":
            fail("error: It is wrong.\nAnd this, too.")
        case "noise":
            fail("error: Exception from src/plugin.cpp:3.")
        case "library":
            os.write(2, b"[E] something\n")
            fail("error: It is wrong.")
        case "silent":
            return
        case "nan":
            sys.stdout.write('{"x": NaN}')
            return
        case "code":
            fail("error: It is wrong.", 5)
        case "early":
            Path("out").write_text("half")
            fail("error: It is wrong.")
        case "refuse":
            fail("warning: It looks bad.\nerror: x is wrong, so nothing is done.", 2)
        case "beside":
            Path("other").write_text("")
        case "above":
            os.close(os.open("../other", os.O_CREAT | os.O_WRONLY))
        case "input":
            Path("x").write_text("changed")
        case "process":
            os.system("true")
        case "memory":
            assert len(bytearray(b"x") * (1100 << 20))
        case "work":
            Path("out").write_text("whole")
    sys.stdout.write('{"x": 1}')
