"""Tensor programs (:mod:`placeit.learning.workloads.tensors`) as models that are placed and run like any other."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from placeit.backends import base
from placeit.backends.base import Arrays, TensorSpec
from placeit.backends.checking import checked_inputs
from placeit.backends.torch.graph import dtype_name
from placeit.backends.torch.model import TorchModel
from placeit.backends.torch.model import load as load_module
from placeit.core.cluster import Device
from placeit.core.errors import ModelError
from placeit.core.graph import OpGraph
from placeit.core.registry import check_options, parse_options
from placeit.learning.workloads.tensor_graphs import find_builder, tensor_graph
from placeit.learning.workloads.tensors import BlockProgram, ProgramSegment, shard
from placeit.learning.workloads.tensors.expression import elementwise, tensor

__all__ = ["TensorProgram", "of_program", "parse_tensor_model", "tensor_model"]


@dataclass(frozen=True, eq=False, kw_only=True)
class TensorProgram(base.Model):
    """A tensor program with values for its inputs, as a model without inputs.

    The inputs of the program exist before a run starts, like the weights of a network: see
    :attr:`placeit.learning.workloads.tensors.BlockProgram.graph`. Each block of an output is an output of the model, since
    assembling blocks would need transfers to one device, which are not part of the program.

    Op ``v`` of the task graph is ``program.ops[v]``. The program's ops are followed by ``Result`` ops, one for each output.

    Attributes:
        program: the program that is placed and run.
        whole: the program in one shard, which computes the reference outputs.
        values: values of the program's inputs, by name.
        result_tensors: for each output of the model, the tensor number of its block in ``program``.
    """

    program: BlockProgram
    whole: BlockProgram
    values: Mapping[str, torch.Tensor]
    result_tensors: tuple[int, ...]

    @cached_property
    def blocks(self) -> dict[int, torch.Tensor]:
        """Blocks of the program's inputs, by tensor number; all segments share them."""
        return self.program.split(self.values)

    def statistics(self) -> dict[str, int | float]:
        """Count ops, edges, operations and parameters, as for every model. Blocks of inputs count as constants."""
        computed = {op.output for op in self.program.ops}
        constants = sum(len({block.tensor for block in whole.blocks}) for whole in self.program.inputs.values())
        read = sum(number not in computed for op in self.program.ops for number in set(op.inputs))
        return {
            "ops": len(self.graph),
            "edges": len(self.graph.edges),
            "layers": len(self.graph) + constants,
            "layer_edges": len(self.graph.edges) + read,
            "flops": float(self.graph.flops.sum()),
            "parameters": sum(value.numel() for value in self.values.values()),
            "parameter_bytes": sum(value.nbytes for value in self.values.values()),
        }

    def random_inputs(self, seed: int = 0) -> dict[str, NDArray[np.generic]]:  # noqa: ARG002
        """Return an empty dict, since the model has no inputs."""
        return {}

    @property
    def settable(self) -> dict[str, TensorSpec]:
        """Inputs of the program, by name."""
        whole = self.program.inputs.items()
        return {name: TensorSpec(name, name, tensor.shape, dtype_name(tensor.dtype)) for name, tensor in whole}

    def with_inputs(self, inputs: Arrays) -> TensorProgram:
        """Return the model with other values for the program's inputs.

        Args:
            inputs: whole arrays, by name.

        Raises:
            UsageError: an input is missing or unknown, or has another shape or type than the program takes.
        """
        given = {name: np.array(value, order="C") for name, value in checked_inputs(inputs, self.settable).items()}
        return replace(self, given=given, values={name: torch.from_numpy(value) for name, value in given.items()})

    def sample_inputs(self, seed: int = 0) -> Arrays:
        """Return an empty dict, since the model has no inputs."""
        return self.random_inputs(seed)

    @property
    def formats(self) -> frozenset[base.Format]:
        """Only the format of PyTorch."""
        return frozenset({"torch"})

    def segment(self, form: base.Format, ops: Sequence[int], enter: Sequence[int], leave: Sequence[int]) -> ProgramSegment:  # noqa: ARG002
        """Return some of the ops as a module; see :meth:`placeit.backends.base.Model.segment`."""
        program = self.program.ops
        results = [self.result_tensors[v - len(program)] for v in ops if v >= len(program)]
        return ProgramSegment(
            [program[v] for v in ops if v < len(program)],
            [program[t].output for t in enter],
            [*(program[t].output for t in leave), *results],
            self.blocks,
        )

    def with_kernel(self, dispatch_key: str) -> set[str]:
        """Return the names of ops that have PyTorch kernels: all, or only the results if there is no matrix product."""
        computes = torch._C._dispatch_has_computed_kernel_for_dispatch_key("aten::mm.out", dispatch_key)
        return {name for name, kind in zip(self.graph.names, self.graph.kinds, strict=True) if computes or kind == "Result"}

    def reference(self, device: Device | None, precision: str) -> Callable[[Arrays], dict[str, NDArray[np.generic]]]:  # noqa: ARG002
        """Return a function that runs the program in one shard on the CPU, and cuts its outputs into blocks."""

        def run(_inputs: Arrays) -> dict[str, NDArray[np.generic]]:
            return self.cut(self.whole.run(self.values))

        return run

    def chain(self, elements: int, hops: int) -> TensorProgram:
        """Return a chain of ``hops`` ReLUs over ``float32[1, elements]``."""
        value = tensor("x", 1, elements)
        for hop in range(hops):
            value = elementwise(f"relu{hop}", "ij->ij", torch.relu, value)
        program = shard([value], 1)
        return of_program(program, program, name="chain")

    def cut(self, wholes: Mapping[str, torch.Tensor]) -> dict[str, NDArray[np.generic]]:
        """Return the outputs of the model, as blocks of the program's whole outputs."""
        blocks = [wholes[name][block.region] for name, whole in self.program.outputs.items() for block in whole.blocks]
        return {spec.name: block.numpy(force=True).copy() for spec, block in zip(self.outputs, blocks, strict=True)}

    def as_module(self) -> TorchModel:
        """Return the sharded program as a PyTorch model with whole inputs and outputs, for export to a file.

        Complex inputs become constants, since no file format supports them.

        Raises:
            ModelError: PyTorch cannot export it.
        """
        names = [name for name, value in self.values.items() if not value.is_complex()]
        model = load_module(_Whole(self, names), [self.values[name] for name in names], name=str(self.path))
        inputs = tuple(replace(spec, name=name) for spec, name in zip(model.inputs, names, strict=True))
        examples = {name: self.values[name].numpy() for name in names}
        return replace(model, inputs=inputs, examples=examples)

    def join(self, outputs: Arrays) -> dict[str, torch.Tensor]:
        """Return the program's whole outputs, assembled from the outputs of the model."""
        blocks = [torch.from_numpy(outputs[spec.name]) for spec in self.outputs]
        return self.program.join(dict(zip(self.result_tensors, blocks, strict=True)))


class _Whole(torch.nn.Module):
    """A program as a module with the named inputs as arguments; the other inputs are constants."""

    def __init__(self, model: TensorProgram, names: Sequence[str]) -> None:
        super().__init__()
        self._program, self._names = model.program, tuple(names)
        self._constants = {name: f"constant{n}" for n, name in enumerate(model.values) if name not in names}
        for name, buffer in self._constants.items():
            self.register_buffer(buffer, model.values[name])

    def forward(self, *inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        constants: dict[str, torch.Tensor] = {name: getattr(self, buffer) for name, buffer in self._constants.items()}
        return self._program.run(dict(zip(self._names, inputs, strict=True)) | constants)


def parse_tensor_model(text: str) -> TensorProgram:
    """Return a model from ``name`` or ``name:option=value,option=value``, as on the command line (``chain-mm:shards=4``).

    All options of :func:`tensor_model` except the partition are accepted. The model's path is ``text``.

    Raises:
        UsageError: the text has another form, the program or an option does not exist, or a value is out of range.
    """
    name = text.partition(":")[0]
    known = dict.fromkeys(inspect.signature(find_builder(name)).parameters, int) | {"seed": int, "paper_sizes": bool}
    del known["partition"]
    _, options = parse_options("tensor graph", text, lambda _: known)
    check_options("tensor graph", name, options, known)
    return replace(tensor_model(name, **options), path=Path(text))


def tensor_model(name: str, *, shards: int = 2, paper_sizes: bool = False, seed: int = 0, **options: Any) -> TensorProgram:
    """Return a model of one of the paper's programs, with random inputs.

    Args:
        name: ``chain-mm``, ``ffnn``, ``llama-block`` or ``llama-layer``.
        shards: number of parts into which an op is cut.
        paper_sizes: whether to use the paper's sizes, rather than sizes that are small enough for two CPU cores.
        seed: seed of the inputs.
        options: options of the function in :mod:`placeit.learning.workloads.tensor_graphs` that builds the program.

    Raises:
        UsageError: the program does not exist, or an argument is out of range.
    """
    program = tensor_graph(name, paper_sizes=paper_sizes, shards=shards, **options)
    sizes = {option: value for option, value in options.items() if option != "partition"}
    return of_program(program, tensor_graph(name, paper_sizes=paper_sizes, shards=1, **sizes), name=name, seed=seed)


def of_program(program: BlockProgram, whole: BlockProgram, *, name: str, seed: int = 0) -> TensorProgram:
    """Return a model of a program, with random inputs.

    Args:
        program: the program to place and run.
        whole: the program's expression in one shard, which computes the reference outputs.
        name: name of the model.
        seed: seed of the inputs.

    Raises:
        ModelError: an output of the program is a part of an input, which no op computes.
    """
    producer = {op.output: v for v, op in enumerate(program.ops)}
    names, tensors = [], []
    for output, parts in program.outputs.items():
        for number, block in enumerate(parts.blocks):
            if block.tensor not in producer:
                raise ModelError(f"{name}: the output '{output}' is an input of the program, which no op makes: leave it out.")
            names.append(output if len(parts.blocks) == 1 else f"{output}.{number}")
            tensors.append(block.tensor)
    return TensorProgram(
        path=Path(name),
        graph=_with_results(program.graph, names, [producer[number] for number in tensors]),
        inputs=(),
        outputs=tuple(
            TensorSpec(output, f"{output}/result", program.tensors[number].shape, dtype_name(program.tensors[number].dtype))
            for output, number in zip(names, tensors, strict=True)
        ),
        program=program,
        whole=whole,
        values=program.random_inputs(seed),
        result_tensors=tuple(tensors),
    )


def _with_results(graph: OpGraph, outputs: Sequence[str], producers: Sequence[int]) -> OpGraph:
    """Return a graph with a ``Result`` op for each output; op ``v`` of the graph produces tensor ``v``."""
    zeros = np.zeros(len(outputs))
    edges = [(producer, len(graph) + number) for number, producer in enumerate(producers)]
    return replace(
        graph,
        names=(*graph.names, *(f"{output}/result" for output in outputs)),
        kinds=(*graph.kinds, *("Result" for _ in outputs)),
        flops=np.concatenate([graph.flops, zeros]),
        param_bytes=np.concatenate([graph.param_bytes, zeros]),
        edges=np.concatenate([graph.edges, np.array(edges, np.int32)]),
        edge_tensor=np.concatenate([graph.edge_tensor, np.array(producers, np.int32)]),
    ).verify()
