"""The manifest of a bundle, ``bundle.json``: the placement, the content of the bundle's files, and their digests.

Its fields are described in docs/bundles.md.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, TypeAlias, get_args

import numpy as np

from placeit.backends.base import Format, TensorSpec
from placeit.backends.bundle.files import BundleFiles, Digest
from placeit.backends.checking import numpy_can_hold
from placeit.backends.folder import NAMES
from placeit.core import problem_checks as checks
from placeit.core.errors import PlaceitError
from placeit.core.graph import OpGraph
from placeit.core.placement import Placement
from placeit.core.records import Within, check_shape, parsed, plain, record
from placeit.core.sizes import LARGEST, Limits, fits

__all__ = ["MANIFEST", "BundledSegment", "Manifest", "Needed", "Port", "Sample", "read_manifest"]

MANIFEST = "bundle.json"
VERSION = 1
_MAX_BYTES = 1 << 24  # most bytes of a manifest, since parsing JSON takes many times its size
_WRONG = (ValueError, LookupError, OverflowError)
"""Errors that reading a manifest with unexpected content raises."""

_Shape: TypeAlias = tuple[int, ...]
_NotNegative: TypeAlias = Annotated[float, Within(0, sys.float_info.max)]


@dataclass(frozen=True)
class Needed:
    """A device of the placement, on the machine on which the bundle was built.

    Attributes:
        name: name in the placement.
        address: address of the hardware, in the spelling of device names (``CPU@0-3``, ``GPU.0``, ``ort:CPU``).
        full_name: name that its driver reports.
        driver: versions of its runtime and its driver.
        cores: number of cores of a core set; 0 for other devices.
        format: format of its segments.
        weight_bytes: bytes of weights that it has to hold.
        emulated: whether it is an emulated device, which is slowed down on purpose.
    """

    name: str
    address: str
    full_name: str
    driver: str
    cores: int
    format: Format
    weight_bytes: float
    emulated: bool = False


Port = int | str
"""An input or output of a segment: the number of a tensor of the task graph, or the name of an input or output of the model."""


@dataclass(frozen=True)
class BundledSegment:
    """A segment that was cut out of the model.

    Attributes:
        ops: numbers of its ops in the task graph, ascending.
        format: format of its files.
        files: the program, and its weights if they are in a separate file.
        inputs: the inputs, in the order of the program.
        outputs: the outputs, in the order of the program.
        names: names of these inputs and outputs in the program, followed by the names of states, if its runtime finds them by
            name; else empty.
    """

    ops: tuple[int, ...]
    format: Format
    files: tuple[str, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


@dataclass(frozen=True)
class Sample:
    """Inputs, and the outputs of the uncut model for them: files in NumPy's format (``.npy``), by name of input or output."""

    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclass(frozen=True, eq=False, kw_only=True)
class Manifest:
    """The content of a manifest.

    Attributes:
        name: name of the model.
        versions: versions of placeit and of the runtimes that built the bundle, by package.
        precision: precision in which devices compute.
        tolerance: largest accepted relative output error.
        devices: the devices of the placement.
        model: hash of the model's task graph, as in the placement's file.
        inputs: inputs of the model, in its order.
        outputs: outputs of the model, in its order.
        graph: task graph with an op for each part that no replica divides, and one for each input and output of the model.
        channels_last: tensors of ``graph`` that are stored channels-last between segments.
        limits: least and largest sizes of the tensors of ``graph`` with open sizes.
        segments: the segments.
        placement: placement of the ops of ``graph``, with its segments and replicas.
        seconds: measured seconds of each op on each device, None where it does not run; None if nothing was measured.
        links: measured links between devices: source, destination, latency in seconds, bandwidth in bytes per second. A
            bandwidth that is too high to measure is infinite, and null in the file.
        host: measured seconds that the host adds to a request, on each device alone, and on several; empty if nothing was
            measured.
        samples: samples for checking outputs.
        files: digests of all other files of the bundle.
    """

    name: str
    versions: Mapping[str, str]
    precision: str
    tolerance: float
    devices: tuple[Needed, ...]
    model: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    graph: OpGraph
    channels_last: frozenset[int]
    limits: Mapping[int, Limits]
    segments: tuple[BundledSegment, ...]
    placement: Placement
    seconds: tuple[tuple[float | None, ...], ...] | None
    links: tuple[tuple[str, str, float, float], ...]
    host: tuple[float, ...]
    samples: tuple[Sample, ...]
    files: Mapping[str, Digest]

    def to_json(self) -> str:
        """Return the content of the file, with a digest of itself."""
        graph = self.graph
        ops = zip(graph.names, graph.kinds, graph.flops.tolist(), graph.param_bytes.tolist(), strict=True)
        columns = (graph.tensor_op.tolist(), graph.tensor_port.tolist(), graph.tensor_bytes.tolist())
        tensors = zip(*columns, graph.tensor_shapes, graph.tensor_dtypes, strict=True)
        edges = np.column_stack([graph.edges, graph.edge_tensor]).tolist()
        changed = {
            "graph": _Graph(
                tuple(_Op(*op) for op in ops),
                tuple(_Tensor(*tensor, self.limits.get(t)) for t, tensor in enumerate(tensors)),
                tuple(edges),
                tuple(sorted(self.channels_last)),
                graph.shared,
            ),
            "placement": self.placement.to_dict(),
            "links": tuple((a, b, latency, rate if math.isfinite(rate) else None) for a, b, latency, rate in self.links),
        }
        data = plain(_File(format="placeit-bundle", version=VERSION, **_same_fields(self) | changed))
        return json.dumps(data | {"digest": _digest(data)}, indent=1, allow_nan=False) + "\n"


@dataclass(frozen=True)
class _Op:
    name: str
    kind: str
    flops: float
    weight_bytes: float


@dataclass(frozen=True)
class _Tensor:
    op: int
    port: int
    bytes: float
    shape: _Shape
    dtype: str
    limits: Limits | None = None


@dataclass(frozen=True)
class _Graph:
    ops: tuple[_Op, ...]
    tensors: tuple[_Tensor, ...]
    edges: tuple[tuple[int, int, int], ...]  # producer, consumer, tensor
    channels_last: tuple[int, ...]
    shared: tuple[tuple[_NotNegative, tuple[int, ...]], ...] = ()  # bytes of a weight, and the ops that read it


@dataclass(frozen=True, kw_only=True)
class _File:
    """The content of the file, except for its digest. Fields are described in :class:`Manifest`."""

    format: str
    version: int
    name: str
    versions: Mapping[str, str]
    precision: str
    tolerance: _NotNegative
    devices: tuple[Needed, ...]
    model: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    graph: _Graph
    segments: tuple[BundledSegment, ...]
    placement: Mapping[str, Any]
    seconds: tuple[tuple[float | None, ...], ...] | None
    links: tuple[tuple[str, str, float, float | None], ...]
    host: tuple[_NotNegative, ...] = ()
    samples: tuple[Sample, ...]
    files: Mapping[str, Digest]


def read_manifest(files: BundleFiles) -> Manifest:
    """Read and check the manifest of a bundle.

    Raises:
        FileError: it is missing, damaged, edited, of a newer version, or contradicts itself.
    """
    try:
        raw = files.read(MANIFEST)
    except PlaceitError as error:
        if files.folder:
            model = f"nor a model ({', '.join(NAMES)})"
            raise files.wrong(f"the folder has neither {MANIFEST}, which 'placeit build' writes, {model}") from error
        raise files.wrong(f"it has no {MANIFEST}. A bundle is what 'placeit build' writes") from error
    if len(raw) > _MAX_BYTES:
        raise files.wrong(f"its {MANIFEST} has {len(raw)} bytes, and may have {_MAX_BYTES}")
    try:
        data = parsed(raw.tobytes())
    except ValueError as error:
        raise files.wrong(f"its {MANIFEST} is damaged: {error}. Copy it again, or build it anew") from error
    if not isinstance(data, dict) or data.get("format") != "placeit-bundle":
        raise files.wrong(f"its {MANIFEST} is not a bundle's")
    if data.get("version") != VERSION:
        made = data.get("versions", {}).get("placeit", "?") if isinstance(data.get("versions"), dict) else "?"
        raise files.wrong(
            f"its format has version {data.get('version')!r} (written by placeit {made}), and this placeit reads version "
            f"{VERSION}. Install a newer placeit, or build it with this one"
        )
    if data.pop("digest", None) != _digest(data):
        raise files.wrong(f"its {MANIFEST} was changed after it was built. Copy it again, or build it anew")
    try:
        return _manifest(data, files)
    except _WRONG as error:
        raise files.wrong(f"its {MANIFEST} contradicts itself ({error}). Build it anew") from error
    except PlaceitError as error:
        raise files.wrong(f"its {MANIFEST} contradicts itself: {str(error).rstrip('.')}. Build it anew") from error


def _digest(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _manifest(data: Mapping[str, Any], files: BundleFiles) -> Manifest:
    found = record(_File, data)
    # a bundle has one typical size of each input
    inputs, outputs = (tuple(replace(spec, shapes=()) for spec in specs) for specs in (found.inputs, found.outputs))
    graph = _graph(found.graph)
    for spec in (*inputs, *outputs):
        if graph.kinds[graph.index[spec.op]] not in ("Parameter", "Result") or not numpy_can_hold(spec.dtype):
            raise ValueError(f"'{spec.name}' is no input or output")
    named = {
        *(name for segment in found.segments for name in segment.files),
        *(name for sample in found.samples for name in (*sample.inputs.values(), *sample.outputs.values())),
    }
    if not found.samples or named != found.files.keys():
        raise ValueError("its list of files differs from the files of its segments and samples")
    for sample in found.samples:
        if sample.inputs.keys() != {spec.name for spec in inputs} or sample.outputs.keys() != {spec.name for spec in outputs}:
            raise ValueError("a sample has other inputs or outputs than the model")
    for form in (*(device.format for device in found.devices), *(segment.format for segment in found.segments)):
        if form not in get_args(Format):
            raise ValueError(f"'{form}' is no format of segments")
    placement = Placement.from_dict(found.placement, str(files.path))
    placement.for_ops(graph.names, [device.name for device in found.devices], graph.structure, graph.hash)
    if any(one.segments is None for one in placement.every):
        raise ValueError("the placement has no segments")
    if found.seconds is not None:
        check_shape("seconds", found.seconds, len(graph), len(found.devices))
    if len(found.host) not in (0, len(found.devices) + 1):
        raise ValueError("'host' has not a number for each device, and one for several")
    for spec in (*inputs, *outputs):
        _check_sizes(spec.shape, spec.limits)
    for one in found.graph.tensors:
        _check_sizes(one.shape, one.limits)
    changed = {
        "inputs": inputs,
        "outputs": outputs,
        "graph": graph,
        "channels_last": frozenset(found.graph.channels_last),
        "limits": {t: tensor.limits for t, tensor in enumerate(found.graph.tensors) if tensor.limits is not None},
        "placement": placement,
        "links": tuple((a, b, latency, math.inf if rate is None else rate) for a, b, latency, rate in found.links),
    }
    return Manifest(**_same_fields(found) | changed)


def _same_fields(found: Manifest | _File) -> dict[str, Any]:
    """Return the fields that a manifest and its file have in common."""
    names = {field.name for field in fields(Manifest)} & {field.name for field in fields(_File)}
    return {name: getattr(found, name) for name in names}


def _check_sizes(shape: _Shape, limits: Limits | None) -> None:
    if min(shape, default=0) < 0:
        raise ValueError(f"a shape is {shape}")
    if limits is not None and (not fits(shape, shape, limits) or any(low < 0 or high > LARGEST for low, high in limits)):
        raise ValueError(f"the shape {shape} is not within {limits}")


def _graph(found: _Graph) -> OpGraph:
    ops, tensors = found.ops, found.tensors
    edges = np.array(found.edges, np.int32).reshape(-1, 3)
    return OpGraph(
        names=tuple(op.name for op in ops),
        kinds=tuple(op.kind for op in ops),
        flops=np.array([op.flops for op in ops], np.float64),
        param_bytes=np.array([op.weight_bytes for op in ops], np.float64),
        tensor_op=np.array([one.op for one in tensors], np.int32),
        tensor_port=np.array([one.port for one in tensors], np.int32),
        tensor_bytes=np.array([one.bytes for one in tensors], np.float64),
        tensor_shapes=tuple(one.shape for one in tensors),
        tensor_dtypes=tuple(one.dtype for one in tensors),
        edges=np.ascontiguousarray(edges[:, :2]),
        edge_tensor=np.ascontiguousarray(edges[:, 2]),
        shared=checks.shared(found.shared, len(ops)),
    ).verify()
