"""The model of a bundle, whose segments are already cut."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Arrays, Format, Model, TensorSpec
from placeit.backends.bundle.files import BundleFiles
from placeit.backends.bundle.manifest import BundledSegment, Manifest, Port, read_manifest
from placeit.backends.onnx.sessions import initial_state, open_whole
from placeit.backends.onnx_external import OnnxFile
from placeit.backends.openvino.graph import separate_transposed
from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError, UsageError, first_line
from placeit.core.files import temporary_folder
from placeit.core.sizes import fits
from placeit.core.telemetry import import_openvino
from placeit.devices.onnxruntime import explaining as explaining_ort
from placeit.devices.openvino import compile_model, explaining, openvino_core, what_openvino_says

__all__ = ["BundleModel", "open_bundle"]

_Runner = Callable[[Sequence[NDArray[Any]]], Sequence[NDArray[Any]]]
"""Function that computes the outputs of a segment from its inputs."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class BundleModel(Model):
    """The model of a bundle. Its ops are parts that were cut for the devices of one placement; no other placement can run.

    Attributes:
        manifest: the bundle's manifest.
        files: its files, mapped into memory; this memory lives as long as the object.
    """

    manifest: Manifest
    files: BundleFiles

    @property
    def name(self) -> str:
        """Name of the model that was bundled."""
        return self.manifest.name

    @property
    def channels_last(self) -> frozenset[int]:
        """Tensors of the graph that cross a segment's border in channels-last layout."""
        return self.manifest.channels_last

    def statistics(self) -> dict[str, int | float]:
        """Count the parts, and the bytes of their weights."""
        graph = self.graph
        return {
            "ops": len(graph),
            "edges": len(graph.edges),
            "flops": float(graph.flops.sum()),
            "parameter_bytes": float(graph.bytes_once.sum()),
        }

    def random_inputs(self, seed: int = 0) -> dict[str, NDArray[np.generic]]:
        """Return the inputs of a sample: of the first for seed 0, of the last for other seeds."""
        return self.samples[0 if seed == 0 else -1][0]

    @cached_property
    def samples(self) -> list[tuple[dict[str, NDArray[np.generic]], dict[str, NDArray[np.generic]]]]:
        """Inputs and outputs of the samples, by name. Raises FileError if the files do not hold such arrays."""
        inputs = {spec.name: spec for spec in self.inputs}
        outputs = {spec.name: spec for spec in self.outputs}

        def read(file: str, spec: TensorSpec, *, sized: bool) -> NDArray[np.generic]:
            try:
                value = np.lib.format.read_array(io.BytesIO(self.files.read(file).tobytes()), allow_pickle=False)
            except (ValueError, SyntaxError, MemoryError, TypeError, EOFError) as error:
                raise self.files.wrong(f"its file {file} holds no array: {first_line(error)}") from error
            if value.dtype != spec.dtype or (sized and not fits(value.shape, spec.shape, spec.limits)):
                raise self.files.wrong(f"its file {file} is {value.dtype}{list(value.shape)}, and '{spec.name}' is not")
            return np.ascontiguousarray(value).reshape(value.shape)

        return [
            (
                {name: read(file, inputs[name], sized=True) for name, file in sample.inputs.items()},
                # sizes of outputs may depend on the data
                {name: read(file, outputs[name], sized=False) for name, file in sample.outputs.items()},
            )
            for sample in self.manifest.samples
        ]

    @property
    def formats(self) -> frozenset[Format]:
        """Formats of its segments."""
        return frozenset(segment.format for segment in self.manifest.segments)

    @cached_property
    def _segments(self) -> Mapping[tuple[Format, tuple[int, ...]], BundledSegment]:
        return {(segment.format, segment.ops): segment for segment in self.manifest.segments}

    def segment(self, form: Format, ops: Sequence[int], enter: Sequence[int], leave: Sequence[int]) -> Any:
        """Return a segment of the bundle. Raises DeviceError if it has no such segment, or has it in another format."""
        found = self._segments.get((form, tuple(ops)))
        ends = {spec.op: spec.name for spec in (*self.inputs, *self.outputs)}
        kinds, names = self.graph.kinds, self.graph.names
        inputs: list[Port] = [*enter, *(ends[names[v]] for v in ops if kinds[v] == "Parameter")]
        outputs: list[Port] = [*leave, *(ends[names[v]] for v in ops if kinds[v] == "Result")]
        if found is None or set(found.inputs) != set(inputs) or set(found.outputs) != set(outputs):
            raise DeviceError(
                f"The bundle {self.path} has no segment for {form} of the parts {', '.join(names[v] for v in ops)}: it was "
                "built for other devices. Build it anew from the model, for these."
            )
        return self._program(found, inputs, outputs)

    def _program(self, segment: BundledSegment, inputs: Sequence[Port], outputs: Sequence[Port]) -> Any:
        """Return the program of a segment, with inputs and outputs in a given order."""
        places = [segment.inputs.index(port) for port in inputs], [segment.outputs.index(port) for port in outputs]
        if segment.format == "onnx":
            program = self.files.read(segment.files[0]).tobytes()
            ordered = (
                (*map(names.__getitem__, order), *names[len(order) :])
                for names, order in zip(segment.names, places, strict=True)
            )
            return OnnxFile(program, *ordered)  # states are the last of both
        if segment.format == "torch":
            from placeit.backends.torch.bundled import read_segment

            with temporary_folder() as folder:
                (folder / "segment.pt2").write_bytes(self.files.read(segment.files[0]).tobytes())
                return read_segment(folder / "segment.pt2", *places)
        xml, weights = map(self.files.read, segment.files)
        with explaining(f"OpenVINO cannot read a segment of {self.path}"):
            return _read(xml, weights, *places)

    def reference(self, device: Device | None, precision: str) -> Callable[[Arrays], dict[str, NDArray[np.generic]]]:  # noqa: ARG002
        """Return a function that looks up the outputs of samples, and runs other inputs segment by segment.

        In another precision than f32, it always runs segment by segment. It raises DeviceError if a segment does not run on the
        CPU.
        """
        programs: dict[int, _Runner] = {}

        def run(inputs: Arrays) -> dict[str, NDArray[np.generic]]:
            for sample, outputs in self.samples if precision == "f32" else ():
                if all(np.array_equal(sample[name], inputs[name]) for name in sample):
                    return outputs
            return self._run(inputs, programs, lambda form, program: _RUNNERS[form](program, precision, self.path))

        return run

    def contradiction(self, shapes: Sequence[Sequence[int]]) -> str | None:
        """Infer shapes segment by segment, up to a shape that depends on the data; see :meth:`Model.contradiction`."""
        inputs = {
            spec.name: np.broadcast_to(np.zeros((), spec.dtype), shape) for spec, shape in zip(self.inputs, shapes, strict=True)
        }
        try:
            self._run(inputs, {}, lambda form, program: functools.partial(_infer, form, program))
        except _UnknownShape:
            return None
        except RuntimeError as error:
            return what_openvino_says(error)
        return None

    def _run(
        self, inputs: Arrays, programs: dict[int, _Runner], open_program: Callable[[Format, Any], _Runner]
    ) -> dict[str, NDArray[np.generic]]:
        """Run the segments one after another, from the initial state of the model, without placeit's executors.

        Args:
            inputs: inputs of the model, by name.
            programs: functions that run segments, by segment number; missing ones are added.
            open_program: returns the function that runs a segment, given its format and its program.
        """
        graph, ends = self.graph, {spec.op: spec.name for spec in (*self.inputs, *self.outputs)}
        segment_of = self.manifest.placement.segments_for(graph.names)
        assert segment_of is not None  # the manifest was checked  # noqa: S101
        values: dict[int, NDArray[Any]] = {}  # tensors, in the memory order of segment borders
        outputs: dict[str, NDArray[Any]] = {}
        for s in range(int(segment_of.max()) + 1):
            ops = tuple(np.flatnonzero(segment_of == s).tolist())
            segment = next((segment for segment in self.manifest.segments if segment.ops == ops), None)
            if segment is not None:
                if s not in programs:
                    programs[s] = open_program(segment.format, self._program(segment, segment.inputs, segment.outputs))
                arguments = [inputs[port] if isinstance(port, str) else values[port] for port in segment.inputs]
                results = programs[s](arguments)[: len(segment.outputs)]  # states are the last of both
                for port, value in zip(segment.outputs, results, strict=True):
                    (outputs if isinstance(port, str) else values)[port] = value  # type: ignore[index]
                continue
            for t, op in enumerate(graph.tensor_op.tolist()):
                if op in ops:
                    values[t] = np.asarray(inputs[ends[graph.names[op]]])
            for (_, v), t in zip(graph.edges.tolist(), graph.edge_tensor.tolist(), strict=True):
                if v in ops:
                    outputs[ends[graph.names[v]]] = values[t].transpose(0, 3, 1, 2) if t in self.channels_last else values[t]
        return outputs

    def chain(self, elements: int, hops: int) -> Model:  # noqa: ARG002
        """Raise UsageError: costs cannot be measured with a model that is already cut."""
        raise UsageError(
            f"{self.path} is a bundle, whose segments are cut: profile and optimize the model that it was built from."
        )


def open_bundle(path: Path) -> BundleModel:
    """Open a bundle and check its files. Weights are checked in the background (:meth:`BundleFiles.wait`).

    Raises:
        FileError: it is damaged, edited, of a newer version, or not a bundle.
    """
    files = BundleFiles(path)
    manifest = read_manifest(files)
    files.check(manifest.files)
    model = BundleModel(
        path=path,
        graph=manifest.graph,
        inputs=manifest.inputs,
        outputs=manifest.outputs,
        limits=manifest.limits,
        placed=True,
        manifest=manifest,
        files=files,
    )
    try:
        _ = model.samples
    except BaseException:
        files.wait()
        raise
    return model


def _read(xml: NDArray[np.uint8], weights: NDArray[np.uint8], inputs: Sequence[int], outputs: Sequence[int]) -> Any:
    """Return the model of an IR, whose weights stay in their memory, with inputs and outputs in the order of the numbers."""
    openvino = import_openvino()
    model = openvino_core().read_model(xml.tobytes(), openvino.Tensor(weights, shared_memory=True))
    separate_transposed(model)  # the file contains equal weights once
    if [*inputs] == sorted(inputs) and [*outputs] == sorted(outputs):
        return model
    parameters, results = model.get_parameters(), model.get_results()
    return openvino.Model(
        [results[k] for k in outputs], model.get_sinks(), [parameters[k] for k in inputs], model.get_friendly_name()
    )


class _UnknownShape(Exception):  # noqa: N818
    """A shape is known only after a run."""


def _infer(form: Format, program: Any, values: Sequence[NDArray[Any]]) -> Sequence[NDArray[Any]]:
    """Return arrays that have a segment's output shapes and take no memory, for arrays that have its input shapes.

    Raises:
        RuntimeError: the shapes contradict each other.
        _UnknownShape: a shape depends on the data, or the segment is not in OpenVINO's format.
    """
    if form != "openvino":
        raise _UnknownShape
    openvino = import_openvino()
    for parameter, value in zip(program.get_parameters(), values, strict=True):
        parameter.set_partial_shape(openvino.PartialShape(list(value.shape)))
    program.validate_nodes_and_infer_types()
    shapes = [port.get_partial_shape() for port in program.outputs]
    if any(shape.is_dynamic for shape in shapes):
        raise _UnknownShape
    return [np.broadcast_to(np.zeros((), np.float32), shape.to_shape()) for shape in shapes]


def _by_onnxruntime(program: OnnxFile, precision: str, path: Path) -> _Runner:  # noqa: ARG001
    """Open a segment in ONNX Runtime for the CPU, and return the function that runs it."""
    with explaining_ort(f"ONNX Runtime cannot open a segment of {path}"):
        session = open_whole(program.model)

    def run(values: Sequence[NDArray[Any]]) -> Sequence[NDArray[Any]]:
        with explaining_ort(f"ONNX Runtime cannot run a segment of {path}"):
            feed = dict(zip(program.inputs, values, strict=False))
            states = {value.name: initial_state(value) for value in session.get_inputs() if value.name not in feed}
            results: Sequence[NDArray[Any]] = session.run(list(program.outputs), feed | states)
            return results

    return run


def _by_openvino(program: Any, precision: str, path: Path) -> _Runner:
    """Compile a segment with OpenVINO for the CPU, and return the function that runs it."""
    compiled = compile_model(program, Device("CPU", address=Address("CPU")), precision)

    def infer(values: Sequence[NDArray[Any]]) -> Sequence[NDArray[Any]]:
        with explaining(f"OpenVINO cannot run a segment of {path}"):
            answer = compiled.create_infer_request().infer([np.require(value, requirements="C") for value in values])
            return [np.array(answer[i]) for i in range(len(compiled.outputs))]

    return infer


def _by_pytorch(program: Any, precision: str, path: Path) -> _Runner:  # noqa: ARG001
    """Return a function that runs a segment with PyTorch on the CPU."""
    import torch

    from placeit.backends.torch.precision import in_precision

    program = in_precision(program, precision)

    def forward(values: Sequence[NDArray[Any]]) -> Sequence[NDArray[Any]]:
        with torch.inference_mode():
            return [made.numpy(force=True) for made in program(*map(torch.from_numpy, values))]

    return forward


_RUNNERS: Mapping[Format, Callable[[Any, str, Path], _Runner]] = {
    "openvino": _by_openvino,
    "onnx": _by_onnxruntime,
    "torch": _by_pytorch,
}
