"""Write PyTorch programs as ONNX and as OpenVINO IR, for the runtimes that read these formats."""

from __future__ import annotations

import contextlib
import functools
import io
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.fx import GraphModule

from placeit.backends.base import Format, Model
from placeit.backends.onnx_external import OnnxFile
from placeit.backends.openvino import ir
from placeit.backends.openvino.reader import FAILURES
from placeit.backends.openvino.state import make_state
from placeit.backends.torch.border import as_array
from placeit.backends.torch.program import export
from placeit.backends.torch.state import with_states
from placeit.backends.torch.tracing import quiet
from placeit.core.errors import ModelError
from placeit.core.files import replacing
from placeit.core.root_logger import kept_root_logger
from placeit.core.telemetry import import_openvino

__all__ = ["converted_segment", "convertible_ops", "write_ir", "write_onnx"]

openvino = import_openvino()

_OPSET = 17
_RUNTIMES = {"openvino": "OpenVINO", "onnx": "ONNX Runtime"}


def write_onnx(model: Model, path: Path) -> None:
    """Write a PyTorch model as ONNX (opset 17), with the names of its inputs and outputs.

    This uses PyTorch's older exporter, which needs no other package. The exporter silently leaves out changes in place, so it
    gets the lowered program, which has none. State starts from its initial value, as everywhere.

    Raises:
        ModelError: the exporter has no ONNX op for a part of the program; the message names it.
        FileError: the file cannot be written.
    """
    with replacing(path) as temporary:
        try:
            _export_onnx(model, str(temporary))
        except _NotConvertedError as error:
            attempt = functools.partial(_converted, model)
            raise _conversion_error(model, "ONNX", error, "OpenVINO IR", ".xml", attempt) from error.__cause__


def write_ir(model: Model, path: Path) -> None:
    """Write a PyTorch model as OpenVINO IR (``.xml``, its weights beside it as ``.bin``), with its names and sizes.

    Raises:
        ModelError: OpenVINO has no op for a part of the program; the message names it.
        FileError: the files cannot be written.
    """
    try:
        converted = _converted(model)
    except _NotConvertedError as error:
        with tempfile.TemporaryDirectory() as folder:
            attempt = functools.partial(_export_onnx, model, f"{folder}/model.onnx")
            raise _conversion_error(model, "OpenVINO IR", error, "ONNX", ".onnx", attempt) from error.__cause__
    ir.write_ir(converted, path)


class _NotConvertedError(Exception):
    """A converter does not accept a program; the message is the reason."""


def _conversion_error(
    model: Model, form: str, error: _NotConvertedError, other: str, suffix: str, convert: Callable[[], object]
) -> ModelError:
    """Return the error for a model that cannot be written. It says whether the other format works, which ``convert`` tries."""
    try:
        convert()
    except _NotConvertedError as second:
        return ModelError(
            f"{model.path} can be written neither as {form}: {error}; nor as {other}: {second}. Compute these in another way."
        )
    return ModelError(f"Cannot write {model.path} as {form}: {error}. Compute it in another way, or write an {suffix} file.")


def _export_onnx(model: Model, target: str) -> None:
    with _conversion(), torch.no_grad():
        ends = ([spec.name for spec in specs] for specs in (model.inputs, model.outputs))
        _as_onnx(_module_of(model), _arguments(model), target, *ends)


def _as_onnx(
    module: GraphModule, arguments: tuple[torch.Tensor, ...], target: Any, inputs: list[str], outputs: list[str]
) -> None:
    """Write a module that maps tensors to a tuple of tensors as ONNX, with the given names of its inputs and outputs."""
    for node in module.graph.nodes:
        node.target = _FOR_ONNX.get(node.target, node.target)
    module.recompile()
    torch.onnx.export(module, arguments, target, input_names=inputs, output_names=outputs, opset_version=_OPSET, dynamo=False)


def converted_segment(model: Model, form: Format, ops: Sequence[int], enter: Sequence[int], leave: Sequence[int]) -> Any:
    """Cut a part out of a PyTorch model in another format; see :meth:`placeit.backends.base.Model.segment`.

    Args:
        model: the model.
        form: ``openvino`` for an ``openvino.Model``, or ``onnx`` for an :class:`placeit.backends.onnx_external.OnnxFile`.
        ops: op numbers of the part, ascending.
        enter: tensors that it reads from outside.
        leave: tensors that other parts read.

    Raises:
        ModelError: the format has no op for a part of the program, which the message names; or sizes are open.
    """
    _check_sizes(model)
    graph, values = model.graph, model.random_inputs()
    names = {spec.op: spec.name for spec in model.inputs}
    read = [torch.ones(graph.tensor_shapes[t], dtype=getattr(torch, graph.tensor_dtypes[t])) for t in enter]
    own = [torch.from_numpy(values[names[graph.names[v]]]) for v in ops if graph.names[v] in names]
    try:
        with _conversion(), torch.no_grad():
            module, arguments = model.segment("torch", ops, enter, leave), (*read, *own)
            if form == "openvino":
                return _as_openvino(module, arguments, model.name)
            (end,), written = module.graph.find_nodes(op="output"), io.BytesIO()
            inputs, outputs = ([f"{at}{i}" for i in range(n)] for at, n in (("i", len(arguments)), ("o", len(end.args[0]))))
            _as_onnx(module, arguments, written, inputs, outputs)
            return OnnxFile(written.getvalue(), tuple(inputs), tuple(outputs))
    except _NotConvertedError as error:
        raise ModelError(
            f"A part of {model.path}, from '{graph.names[ops[0]]}' on, cannot be converted for {_RUNTIMES[form]}: {error}. "
            "Compute it in another way."
        ) from error.__cause__


def convertible_ops(model: Model, form: Format) -> frozenset[str]:
    """Return the names of the ops that the converter to a format knows, and of the inputs and outputs."""
    graph = model.graph
    with contextlib.suppress(ModelError):
        converted_segment(model, form, range(len(graph)), [], [])
        return frozenset(graph.names)
    found = set[str]()
    for v, (name, kind) in enumerate(zip(graph.names, graph.kinds, strict=True)):
        enter = np.unique(graph.edge_tensor[graph.edges[:, 1] == v]).tolist()
        leave = np.flatnonzero(graph.tensor_op == v).tolist()
        with contextlib.suppress(ModelError):
            if kind not in ("Parameter", "Result"):
                converted_segment(model, form, [v], enter, leave)
            found.add(name)
    return frozenset(found)


def _converted(model: Model) -> Any:
    """Return the model as an ``openvino.Model``."""
    with _conversion(), torch.no_grad():
        converted = _as_openvino(_module_of(model), _arguments(model), model.name)
        for specs, ports in ((model.inputs, converted.inputs), (model.outputs, converted.outputs)):
            for spec, port in zip(specs, ports, strict=True):
                port.get_tensor().set_names({spec.name})
        return converted


def _as_openvino(module: GraphModule, arguments: tuple[torch.Tensor, ...], name: str) -> Any:
    """Return a module that maps tensors to a tuple of tensors as an ``openvino.Model``, with inputs and outputs in order."""
    module, states = with_states(module)
    arguments += (*states.values(),)
    inputs: list[str] = []
    for number, node in enumerate(module.graph.find_nodes(op="placeholder")):
        node.name = node.target = f"argument_{number}"  # OpenVINO's converter fails at an input that is called 'input'
        inputs.append(node.name)
    module, positions = _without_duplicate_outputs(module)
    converted = openvino.convert_model(export(module, arguments, {}, name))
    parameters = {called: port.get_node() for port in converted.inputs for called in port.get_names()}
    for called, value in zip(inputs, arguments, strict=True):
        if called not in parameters:  # an input that no op reads
            kind = openvino.Type.bf16 if value.dtype is torch.bfloat16 else openvino.Type(value.numpy().dtype)
            parameters[called] = openvino.opset13.parameter(list(value.shape), kind, called)
    ordered = [parameters[called] for called in inputs]
    converted = openvino.Model(converted.get_results(), converted.get_sinks(), ordered, name)
    converted.reshape({at: list(value.shape) for at, value in enumerate(arguments)})
    converted = _with_outputs(converted, positions)
    first, last = (ports[len(ports) - len(states) :] for ports in (converted.get_parameters(), converted.get_results()))
    for (called, value), parameter, result in zip(states.items(), first, last, strict=True):
        initial = openvino.opset13.constant(as_array(value), parameter.get_element_type())
        make_state(converted, called, parameter, result, initial)
    return converted


def _without_duplicate_outputs(module: GraphModule) -> tuple[GraphModule, list[int]]:
    """Remove outputs that equal an earlier one: OpenVINO's converter loses their names.

    Returns:
        The module, changed in place, and for each of its former outputs the present position.
    """
    (end,) = module.graph.find_nodes(op="output")
    values = list(end.args[0])
    positions = {value: position for position, value in enumerate(dict.fromkeys(values))}
    end.args = (tuple(positions),)
    module.recompile()
    return module, [positions[value] for value in values]


def _with_outputs(model: Any, positions: Sequence[int]) -> Any:
    """Return an ``openvino.Model`` with outputs from given positions, which may occur several times.

    A tensor that is also an input or another output is copied, since one tensor has one name in a compiled model of OpenVINO.
    """
    results = model.get_results()
    ends: list[Any] = []
    seen: set[tuple[str, int]] = set()
    for at in positions:
        value = results[at].input_value(0)
        key = value.get_node().get_friendly_name(), value.get_index()
        if key in seen or value.get_node().get_type_name() == "Parameter":
            value = openvino.opset13.convert(value, value.get_element_type().get_type_name()).output(0)
            ends.append(openvino.opset13.result(value))
        else:
            ends.append(results[at])
        seen.add(key)
    return openvino.Model(ends, model.get_sinks(), model.get_parameters(), model.get_friendly_name())


def _module_of(model: Model) -> GraphModule:
    """Return a model as a module, from its inputs to a tuple of its outputs. Raises ModelError if sizes are open."""
    _check_sizes(model)
    module: GraphModule = model.segment("torch", range(len(model.graph)), [], [])
    return module


def _check_sizes(model: Model) -> None:
    if model.has_open_sizes:
        raise ModelError(f"{model.path} has open sizes, and PyTorch programs are written at one size: give one for each input.")


def _arguments(model: Model) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(value) for value in model.random_inputs().values())


def _to_copy(value: torch.Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    return value.to(dtype or value.dtype)


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
"""Functions for ops that lowering makes and the ONNX exporter does not know."""


_REASON_MARKS = ("not supported", "Unsupported", "unrecognized", "No conversion rule", "Conversion is failed")
"""Texts in the line of a converter's message that names the op."""


@contextlib.contextmanager
def _conversion() -> Iterator[None]:
    """Run a converter in the block: raise _NotConvertedError with a reason of one line, and suppress other output.

    Only one thread converts at a time.
    """
    try:
        with quiet(), kept_root_logger(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            printing = torch._C._jit_onnx_log
            torch._C._jit_onnx_log = lambda *_: None  # the ONNX exporter prints the whole program before it raises an error
            try:
                yield
            finally:
                torch._C._jit_onnx_log = printing
    except (*FAILURES, AttributeError) as error:
        lines = [line.strip("- ") for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        reason = next((line for line in lines if any(sign in line for sign in _REASON_MARKS)), lines[-1])
        reason = reason.partition(" Please ")[0].rstrip(".")
        if isinstance(error, LookupError):
            reason = f"there is nothing for {reason}"
        raise _NotConvertedError(reason) from error
