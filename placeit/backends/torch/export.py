"""PyTorch programs as ONNX and as OpenVINO IR, for the runtimes that read those."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.fx import GraphModule

from placeit.backends.openvino import ir
from placeit.backends.openvino.reader import FAILURES
from placeit.backends.torch.model import TorchModel
from placeit.backends.torch.program import export, quiet
from placeit.core.errors import ModelError
from placeit.core.files import replacing
from placeit.core.telemetry import import_openvino

__all__ = ["write_ir", "write_onnx"]

openvino = import_openvino()

_OPSET = 17


def write_onnx(model: TorchModel, path: Path) -> None:
    """Write a PyTorch model as ONNX (opset 17), with the names of its inputs and outputs.

    PyTorch's older exporter does it, which needs nothing but PyTorch itself. It leaves out what is changed in place without a
    word, so it is given the lowered program, in which nothing is. State starts from its initial value, as everywhere.

    Raises:
        ModelError: the exporter has no ONNX op for something; its message names it.
        FileError: the file cannot be written.
    """
    whole = _whole(model)
    for node in whole.graph.nodes:
        node.target = _FOR_ONNX.get(node.target, node.target)
    whole.recompile()
    with replacing(path) as temporary, _explaining(f"Cannot write {model.path} as ONNX", ".xml"), torch.no_grad():
        torch.onnx.export(
            whole,
            _arguments(model),
            str(temporary),
            input_names=[spec.name for spec in model.inputs],
            output_names=[spec.name for spec in model.outputs],
            opset_version=_OPSET,
            dynamo=False,
        )


def write_ir(model: TorchModel, path: Path) -> None:
    """Write a PyTorch model as OpenVINO IR (``.xml``, its weights beside it as ``.bin``), with its names and sizes.

    Raises:
        ModelError: OpenVINO has no op for something; its message names it.
        FileError: the files cannot be written.
    """
    shapes = {spec.op: list(spec.shape) for spec in model.inputs}  # the name that the program itself has for an input
    with _explaining(f"Cannot convert {model.path} to OpenVINO IR", ".onnx"), torch.no_grad():
        converted = openvino.convert_model(export(_whole(model), _arguments(model), {}, model.name))
        known = {name for port in converted.inputs for name in port.get_names()}
        for spec in model.inputs:
            if spec.op not in known:  # nothing reads it
                unread = openvino.opset13.parameter(shapes[spec.op], np.dtype(spec.dtype).type, spec.op)
                unread.output(0).get_tensor().set_names({spec.op})
                converted.add_parameters([unread])
        converted.reshape(shapes)
        for spec in model.inputs:
            converted.input(spec.op).get_tensor().set_names({spec.name})
        for spec, port in zip(model.outputs, converted.outputs, strict=True):
            port.get_tensor().set_names({spec.name})
    ir.write_ir(converted, path)


def _whole(model: TorchModel) -> GraphModule:
    """Return the whole model as one module, from its inputs to a tuple of its outputs."""
    return model.segment("torch", range(len(model.graph)), [], [])


def _arguments(model: TorchModel) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(value) for value in model.random_inputs().values())


def _to_copy(value: torch.Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    return value.to(value.dtype if dtype is None else dtype)


def _batch_norm(value: torch.Tensor, *args: Any) -> tuple[torch.Tensor]:
    weight, bias, mean, variance, momentum, epsilon = args
    return (torch.nn.functional.batch_norm(value, mean, variance, weight, bias, False, momentum, epsilon),)


def _batch_norm_of_the_batch(value: torch.Tensor, *args: Any) -> tuple[torch.Tensor]:
    weight, bias, training, momentum, epsilon = args
    return (torch.nn.functional.batch_norm(value, None, None, weight, bias, training, momentum, epsilon),)


def _fill(value: torch.Tensor, filling: torch.Tensor, *_: Any) -> torch.Tensor:
    return filling.to(value.dtype).expand(value.shape)


def _select_scatter(value: torch.Tensor, source: torch.Tensor, dim: int, index: int) -> torch.Tensor:
    index %= value.shape[dim]
    return _slice_scatter(value, source.unsqueeze(dim), dim, index, index + 1)


def _slice_scatter(
    value: torch.Tensor, source: torch.Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> torch.Tensor:
    size = value.shape[dim]
    order = torch.arange(size)
    order[start:end:step] = torch.arange(size, size + source.shape[dim])
    return torch.cat([value, source], dim).index_select(dim, order)


_FOR_ONNX: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._to_copy.default: _to_copy,
    torch.ops.aten._native_batch_norm_legit_no_training.default: _batch_norm,
    torch.ops.aten._native_batch_norm_legit.no_stats: _batch_norm_of_the_batch,
    torch.ops.aten.copy.default: _fill,
    torch.ops.aten.fill.Scalar: torch.full_like,
    torch.ops.aten.fill.Tensor: _fill,
    torch.ops.aten.select_scatter.default: _select_scatter,
    torch.ops.aten.slice_scatter.default: _slice_scatter,
}
"""What to call in place of ops that lowering makes and the ONNX exporter does not know."""


_TELLING = ("not supported", "Unsupported", "unrecognized", "No conversion rule", "Conversion is failed")
"""What stands in the line of a converter's message that names the op."""


@contextlib.contextmanager
def _explaining(what: str, other: str) -> Iterator[None]:
    """Turn what a converter raises into a ModelError of one paragraph, and keep back what it says besides."""
    logger = logging.getLogger()
    level, filters, handlers = logger.level, logger.filters[:], logger.handlers[:]
    printing = torch._C._jit_onnx_log
    try:
        # the ONNX exporter prints the whole program before it raises an error
        torch._C._jit_onnx_log = lambda *_: None
        with quiet(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    except (*FAILURES, AttributeError) as error:
        lines = [line.strip("- ") for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        reason = next((line for line in lines if any(sign in line for sign in _TELLING)), lines[-1])
        reason = reason.partition(" Please ")[0].rstrip(".")
        if isinstance(error, LookupError):
            reason = f"there is nothing for {reason}"
        raise ModelError(f"{what}: {reason}. Compute it in another way, or write an {other} file.") from error
    finally:
        torch._C._jit_onnx_log = printing
        # OpenVINO's converter changes the root logger, and leaves it changed when it fails
        logger.setLevel(level)
        logger.filters[:], logger.handlers[:] = filters, handlers
