"""ONNX and OpenVINO IR files, through OpenVINO."""

from __future__ import annotations

import contextlib
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.backends import base
from placeit.backends.base import Arrays, TensorSpec
from placeit.backends.onnx.file import ROUNDING_OPS, check_external_files, check_nodes, find_ops, node_names
from placeit.backends.openvino.flops import bounded_shape
from placeit.backends.openvino.graph import (
    build_graph,
    constants,
    dtype_name,
    fix_shapes,
    inseparable_ops,
    name_nodes,
    upper_bound_ops,
)
from placeit.backends.openvino.inputs import OpenSizesError, resolve_shapes, with_suggestion
from placeit.backends.openvino.ir import weights_end
from placeit.backends.openvino.segment import channels_last_tensors, extract
from placeit.backends.openvino.values import allowed_values
from placeit.backends.values import draw
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import FileError, ModelError
from placeit.core.files import check_regular
from placeit.core.telemetry import import_openvino
from placeit.devices.onnxruntime import has_onnxruntime
from placeit.devices.openvino import openvino_core

__all__ = ["FAILURES", "OpenVinoModel", "TensorSpec", "check_readable", "describe", "load", "relu_chain"]

openvino = import_openvino()

# The first use of this table of types fills it, and lets go of the GIL in the middle: two threads that come to it at the same
# moment, such as two that compile segments, wait for each other for ever (OpenVINO 2026.4). So it is filled here.
openvino.Type.i64.to_dtype()

FAILURES = (
    RuntimeError,
    # C++ exceptions that the bindings translate, and text that is not UTF-8
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    openvino.frontend.GeneralFailure,
    openvino.frontend.InitializationFailure,
    openvino.frontend.NotImplementedFailure,
    openvino.frontend.OpConversionFailure,
    openvino.frontend.OpValidationFailure,
    openvino.tools.ovc.error.Error,
)
"""What OpenVINO raises when it reads or converts a model."""


@dataclass(frozen=True, eq=False, kw_only=True)
class OpenVinoModel(base.Model):
    """A model file that OpenVINO reads, with its task graph.

    Attributes:
        ov_model: the ``openvino.Model``, with static inputs and unique friendly names, which are the op names of ``graph``.
    """

    ov_model: Any

    @cached_property
    def channels_last(self) -> frozenset[int]:
        """Tensors of the graph that should cross a segment's border in channels-last layout."""
        return channels_last_tensors(self.graph)

    def statistics(self) -> dict[str, int | float]:
        """Count what the model is made of.

        Returns:
            ``ops`` and ``edges`` of the task graph; ``layers`` and ``layer_edges`` with every constant and its conversions
            counted as well, as the HSDAG paper does (Table 1; it counts a model with weights in float16, where each is a
            constant and a conversion); ``flops`` of one inference; ``parameters`` (floating-point or quantised weights)
            and ``parameter_bytes`` of all constants, each counted once.
        """
        nodes = self.ov_model.get_ordered_ops()
        weights = constants(self.ov_model)
        return {
            "ops": len(self.graph),
            "edges": len(self.graph.edges),
            "layers": len(nodes),
            "layer_edges": sum(node.get_input_size() for node in nodes),
            "flops": float(self.graph.flops.sum()),
            "parameters": sum(math.prod(node.get_output_shape(0)) for node in weights if _is_weight(node)),
            "parameter_bytes": sum(node.get_byte_size() for node in weights),
        }

    def random_inputs(self, seed: int = 0) -> dict[str, NDArray[Any]]:
        """Draw inputs that are valid for the model, by input name.

        Inputs whose values some op restricts (rows of a table, places along an axis, axes, lengths of sequences) are uniform
        over what it allows. Other floating-point inputs are standard normal; other integers are ones, which is right for an
        attention mask; other booleans are true.
        """
        rng = np.random.default_rng(seed)
        parameters = {node.get_friendly_name(): node for node in self.ov_model.get_parameters()}
        drawn: dict[str, NDArray[Any]] = {}
        for spec in self.inputs:
            dtype = np.dtype(spec.dtype)
            allowed = allowed_values(parameters[spec.op])
            if allowed is not None:
                drawn[spec.name] = draw(rng, allowed, spec.shape, spec.dtype)
            elif dtype.kind == "f":
                drawn[spec.name] = rng.standard_normal(spec.shape).astype(dtype)
            else:
                drawn[spec.name] = np.ones(spec.shape, dtype)
        return drawn

    @property
    def formats(self) -> frozenset[base.Format]:
        """OpenVINO's only; see :meth:`prepared`."""
        return frozenset({"openvino"})

    def segment(self, form: base.Format, ops: Sequence[int], enter: Sequence[int], leave: Sequence[int]) -> Any:  # noqa: ARG002
        """Cut a part out as an ``openvino.Model``; see :meth:`placeit.backends.base.Model.segment`."""
        return extract(self.ov_model, self.graph, ops, enter, leave, self.channels_last)

    def prepared(self, cluster: Cluster, graph: str = "") -> base.Model:
        """Read the ONNX file for ONNX Runtime, if that drives one of the devices. Raises DeviceError."""
        if all(device.kind != "ort" for device in cluster.devices):
            return self
        from placeit.backends.onnx.load import for_onnxruntime

        return for_onnxruntime(self, cluster, graph)

    def whole_file(self, form: base.Format) -> base.Model:
        """Return the model that ONNX Runtime reads from the same file; else itself."""
        if form != "onnx" or not self.is_onnx:
            return self
        from placeit.backends.onnx.whole import WholeOnnxModel

        return WholeOnnxModel.of_file(self, [port.get_names() for port in self.ov_model.outputs])

    @property
    def is_onnx(self) -> bool:
        """Whether it was read from an ONNX file."""
        return self.path.suffix.lower() == ".onnx"

    @cached_property
    def rounds(self) -> bool:
        """Whether its ONNX file has operators of quantised numbers, such as dynamic quantisation writes."""
        return self.is_onnx and bool(find_ops(self.path, ROUNDING_OPS))

    def reference(self, device: Device | None, precision: str) -> Callable[[Arrays], dict[str, NDArray[np.generic]]]:
        """Compile the whole model with OpenVINO, or open it in ONNX Runtime where that says what the operators are.

        Raises:
            DeviceError: neither can run it.
        """
        from placeit.devices.openvino import compile_model, explaining

        if self.rounds and has_onnxruntime():
            return self.whole_file("onnx").reference(device, precision)

        target = device if device is not None and device.kind == "openvino" else Device("CPU", address=Address("CPU"))
        compiled = compile_model(self.ov_model, target, precision)

        def run(inputs: Arrays) -> dict[str, NDArray[np.generic]]:
            with explaining(f"The model cannot be run whole on {target.name}"):
                # a new request starts from the model's initial state, as every request of an executor does
                answer = compiled.create_infer_request().infer([inputs[spec.name] for spec in self.inputs])
            return {spec.name: np.array(answer[i]) for i, spec in enumerate(self.outputs)}

        return run

    def chain(self, elements: int, hops: int) -> OpenVinoModel:
        """Build a chain of ``hops`` ReLUs over ``float32[1, elements]``."""
        return relu_chain(elements, hops)


def relu_chain(elements: int, hops: int) -> OpenVinoModel:
    """Build a chain of ``hops`` ReLUs over ``float32[1, elements]``."""
    ops = openvino.opset13
    parameter = ops.parameter([1, elements], openvino.Type.f32, name="in")
    value = parameter.output(0)
    for hop in range(hops):
        value = ops.relu(value, name=f"hop {hop}").output(0)
    model = openvino.Model([ops.result(value, name="out")], [parameter], "chain")
    return replace(describe(model, Path("chain")), uniform=True)


def load(
    path: str | Path, *, input_shapes: Mapping[str, Sequence[int]] | None = None, batch: int | None = None
) -> OpenVinoModel:
    """Read an ONNX file (``.onnx``) or an OpenVINO IR (``.xml`` with its ``.bin``).

    Weights stay in the precision of the file.

    Args:
        path: the file.
        input_shapes: sizes by input name, for inputs that the file leaves open, or to change.
        batch: the first size of every input where the file leaves it open.

    Raises:
        FileError: the file is missing or cannot be read.
        ModelError: it holds no model, a damaged one, or one that OpenVINO cannot read; or a size is left open.
    """
    path = Path(path)
    check_readable(path)
    shapes = {name: tuple(int(size) for size in shape) for name, shape in (input_shapes or {}).items()}
    read = _read_ir if path.suffix.lower() == ".xml" else _convert_onnx
    with _explaining(path):
        try:
            return describe(read(path, shapes, batch), path)
        except OpenSizesError as error:
            raise with_suggestion(error, lambda more: read(path, {**shapes, **more}, None), _useful_line) from None


def check_readable(path: Path) -> None:
    """Raise FileError or ModelError if a file cannot be read, or is no model by its first bytes or its other files."""
    for file in (path, path.with_suffix(".bin")) if path.suffix.lower() == ".xml" else (path,):
        weights = f", the weights of {path}" if file != path else ""
        check_regular(file)
        try:
            with file.open("rb") as stream:
                head = stream.read(4)
        except OSError as error:
            raise FileError(f"Cannot read {file}{weights}: {error.strerror or error}.") from error
        if not head and not weights:
            raise ModelError(f"{file} is empty; it contains no model.")
        if head == b"PK\x03\x04":
            # the converter would unpickle it
            raise ModelError(f"{file} is a zip archive, as PyTorch writes them, and not a model to read: export it to ONNX.")
    if path.suffix.lower() == ".onnx":
        check_external_files(path)


@contextlib.contextmanager
def _explaining(path: Path) -> Iterator[None]:
    """Turn what OpenVINO raises into a ModelError of one paragraph."""
    logger = logging.getLogger()
    level, filters, handlers = logger.level, logger.filters[:], logger.handlers[:]
    try:
        yield
    except MemoryError as error:
        raise ModelError(f"{path} needs more memory than is available.") from error
    except FAILURES as error:
        if "std::bad_alloc" in str(error):
            raise ModelError(f"{path} needs more memory than is available.") from error
        raise ModelError(f"Cannot read a model from {path}: {_useful_line(str(error))}") from error
    finally:
        # the converter changes the root logger, and leaves it changed when it fails
        logger.setLevel(level)
        logger.filters[:], logger.handlers[:] = filters, handlers


_NOISE = re.compile(
    r"Exception from |Check '|FrontEnd API failed|Model wasn't fully converted|Summary:|-- .* with a message:|While validating|"
    r"\[ONNX Frontend\] Conversion failed|(Converting|Loading) input model$|get_inputs$|Shape inference input shapes|"
    r".*CALLBACK HAS THROWN: (Check '|Exception from )"
)
_OP = re.compile(r"While validating ONNX node '<Node\((?P<kind>\w+)\): (?P<name>[^>]*)>'")


def _useful_line(message: str) -> str:
    """Pick the line that says what is wrong from a message made of nested C++ checks, and name the op it is about."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    best = next((line for line in lines if not _NOISE.match(line)), lines[-1] if lines else "OpenVINO does not say why")
    if best.startswith("Unable to read the model"):
        best = "OpenVINO does not recognise it as a model"
    elif "codec can't decode" in best:
        best = "a name in it is not UTF-8 text"
    op = _OP.search(message)
    where = f"op '{op['name']}' ({op['kind']}): " if op else ""
    return where + best.removeprefix("-- ").rstrip(".") + "."


def _read_ir(path: Path, shapes: Mapping[str, tuple[int, ...]], batch: int | None) -> Any:
    weights = path.with_suffix(".bin")
    _check_weights(path, weights)
    model = openvino_core().read_model(str(path), str(weights))
    inputs = {_tensor_name(port, port.get_node()): port for port in model.inputs}
    partial = {name: port.get_partial_shape() for name, port in inputs.items()}
    wanted = resolve_shapes(path, partial, shapes, batch)
    if any(wanted[name] != shape for name, shape in partial.items()):
        model.reshape({port: wanted[name] for name, port in inputs.items()})
    fix_shapes(model)
    name_nodes(model, keep=lambda _: True)
    return model


def _check_weights(path: Path, weights: Path) -> None:
    """Compare the size of the weights with what the IR says, because a reader would take any file that is long enough."""
    expected, actual = weights_end(path), weights.stat().st_size
    if expected not in (None, actual):
        raise ModelError(
            f"{weights} has {actual} bytes where {path} expects {expected}: it is damaged or belongs to another model."
        )


def _convert_onnx(path: Path, shapes: Mapping[str, tuple[int, ...]], batch: int | None) -> Any:
    front_end = openvino.frontend.FrontEndManager().load_by_framework("onnx")
    if not front_end.supported(str(path)):
        # the converter would try other formats, and print what each of them says
        raise ModelError(f"Cannot read a model from {path}: OpenVINO does not recognise it as an ONNX model.")
    check_nodes(path)
    source = front_end.load(str(path))
    partial = {place.get_names()[0]: source.get_partial_shape(place) for place in source.get_inputs()}
    wanted = resolve_shapes(path, partial, shapes, batch)
    del source, front_end
    if any(wanted[name] != shape for name, shape in partial.items()):
        # with sizes known, the converter folds what is computed from them, and reads models that it rejects otherwise
        model = openvino.convert_model(str(path), input=list(wanted.items()))
    else:
        model = openvino.convert_model(str(path))
    _join_twins(model, wanted)
    _rename_inputs(model, wanted)
    for port in model.inputs:
        if not port.get_names() & wanted.keys():
            name = _tensor_name(port, port.get_node())
            raise ModelError(
                f"{path}: the tensor '{name}' is read before any op produces it, and is not an input of the model."
            )
    fix_shapes(model)
    own_names = node_names(path)
    name_nodes(model, keep=own_names.__contains__)
    return model


def _join_twins(model: Any, inputs: Mapping[str, Any]) -> None:
    """Undo what the converter makes of an input that is an output as well: it reads the output from a second input.

    Args:
        model: an ``openvino.Model``; it is changed.
        inputs: those in the file, by name. A second input has the friendly name of the first, but not its tensor name.
    """
    first = {name: port for port in model.inputs for name in port.get_names()}
    for twin in model.inputs:
        name = twin.get_node().get_friendly_name()
        if name in inputs and name in first and not twin.get_names() & inputs.keys():
            parameter = first[name].get_node()
            for reader in twin.get_target_inputs():
                reader.replace_source_output(parameter.output(0))
                if reader.get_node().get_type_name() == "Result":  # it keeps the name that the second input had
                    reader.get_node().output(0).get_tensor().set_names({name})
            model.remove_parameter(twin.get_node())
            parameter.set_friendly_name(name)


def _rename_inputs(model: Any, inputs: Mapping[str, Any]) -> None:
    """Give inputs their names back where the converter has left out ops that do nothing, and given them the outputs' names.

    Args:
        model: an ``openvino.Model``; it is changed.
        inputs: those in the file, by name, with their shapes.
    """
    known = {name for port in model.inputs for name in port.get_names()}
    lost = [name for name in inputs if name not in known]
    for port in model.inputs:
        shape, names = port.get_partial_shape(), port.get_names()
        if names & inputs.keys() or not names:
            continue
        name = next((name for name in lost if inputs[name] == shape), None)
        if name is None:
            continue
        lost.remove(name)
        for reader in port.get_target_inputs():
            if reader.get_node().get_type_name() == "Result":
                ours = reader.get_node().output(0).get_tensor()
                ours.set_names(ours.get_names() or names)
        port.get_tensor().set_names({name})
        port.get_node().set_friendly_name(name)


_NUMPY_DTYPE = re.compile(r"bool|float(16|32|64)|u?int(8|16|32|64)")


def describe(model: Any, path: Path) -> OpenVinoModel:
    """Wrap an ``openvino.Model`` whose inputs are static and whose friendly names are unique.

    Raises:
        ModelError: a tensor's type or size cannot be handled.
    """
    graph = build_graph(model, path)
    inputs = tuple(_spec(port, port.get_node()) for port in model.inputs)
    outputs = tuple(_spec(port, port.get_node()) for port in model.outputs)
    for what, specs in (("input", inputs), ("output", outputs)):
        for spec in specs:
            if not _NUMPY_DTYPE.fullmatch(spec.dtype):
                raise ModelError(
                    f"{path}: {what} '{spec.name}' has type {spec.dtype}, which NumPy arrays cannot hold: convert it to "
                    "another type inside the model."
                )
    bounded = upper_bound_ops(model, graph.index)
    return OpenVinoModel(
        path=path,
        graph=graph,
        ov_model=model,
        inputs=inputs,
        outputs=outputs,
        bounded=bounded,
        together=inseparable_ops(model, graph, bounded),
    )


def _spec(port: Any, node: Any) -> TensorSpec:
    shape = bounded_shape(port.get_partial_shape())
    assert shape is not None  # the graph was built, so every tensor has a bound  # noqa: S101
    return TensorSpec(_tensor_name(port, node), node.get_friendly_name(), shape, dtype_name(port.get_element_type()))


def _tensor_name(port: Any, node: Any) -> str:
    names = port.get_names()
    friendly = node.get_friendly_name()
    return str(friendly if friendly in names or not names else min(names))


def _is_weight(constant: Any) -> bool:
    kind = constant.get_element_type()
    return bool(kind.is_real() or kind.bitwidth <= 8)
