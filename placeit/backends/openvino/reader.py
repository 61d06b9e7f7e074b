"""Read ONNX files and OpenVINO IR with OpenVINO."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from placeit.backends.onnx_external import front_end_source
from placeit.backends.onnx_file import (
    FOREIGN_OPS,
    check_external_files,
    check_inputs,
    check_nodes,
    external_files,
    find_ops,
    node_names,
    read_plain,
    unusual_parts,
)
from placeit.backends.openvino.context import check_positions, resolve_sizes
from placeit.backends.openvino.graph import fix_shapes, is_named, name_nodes, separate_transposed
from placeit.backends.openvino.inputs import NO_RULE, OpenSizesError, Resolved, Sizes, with_suggestion
from placeit.backends.openvino.ir import weights_end
from placeit.backends.openvino.last_logits import LogitsOption, keep_last_logits
from placeit.backends.openvino.model import OpenVinoModel, describe_fused, tensor_name
from placeit.backends.openvino.sized import Points, Sized, Typical
from placeit.backends.openvino.state import Kinds, StateOption, cache_pairs, fix_initial_states, keep_caches
from placeit.backends.openvino.weights import share_equal
from placeit.core.errors import FileError, ModelError, UsageError
from placeit.core.files import check_regular
from placeit.core.memory import trim_memory
from placeit.core.root_logger import kept_root_logger
from placeit.core.sizes import SizeRange
from placeit.core.telemetry import import_openvino
from placeit.devices.openvino import openvino_core

__all__ = ["FAILURES", "UNKNOWN_OPS", "check_readable", "load", "read"]

openvino = import_openvino()

FAILURES = (
    RuntimeError,
    # translated C++ exceptions, and UnicodeDecodeError for text that is not UTF-8
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
"""Errors that OpenVINO raises when it reads or converts a model."""
UNKNOWN_OPS = "OpenVINO does not know the ops "
"""Prefix of an error that names the ops which keep OpenVINO from reading a model."""
_MIN_MAPPED = 1 << 24  # least bytes of an ONNX file whose weights are mapped into memory


def load(
    path: str | Path,
    *,
    input_shapes: Mapping[str, Sequence[int | str | SizeRange]] | None = None,
    batch: int | None = None,
    sample_shapes: Mapping[str, Sequence[int]] | None = None,
    state: StateOption = None,
    logits: LogitsOption = "last",
    context: int | None = None,
) -> OpenVinoModel:
    """Read an ONNX file (``.onnx``) or an OpenVINO IR (``.xml`` with its ``.bin``).

    Weights stay in the precision of the file.

    Args:
        path: the file.
        input_shapes: sizes by input name, for inputs that the file leaves open, or to change. A range (``"32..512@128"``, or
            :class:`placeit.core.sizes.SizeRange`) stays open: the model runs with any size in it, and is placed for one.
        batch: the first size of every input, if the file leaves it open.
        sample_shapes: shapes of the inputs that the model is to run on, by name; used for sizes that nothing else gives.
        state: outputs that hold the next value of an input, by input: each pair becomes state of the model. ``"none"`` for no
            such state. By default, pairs are the caches that exporters call ``past_key_values.0.key`` and ``present.0.key``
            (:func:`placeit.backends.openvino.state.cache_pairs`), except for inputs whose shape is given.
        logits: tokens of a step for which a decoder with state computes logits: ``last`` or ``all``.
        context: number of tokens of the longest text of a decoder. It determines the shapes of all its inputs.

    Raises:
        UsageError: a sample does not fit an input with open sizes; or an input and an output cannot be one state.
        FileError: the file is missing or cannot be read.
        ModelError: the file holds no model, a damaged one, or one that OpenVINO cannot read; or a size is left open.
    """
    path = Path(path)
    check_readable(path)
    return read(path, Sizes.of(input_shapes, batch, sample_shapes, context), state, logits)


def read(path: Path, sizes: Sizes, state: StateOption = None, logits: LogitsOption = "last") -> OpenVinoModel:
    """Return the model in a file that :func:`check_readable` accepts. Raises UsageError and ModelError as :func:`load` does."""
    with _explaining(path):
        try:
            found = _read(path, sizes, state, logits)
        except OpenSizesError as error:
            if error.advised:
                raise

            def read_with(shapes: Mapping[str, tuple[int, ...]]) -> OpenVinoModel:
                return _read(path, replace(sizes, shapes={**sizes.shapes, **shapes}, batch=None, context=None), state, logits)

            raise with_suggestion(error, read_with, _useful_line) from None
    trim_memory()  # of reading the file, and of the copy in which ops were fused
    return found


def _read(path: Path, sizes: Sizes, state: StateOption, logits: LogitsOption) -> OpenVinoModel:
    read_file = _read_ir if path.suffix.lower() == ".xml" else _read_onnx
    found = read_file(path, sizes, state)
    model, typical = found.model, found.sizes.typical
    keep_caches(model, found.caches, path, batch=sizes.batch)
    fix_initial_states(model)
    check_positions(path, model)
    if logits == "last":
        keep_last_logits(model)
    fix_shapes(model)
    separate_transposed(model)
    share_equal(model)
    name_nodes(model, found.keep)
    fixed = (None,) * len(found.sizes.times)
    shapes = [next((typical[name] for name in port.get_names() if name in typical), fixed) for port in model.inputs]
    points = [Typical(point) for point in zip(*shapes, strict=True)] or [Typical()]
    if model.get_sinks():
        points = _with_state_lengths(model, points)
    described = describe_fused(model, path, Points(tuple(points), found.sizes.times))
    return replace(described, caches=found.caches, logits=logits, mapped=found.mapped)


def _with_state_lengths(model: Any, points: Sequence[Typical]) -> list[Typical]:
    """Return the typical sizes of a model with state, each with the length that the requests before it leave in the state.

    Raises:
        UsageError: one is in the middle of a text, and the typical sizes before it are not the requests before it.
        ModelError: the sizes of one do not fit each other, whatever the state.
    """
    found, length = list[Typical](), 0
    for point in points:
        found.append(Typical(point.inputs, length))
        try:
            length = Sized(model, found[-1]).state_after
        except ModelError as error:
            fitting = _fitting_length(model, point)
            if fitting is None:
                raise
            raise UsageError(
                f"The typical sizes of the inputs belong to a request after {fitting} steps of a text, and the requests before "
                f"leave {length}: give typical sizes for the requests before it as well, which need not count. A "
                "token after 128 others is --input-shape input_ids:1,1..512@128x0/1 --input-shape mask:1,1..512@128/129."
            ) from error
    return found


def _fitting_length(model: Any, point: Typical) -> int | None:
    """Return a length of the state with which the inputs' sizes fit each other; None if there is no such length."""
    sizes = sorted({size for shape in point.inputs for size in shape or ()})
    for length in sorted({0, *(more - less for more in sizes for less in sizes if more > less)}):
        with contextlib.suppress(ModelError):
            Sized(model, Typical(point.inputs, length))
            return length
    return None


@dataclass(frozen=True)
class _FromFile:
    """The content of a file.

    Attributes:
        model: an ``openvino.Model``.
        sizes: shapes of the inputs that do not become state.
        caches: outputs that become state, by the input whose next value they hold.
        keep: returns whether the name of a node is from the file, even if it looks generated.
        mapped: whether the weights of an ONNX file are mapped into memory.
    """

    model: Any
    sizes: Resolved
    caches: dict[str, str]
    keep: Callable[[Any], bool]
    mapped: bool = False


def check_readable(path: Path, *, trust: bool = False) -> None:
    """Raise FileError or ModelError if a file, or a file of its weights, cannot be read or is clearly not a model.

    Args:
        path: the ONNX file or IR.
        trust: whether links may lead out of the model's folder (:func:`placeit.backends.onnx_file.check_external_files`).
    """
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
        check_external_files(path, trust=trust)
        check_inputs(path)


@contextlib.contextmanager
def _explaining(path: Path) -> Iterator[None]:
    """Convert errors of OpenVINO to a ModelError of one paragraph."""
    try:
        with kept_root_logger():
            yield
    except (MemoryError, *FAILURES) as error:
        if isinstance(error, MemoryError) or "std::bad_alloc" in str(error):
            raise ModelError(f"{path} needs more memory than is available.") from error
        raise ModelError(f"Cannot read a model from {path}: {_useful_line(str(error))}") from error


_NOISE = re.compile(
    r"Exception from |Check '|FrontEnd API failed|Model wasn't fully converted|Summary:|-- .* with a message:|While validating|"
    r"\[ONNX Frontend\] Conversion failed|(Converting|Loading) input model$|get_inputs$|Shape inference input shapes|"
    r".*CALLBACK HAS THROWN: (Check '|Exception from )"
)
_OP = re.compile(
    r"While validating (ONNX node '<Node\((?P<kind>\w+)\): (?P<name>[^>]*)>'|"
    r"node '(?:\w+::)?(?P<type>\w+) .*' with friendly_name '(?P<called>.*)')"
)


_DAMAGED = "damaged or cut off: compare its size with the original"


def _useful_line(message: str) -> str:
    """Return the line that states the cause in a message of nested C++ checks, after the name of the op."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    unknown = next((line for line in lines if line.startswith(f"-- {NO_RULE}")), None)
    if unknown is not None:  # the first error may be about a Constant that only the unknown op can read
        return f"{UNKNOWN_OPS}{unknown.removeprefix(f'-- {NO_RULE} for operations:').strip().rstrip('.')}."
    best = next((line for line in lines if not _NOISE.match(line)), lines[-1] if lines else "OpenVINO does not say why")
    if best.startswith("Unable to read the model"):
        best = "OpenVINO does not recognise it as a model"
    elif best == "Model can't be parsed":
        best = f"it is {_DAMAGED}"
    elif "codec can't decode" in best:
        best = "a name in it is not UTF-8 text"
    op = _OP.search(message)
    where = f"op '{op['name'] or op['called']}' ({op['kind'] or op['type']}): " if op else ""
    return where + best.removeprefix("-- ").rstrip(".") + "."


def _read_ir(path: Path, sizes: Sizes, state: StateOption) -> _FromFile:
    weights = path.with_suffix(".bin")
    expected, actual = weights_end(path), weights.stat().st_size
    if expected not in (None, actual):  # OpenVINO accepts any file that is long enough
        raise ModelError(
            f"{weights} has {actual} bytes where {path} expects {expected}: it is damaged or belongs to another model."
        )
    model = openvino_core().read_model(str(path), str(weights))
    inputs = {tensor_name(port, port.get_node()): port for port in model.inputs}
    outputs = {tensor_name(port, port.get_node()): port for port in model.outputs}
    caches = _caches(_kinds(inputs), _kinds(outputs), sizes, state, path)
    partial = _resolvable({name: port.get_partial_shape() for name, port in inputs.items()}, caches, sizes)
    reads = [node.get_output_partial_shape(0) for node in model.get_ordered_ops() if node.get_type_name() == "ReadValue"]
    wanted = resolve_sizes(path, partial, sizes, [*reads, *(inputs[name].get_partial_shape() for name in caches)])
    if any(wanted.partial[name] != shape for name, shape in partial.items()):
        model.reshape({inputs[name]: shape for name, shape in wanted.partial.items()})
    return _FromFile(model, wanted, caches, _keeper(model, {node.get_friendly_name() for node in model.get_ops()}))


def _keeper(model: Any, names: Container[str]) -> Callable[[Any], bool]:
    """Return a function that tells whether the name of a node is one of the names in a file that was just read.

    A node that is made later may have such a name, too, from its number in this process (:func:`name_nodes`).
    """
    known, counts = {node.get_name() for node in model.get_ops()}, Counter(node.get_friendly_name() for node in model.get_ops())

    def keep(node: Any) -> bool:
        name = node.get_friendly_name()
        return name in names and (is_named(node) or (node.get_name() in known and counts[name] == 1))

    return keep


def _kinds(ports: Mapping[str, Any]) -> Kinds:
    return {name: (port.get_element_type(), port.get_partial_shape()) for name, port in ports.items()}


def _caches(inputs: Kinds, outputs: Kinds, sizes: Sizes, state: StateOption, path: Path) -> dict[str, str]:
    """Return the outputs that become state, by input; by default, inputs with sizes from the user are not among these."""
    excluded = {*sizes.shapes, *sizes.samples} if state is None else set()
    return cache_pairs({name: kind for name, kind in inputs.items() if name not in excluded}, outputs, state, path)


def _resolvable(partial: Mapping[str, Any], caches: Mapping[str, str], sizes: Sizes) -> dict[str, Any]:
    """Return the shapes of the inputs that are not caches, and of caches for which the user gives a shape."""
    return {name: shape for name, shape in partial.items() if name not in caches or name in sizes.shapes}


def _read_onnx(path: Path, sizes: Sizes, state: StateOption) -> _FromFile:
    if foreign := find_ops(path, FOREIGN_OPS):  # before OpenVINO reads their tables
        raise ModelError(f"Cannot read a model from {path}: {UNKNOWN_OPS}{', '.join(foreign)}.")
    front_end = openvino.frontend.FrontEndManager().load_by_framework("onnx")
    if not front_end.supported(str(path)):
        raise ModelError(f"Cannot read a model from {path}: it is not an ONNX model, or {_DAMAGED}.")
    check_nodes(path)
    mapped = _from_mapped(front_end, path, sizes, state)
    model, known, wanted, caches = mapped or _from_source(front_end, path, sizes, state)
    _join_twins(model, known)
    _rename_inputs(model, known)
    for port in model.inputs:
        if not port.get_names() & known.keys():
            name = tensor_name(port, port.get_node())
            raise ModelError(
                f"{path}: the tensor '{name}' is read before any op produces it, and is not an input of the model."
            )
    return _FromFile(model, wanted, caches, _keeper(model, node_names(path)), mapped is not None)


_Converted: TypeAlias = tuple[Any, dict[str, Any], Resolved, dict[str, str]]
"""A model; the shapes of all inputs of the file; the shapes of the inputs that do not become state; and the caches."""


def _indirect(path: Path) -> bool:
    """Return whether OpenVINO cannot read a file directly: it has local functions, say, or links to weights."""
    return unusual_parts(path) or any(file.is_symlink() for file in external_files(path))


def _from_source(front_end: Any, path: Path, sizes: Sizes, state: StateOption) -> _Converted:
    with front_end_source(read_plain(path)) if _indirect(path) else contextlib.nullcontext(str(path)) as file:
        return _converted(front_end, front_end.load(file), path, sizes, state)


def _from_mapped(front_end: Any, path: Path, sizes: Sizes, state: StateOption) -> _Converted | None:
    """Convert a large file with its weights mapped into memory, which saves two copies; None if that is not possible."""
    if path.stat().st_size < _MIN_MAPPED or path.is_symlink() or _indirect(path):
        return None
    with contextlib.suppress(*FAILURES, ModelError, FileError, OSError):  # then it is read without mapping
        proto = read_plain(path, in_place=True)
        with front_end_source(proto, links=True) as file:
            return _converted(front_end, front_end.load(file), path, sizes, state)
    return None


def _converted(front_end: Any, source: Any, path: Path, sizes: Sizes, state: StateOption) -> _Converted:
    def kinds(places: Iterable[Any]) -> Kinds:
        return {p.get_names()[0]: (source.get_element_type(p), source.get_partial_shape(p)) for p in places}

    places = {place.get_names()[0]: place for place in source.get_inputs()}
    inputs = kinds(places.values())
    caches = _caches(inputs, kinds(source.get_outputs()), sizes, state, path)
    partial = {name: shape for name, (_, shape) in inputs.items()}
    wanted = resolve_sizes(path, _resolvable(partial, caches, sizes), sizes, [partial[name] for name in caches])
    for name, shape in wanted.partial.items():
        if shape != partial[name]:  # some models can be read only with known sizes
            source.set_partial_shape(places[name], shape)
    return front_end.convert(source), partial | wanted.partial, wanted, caches


def _join_twins(model: Any, inputs: Mapping[str, Any]) -> None:
    """Let an output that is an input read this input again; the converter gives it a second input instead.

    Args:
        model: an ``openvino.Model``; it is changed.
        inputs: inputs of the file, by name. A second input has the friendly name of the first, but not its tensor name.
    """
    first = {name: port for port in model.inputs for name in port.get_names()}
    for twin in model.inputs:
        name = twin.get_node().get_friendly_name()
        if name in inputs and name in first and not twin.get_names() & inputs.keys():
            parameter = first[name].get_node()
            for reader in twin.get_target_inputs():
                reader.replace_source_output(parameter.output(0))
                if reader.get_node().get_type_name() == "Result":  # it keeps the name of the second input
                    reader.get_node().output(0).get_tensor().set_names({name})
            model.remove_parameter(twin.get_node())
            parameter.set_friendly_name(name)


def _rename_inputs(model: Any, inputs: Mapping[str, Any]) -> None:
    """Restore the names of inputs that have the name of an output, because the converter removed an op without effect.

    Args:
        model: an ``openvino.Model``; it is changed.
        inputs: shapes of the inputs of the file, by name.
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
