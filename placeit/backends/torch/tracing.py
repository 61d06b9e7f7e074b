"""Trace and export PyTorch modules without output to the terminal, with errors of one paragraph."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch._export.verifier import SpecViolationError
from torch.export import ExportedProgram, ShapesCollection
from torch.fx import Node
from torch.hub import tqdm  # type: ignore[attr-defined]
from torch.utils import _pytree as pytree

from placeit.core.errors import ModelError

__all__ = ["FAILURES", "as_model_error", "exported", "first_paragraph", "line_of", "quiet"]

FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    SpecViolationError,
    TypeError,
    ValueError,
)
"""Errors of tracing: errors of PyTorch, and any error that the code of a module may raise on the way."""

_NOT_THE_USERS = (*torch.__path__, str(Path(__file__).parents[2]), contextlib.__file__, inspect.__file__)
"""Locations of code that does not belong to the traced module."""

_REGISTERED = "torch.export.register_dataclass, or register_pytree_node of torch.utils._pytree"
_LOGGERS = ("torch._subclasses.fake_tensor", "torch.export._trace")  # log errors that they also raise


_tracing = threading.RLock()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress PyTorch's warnings during tracing, and the traces that it logs before it raises an error.

    Only one thread at a time traces, as tracing and its converters change modules, loggers and modes of the process.
    """
    with _tracing, warnings.catch_warnings():
        loud = [logger for name in _LOGGERS if not (logger := logging.getLogger(name)).disabled]
        disabled, interval = logging.root.manager.disable, getattr(tqdm, "monitor_interval", 0)
        logging.disable(logging.WARNING)
        for logger in loud:
            logger.disabled = True
        tqdm.monitor_interval = 0  # its progress bars, even if hidden, would start a thread that never ends
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.filterwarnings("ignore", message="No complete tensor found in the group")  # a weight is a part of another one
        # assigned by PyTorch's recurrent layers, and by its weight_norm
        warnings.filterwarnings("ignore", message=r".*tensor attributes? \S*(_flat_weights\[|\.weight\b)")
        try:
            yield
        finally:
            logging.disable(disabled)
            for logger in loud:
                logger.disabled = False
            tqdm.monitor_interval = interval


@contextlib.contextmanager
def as_model_error(what: str, advice: str = "") -> Iterator[None]:
    """Convert exceptions of tracing to a ModelError of one paragraph.

    Args:
        what: what failed.
        advice: a sentence for errors that say only what was wrong.
    """
    try:
        with quiet():
            yield
    except FAILURES as error:
        message = first_paragraph(error)
        where, plain = _where(error), message
        if re.search(r"data-dependent expression \w+ \(", message):
            message = (
                f"it makes a Python number of a tensor's value{where}, so what follows depends on the data. A placement is "
                "for one fixed program: keep the value in a tensor, without .item(), int() or float()"
            )
            where = ""
        elif "data-dependent" in message or "Dynamic control flow" in message:
            message = (
                f"its control flow depends on data{where}, and a placement is for one fixed program: choose by torch.where or "
                f"a mask, or export the parts separately. PyTorch says: {message}"
            )
            where = ""
        elif ".numpy() is not supported" in message:
            message = "NumPy cannot compute in a program, as tensors have no values when it is made: use PyTorch's functions"
        elif "does not require grad" in message:
            message = "it computes gradients, and a program runs without them: write them as ops"
        elif "fake tensor in the exported program constant" in message:
            message = (
                "it uses .data, or keeps a tensor that it computes, which a program cannot: read x.detach(), and keep tensors "
                "in buffers (register_buffer)"
            )
        elif "which is not a known type" in message or "Unsupported input type" in message:
            message = f"{message.partition('. ')[0]}: take and return tensors, or register it ({_REGISTERED})"
            if "Cache" in message:
                message += (
                    "; for DynamicCache, transformers.integrations.executorch.register_dynamic_cache_export_support() does,"
                    " and config.use_cache = False leaves it out"
                )
        advice = f" {advice}" if advice and message == plain else ""
        raise ModelError(f"{what}{where}: {message.rstrip('.')}.{advice}") from error


def first_paragraph(error: BaseException) -> str:
    """Return the first paragraph of a PyTorch error on one line, or its class if it has no message."""
    text = " ".join(str(error).split("\n\n", maxsplit=1)[0].split())
    return f"{type(error).__name__}: {text}" if isinstance(error, KeyError) else text or type(error).__name__


def line_of(node: Node) -> str:
    """Return the line of the module's own code that calls an op, as text after a word; empty if unknown."""
    places = re.findall(r'File "(.+?)", line (\d+)', node.meta.get("stack_trace") or "")
    own = [(file, line) for file, line in places if not file.startswith(("<", *_NOT_THE_USERS))]
    return f" line {own[-1][1]} of {own[-1][0]}" if own else ""


def _where(error: BaseException) -> str:
    """Return the line of the module's own code, or else the op, in which an error was raised, as text; empty if unknown."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(("<", *_NOT_THE_USERS))]
    if own:
        return f" ({own[-1].filename}, line {own[-1].lineno})"
    op = re.search(r"While executing %(\w+) :.*?target=([\w.]+)", str(error))
    return f" (op '{op[1]}', {op[2]})" if op else ""


def exported(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], sizes: ShapesCollection | None = None
) -> ExportedProgram:
    """Export a module. A tensor that is given for several arguments is copied, since PyTorch would take them for one.

    Args:
        module: the module.
        args: positional arguments of a call.
        kwargs: keyword arguments.
        sizes: dimensions that stay open; no tensor with such dimensions may be given for several arguments.
    """
    seen: set[int] = set()

    def distinct(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and id(value) in seen:
            return value.detach().clone()
        seen.add(id(value))
        return value

    args, kwargs = pytree.tree_map(distinct, (args, dict(kwargs)))
    with _without_partial_graph():
        return torch.export.export(module, args, kwargs, dynamic_shapes=cast("Any", sizes), strict=False)


@contextlib.contextmanager
def _without_partial_graph() -> Iterator[None]:
    """Remove the partial graph that PyTorch prints on an error from stderr. Other text is written there at the end."""
    stderr, text, graph = sys.stderr, io.StringIO(), ""
    try:
        with contextlib.redirect_stderr(text):
            yield
    except Exception as error:
        graph = f"{getattr(error, 'partial_fx_graph', '')}\n"
        raise
    finally:
        stderr.write(text.getvalue().replace(graph, "") if graph.strip() else text.getvalue())
