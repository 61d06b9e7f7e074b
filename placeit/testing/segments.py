"""Small segments in each format that a device compiles, for :mod:`placeit.testing.devices`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from placeit.backends.base import Format
from placeit.core.telemetry import import_openvino
from placeit.runtime.devices.base import BufferSpec

__all__ = ["Broken", "Pick", "Source"]


class _Segment:
    """A segment in each format that a device compiles."""

    identity = ""

    def in_format(self, form: Format) -> Any:
        return {"openvino": self._openvino, "onnx": self._onnx, "torch": self._torch}[form]()

    def _openvino(self) -> object:
        raise NotImplementedError

    def _onnx(self) -> object:
        raise NotImplementedError

    def _torch(self) -> object:
        raise NotImplementedError


class Source(_Segment):
    """Computes ``x * x + x`` for several types of tensors, and returns the results in another order."""

    inputs = (
        BufferSpec((2, 3), "float32"),
        BufferSpec((), "float32"),
        BufferSpec((4,), "int64"),
        BufferSpec((1, 2, 3, 4), "float32", channels_last=True),
    )
    order = (3, 1, 0, 2)
    outputs = (inputs[3], inputs[1], inputs[0], inputs[2])

    def _openvino(self) -> object:
        ov = import_openvino()
        ops = ov.opset13
        parameters, values = [], []
        for k, spec in enumerate(
            self.inputs
        ):  # names make the model identical in each call, so that caches of compiled models find it
            parameters.append(ops.parameter(list(spec.memory_shape), np.dtype(spec.dtype), name=f"x{k}"))
            square = ops.multiply(parameters[k], parameters[k], name=f"square{k}")
            values.append(ops.add(square, parameters[k], name=f"sum{k}"))
        return ov.Model([ops.result(values[k], name=f"y{k}") for k in self.order], parameters, "conformance")

    def _onnx(self) -> object:
        return _onnx_model(
            self.inputs,
            [f"y{k}" for k in self.order],
            [("Mul", [f"x{k}", f"x{k}"], [f"square{k}"]) for k in range(len(self.inputs))]
            + [("Add", [f"square{k}", f"x{k}"], [f"y{k}"]) for k in range(len(self.inputs))],
            self.outputs,
        )

    def _torch(self) -> object:
        import torch

        graph, aten = torch.fx.Graph(), torch.ops.aten
        arguments = [graph.placeholder(f"x{k}") for k in range(len(self.inputs))]
        squares = [graph.call_function(aten.mul.Tensor, (value, value)) for value in arguments]
        values = [graph.call_function(aten.add.Tensor, pair) for pair in zip(squares, arguments, strict=True)]
        graph.output(tuple(values[k] for k in self.order))
        return torch.fx.GraphModule(torch.nn.Module(), graph)


class Pick(_Segment):
    """Picks one of four numbers; its kernel fails if the index is out of range."""

    inputs = (BufferSpec((4,), "float32"), BufferSpec((1,), "int64"))
    outputs = (BufferSpec((1,), "float32"),)

    def _openvino(self) -> object:
        ov = import_openvino()
        ops = ov.opset13
        values, index = (ops.parameter(list(spec.shape), np.dtype(spec.dtype)) for spec in self.inputs)
        return ov.Model([ops.result(ops.gather_elements(values, index, 0))], [values, index], "pick")

    def _onnx(self) -> object:
        return _onnx_model(self.inputs, ["y"], [("GatherElements", ["x0", "x1"], ["y"])], self.outputs)

    def _torch(self) -> object:
        import torch

        graph = torch.fx.Graph()
        values, index = (graph.placeholder(f"x{k}") for k in range(len(self.inputs)))
        graph.output((graph.call_function(torch.ops.aten.gather.default, (values, 0, index)),))
        return torch.fx.GraphModule(torch.nn.Module(), graph)


class Broken(_Segment):
    """A segment that no runtime compiles: an op or an output has no source."""

    inputs: tuple[BufferSpec, ...] = ()
    outputs = (BufferSpec((2,), "float32"),)

    def _openvino(self) -> object:
        ov = import_openvino()
        ops = ov.opset13
        return ov.Model([ops.result(ops.parameter([2], np.float32))], [], "nothing feeds it")

    def _onnx(self) -> object:
        return _onnx_model((), ["y"], [("Neg", ["nothing"], ["y"])], self.outputs)

    def _torch(self) -> object:
        import torch

        graph = torch.fx.Graph()
        graph.output(())
        return torch.fx.GraphModule(torch.nn.Module(), graph)


def _onnx_model(
    inputs: Sequence[BufferSpec],
    names: Sequence[str],
    nodes: Sequence[tuple[str, list[str], list[str]]],
    outputs: Sequence[BufferSpec],
) -> object:
    from onnx import helper

    def value(name: str, spec: BufferSpec) -> Any:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype)), spec.memory_shape)

    graph = helper.make_graph(
        [helper.make_node(*node) for node in nodes],
        "conformance",
        [value(f"x{k}", spec) for k, spec in enumerate(inputs)],
        [value(name, spec) for name, spec in zip(names, outputs, strict=True)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
