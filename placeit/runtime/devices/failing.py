"""Which op of a segment has raised an error."""

from __future__ import annotations

import linecache

__all__ = ["failing_op"]


def failing_op(error: BaseException) -> str | None:
    """Return the op of a segment that raised an error; None if the error came from elsewhere.

    The op is the node of a module that torch.fx has generated. For any other module, a note ``op: NAME`` of the error names it.
    """
    for note in getattr(error, "__notes__", ()):
        if note.startswith("op: "):
            return str(note.removeprefix("op: "))
    trace, name = error.__traceback__, None
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename.startswith("<eval_with_key>"):  # the code that torch.fx generates: one op a line
            name = linecache.getline(code.co_filename, trace.tb_lineno).partition(" = ")[0].strip()
        trace = trace.tb_next
    return name
