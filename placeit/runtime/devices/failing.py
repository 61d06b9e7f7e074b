"""Finds the op of a segment that raised an error."""

from __future__ import annotations

import linecache
from typing import Any

__all__ = ["failing_op"]


def failing_op(error: BaseException) -> str | None:
    """Return the op of a segment that raised an error; None if the error came from elsewhere.

    In a module that torch.fx has generated, the op is a node, with the line of the user's code that calls it if it is known.
    Other modules name the op in a note of the error: ``op: NAME``.
    """
    for note in getattr(error, "__notes__", ()):
        if note.startswith("op: "):
            return repr(str(note.removeprefix("op: ")))
    trace, name = error.__traceback__, None
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename.startswith("<eval_with_key>"):  # the code that torch.fx generates: one op a line
            called = linecache.getline(code.co_filename, trace.tb_lineno).partition(" = ")[0].strip()
            name = repr(called) + _line(trace.tb_frame.f_locals.get("self"), called)
        trace = trace.tb_next
    return name


def _line(module: Any, op: str) -> str:
    from placeit.backends.torch.tracing import line_of  # late: it imports PyTorch

    node = next((node for node in getattr(getattr(module, "graph", None), "nodes", ()) if node.name == op), None)
    return f", called at{line}" if node is not None and (line := line_of(node)) else ""
