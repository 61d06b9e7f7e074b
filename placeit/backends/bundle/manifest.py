"""The manifest of a bundle, ``bundle.json``: the bundle's purpose, the content of its files, and their digests.

Its fields are described in docs/bundles.md.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from placeit.backends.base import Format, TensorSpec, numpy_can_hold
from placeit.backends.bundle.files import BundleFiles, Digest
from placeit.core.errors import PlaceitError
from placeit.core.graph import OpGraph
from placeit.core.placement import Placement
from placeit.core.sizes import LARGEST, Limits, fits

__all__ = ["MANIFEST", "BundledSegment", "Manifest", "Needed", "Port", "Sample", "read_manifest"]

MANIFEST = "bundle.json"
VERSION = 1
_LARGEST = 1 << 28  # most bytes of a manifest
_WRONG = (TypeError, ValueError, LookupError, AttributeError, OverflowError, RecursionError)
"""Errors of reading a manifest with unexpected content."""


@dataclass(frozen=True)
class Needed:
    """A device of the placement, as it was where the bundle was built.

    Attributes:
        name: name in the placement.
        address: address of the hardware, as device names spell it (``CPU@0-3``, ``GPU.0``, ``ort:CPU``).
        full_name: name by its driver.
        driver: versions of its runtime and its driver.
        cores: number of cores of a core set; 0 for other devices.
        format: format of its segments.
        weight_bytes: bytes of weights that it has to hold.
        emulated: whether it was slowed down on purpose.
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
"""An input or output of a segment: a tensor of the task graph by its number, or one of the model by its name."""


@dataclass(frozen=True)
class BundledSegment:
    """A segment, cut out of the model.

    Attributes:
        ops: numbers of its ops in the task graph, ascending.
        format: format of its files.
        files: the program, and its weights if they are a separate file.
        inputs: the inputs, in the order of the program.
        outputs: the outputs, in the order of the program.
        names: names of these inputs and outputs in the program, if its runtime finds them by name; else empty.
    """

    ops: tuple[int, ...]
    format: Format
    files: tuple[str, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


@dataclass(frozen=True)
class Sample:
    """Inputs of a sample, and the outputs of the uncut model for them, each a file of plain numbers, by name."""

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
        graph: task graph with an op for each part that no replica divides, and for each input and output of the model.
        channels_last: tensors of ``graph`` that are stored channels-last between segments.
        limits: least and largest sizes of the tensors of ``graph`` with open sizes.
        segments: the segments.
        placement: placement of the ops of ``graph``, with its segments and replicas.
        seconds: measured seconds of each op on each device, None where it does not run; None if nothing was measured.
        links: measured links between devices: source, destination, latency in seconds, bandwidth in bytes per second. A
            bandwidth that is too high to measure is infinite, and null in the file.
        host: measured seconds of a request besides the work of devices, on each device alone, and on several; empty if
            nothing was measured.
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
        data = {
            "format": "placeit-bundle",
            "version": VERSION,
            "name": self.name,
            "versions": dict(self.versions),
            "precision": self.precision,
            "tolerance": self.tolerance,
            "devices": [asdict(device) for device in self.devices],
            "model": self.model,
            "inputs": [asdict(spec) for spec in self.inputs],
            "outputs": [asdict(spec) for spec in self.outputs],
            "graph": {
                "ops": [
                    {"name": name, "kind": kind, "flops": flops, "weight_bytes": weights}
                    for name, kind, flops, weights in zip(
                        graph.names, graph.kinds, graph.flops.tolist(), graph.param_bytes.tolist(), strict=True
                    )
                ],
                "tensors": [
                    {"op": op, "port": port, "bytes": size, "shape": list(shape), "dtype": dtype, "limits": self.limits.get(t)}
                    for t, (op, port, size, shape, dtype) in enumerate(
                        zip(
                            graph.tensor_op.tolist(),
                            graph.tensor_port.tolist(),
                            graph.tensor_bytes.tolist(),
                            graph.tensor_shapes,
                            graph.tensor_dtypes,
                            strict=True,
                        )
                    )
                ],
                "edges": np.column_stack([graph.edges, graph.edge_tensor]).tolist(),
                "channels_last": sorted(self.channels_last),
            },
            "segments": [asdict(segment) for segment in self.segments],
            "placement": self.placement.to_dict(),
            "seconds": self.seconds,
            "links": [(*of, bandwidth if math.isfinite(bandwidth) else None) for *of, bandwidth in self.links],
            "host": self.host,
            "samples": [asdict(sample) for sample in self.samples],
            "files": {name: asdict(digest) for name, digest in self.files.items()},
        }
        return json.dumps(data | {"digest": _digest(data)}, indent=1, allow_nan=False) + "\n"


def read_manifest(files: BundleFiles) -> Manifest:
    """Read and check the manifest of a bundle.

    Raises:
        FileError: it is missing, damaged, edited, of a newer version, or contradicts itself.
    """
    try:
        raw = files.read(MANIFEST)
    except PlaceitError as error:
        if files.folder:
            raise files.wrong(
                f"the folder has no {MANIFEST}, which holds the plan. A bundle is what 'placeit build' writes"
            ) from error
        raise files.wrong(f"it has no {MANIFEST}. A bundle is what 'placeit build' writes") from error
    if len(raw) > _LARGEST:
        raise files.wrong(f"its {MANIFEST} has {len(raw)} bytes")
    try:
        data = json.loads(raw.tobytes())
    except (ValueError, RecursionError) as error:
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
    graph = _graph(data["graph"])
    inputs, outputs = (tuple(map(_spec, data[what])) for what in ("inputs", "outputs"))
    ends = {spec.name: spec for spec in (*inputs, *outputs)}
    for spec in ends.values():
        if graph.kinds[graph.index[spec.op]] not in ("Parameter", "Result") or not numpy_can_hold(spec.dtype):
            raise ValueError(f"'{spec.name}' is no input or output")
    segments = tuple(map(_segment, data["segments"]))
    samples = tuple(
        Sample(*({str(name): str(file) for name, file in one[what].items()} for what in ("inputs", "outputs")))
        for one in data["samples"]
    )
    digests = {name: Digest(int(one["bytes"]), str(one["sha256"])) for name, one in data["files"].items()}
    named = {
        *(name for segment in segments for name in segment.files),
        *(name for one in samples for name in (*one.inputs.values(), *one.outputs.values())),
    }
    if not samples or named != digests.keys():
        raise ValueError("its list of files differs from the files of its segments and samples")
    for one in samples:
        if one.inputs.keys() != {spec.name for spec in inputs} or one.outputs.keys() != {spec.name for spec in outputs}:
            raise ValueError("a sample has other inputs or outputs than the model")
    devices = tuple(
        Needed(
            name=str(one["name"]),
            address=str(one["address"]),
            full_name=str(one["full_name"]),
            driver=str(one["driver"]),
            cores=int(one["cores"]),
            format=_format(one["format"]),
            weight_bytes=float(one["weight_bytes"]),
            emulated=bool(one["emulated"]),
        )
        for one in data["devices"]
    )
    placement = Placement.from_dict(data["placement"], str(files.path))
    placement.for_ops(graph.names, [device.name for device in devices], graph.hash)
    if any(one.segments is None for one in placement.every):
        raise ValueError("the placement has no segments")
    seconds = data["seconds"]
    if seconds is not None:
        seconds = tuple(tuple(None if value is None else float(value) for value in row) for row in seconds)
        if [len(row) for row in seconds] != [len(devices)] * len(graph):
            raise ValueError("'seconds' has not a number for each op and device")
    host = tuple(map(float, data.get("host", ())))
    if len(host) not in (0, len(devices) + 1) or not all(0 <= one < math.inf for one in host):
        raise ValueError("'host' has not a number for each device, and one for several")
    tolerance = float(data["tolerance"])
    if not 0 <= tolerance < math.inf:
        raise ValueError(f"the tolerance is {tolerance}")
    return Manifest(
        name=str(data["name"]),
        versions={str(name): str(value) for name, value in data["versions"].items()},
        precision=str(data["precision"]),
        tolerance=tolerance,
        devices=devices,
        model=str(data["model"]),
        inputs=inputs,
        outputs=outputs,
        graph=graph,
        channels_last=frozenset(map(int, data["graph"]["channels_last"])),
        limits={
            t: limits
            for t, (one, shape) in enumerate(zip(data["graph"]["tensors"], graph.tensor_shapes, strict=True))
            if (limits := _limits(one.get("limits"), shape)) is not None
        },
        segments=segments,
        placement=placement,
        seconds=seconds,
        links=tuple(
            (str(a), str(b), float(latency), math.inf if bandwidth is None else float(bandwidth))
            for a, b, latency, bandwidth in data["links"]
        ),
        host=host,
        samples=samples,
        files=digests,
    )


def _spec(data: Mapping[str, Any]) -> TensorSpec:
    shape = _shape(data["shape"])
    return TensorSpec(str(data["name"]), str(data["op"]), shape, str(data["dtype"]), _limits(data.get("limits"), shape))


def _limits(data: Any, shape: tuple[int, ...]) -> Limits | None:
    """Return the least and largest sizes of a tensor; None for bundles of versions without them."""
    if data is None:
        return None
    limits = tuple((int(low), int(high)) for low, high in data)
    if not fits(shape, shape, limits) or any(low < 0 or high > LARGEST for low, high in limits):
        raise ValueError(f"the shape {shape} is not within {limits}")
    return limits


def _shape(sizes: list[Any]) -> tuple[int, ...]:
    shape = tuple(map(int, sizes))
    if min(shape, default=0) < 0:
        raise ValueError(f"a shape is {shape}")
    return shape


def _format(name: Any) -> Format:
    form: Format = name
    if form not in ("openvino", "onnx"):
        raise ValueError(f"'{name}' is no format of segments")
    return form


def _segment(data: Mapping[str, Any]) -> BundledSegment:
    inputs, outputs = (tuple(p if isinstance(p, str) else int(p) for p in data[what]) for what in ("inputs", "outputs"))
    names = tuple(tuple(map(str, one)) for one in data["names"])
    return BundledSegment(
        ops=tuple(map(int, data["ops"])),
        format=_format(data["format"]),
        files=tuple(map(str, data["files"])),
        inputs=inputs,
        outputs=outputs,
        names=(names[0], names[1]),
    )


def _graph(data: Mapping[str, Any]) -> OpGraph:
    ops, tensors = data["ops"], data["tensors"]
    edges = np.array(data["edges"], np.int32).reshape(-1, 3)
    return OpGraph(
        names=tuple(str(op["name"]) for op in ops),
        kinds=tuple(str(op["kind"]) for op in ops),
        flops=np.array([op["flops"] for op in ops], np.float64),
        param_bytes=np.array([op["weight_bytes"] for op in ops], np.float64),
        tensor_op=np.array([one["op"] for one in tensors], np.int32),
        tensor_port=np.array([one["port"] for one in tensors], np.int32),
        tensor_bytes=np.array([one["bytes"] for one in tensors], np.float64),
        tensor_shapes=tuple(_shape(one["shape"]) for one in tensors),
        tensor_dtypes=tuple(str(one["dtype"]) for one in tensors),
        edges=np.ascontiguousarray(edges[:, :2]),
        edge_tensor=np.ascontiguousarray(edges[:, 2]),
    ).verify()
