"""PyTorch modules and exported programs (``.pt2``)."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.export import ExportedProgram
from torch.export.graph_signature import TensorArgument
from torch.utils import _pytree as pytree

from placeit.backends import base
from placeit.backends.base import Arrays, TensorSpec
from placeit.backends.checking import numpy_can_hold
from placeit.backends.digest import file_stamp
from placeit.backends.torch.archive import UntrustedError, missing_operators, registered_types, screen
from placeit.backends.torch.border import as_array
from placeit.backends.torch.export_checks import call_arguments, not_a_model
from placeit.backends.torch.graph import ProgramMap, build_graph, dtype_name
from placeit.backends.torch.open_sizes import OpenSizes, dimensions, user_inputs
from placeit.backends.torch.placed import PlacedModule
from placeit.backends.torch.precision import in_precision
from placeit.backends.torch.program import Lowered, export, is_random, lower, meta_tensor, reads, specialize
from placeit.backends.torch.segment import extract
from placeit.backends.torch.structure import plain_types
from placeit.backends.torch.supported_ops import without_kernel
from placeit.backends.torch.tracing import FAILURES, as_model_error, first_paragraph, line_of
from placeit.backends.torch.values import allowed_values
from placeit.backends.values import ValueRange, common, draw, draw_any
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import DeviceError, FileError, ModelError, first_line
from placeit.core.files import check_regular
from placeit.core.sizes import SizeRange
from placeit.devices.kinds import kind_of

_log = logging.getLogger("placeit")

__all__ = ["TorchModel", "load", "relu_chain"]

_MAX_ONNX = 2e9  # bytes of weights, since an ONNX model in one piece has 2 GB at most


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class TorchModel(base.Model):
    """A PyTorch program with its task graph; it shares its weights with the original module.

    Attributes:
        program: the exported program, as given or exported.
        lowered: the program as ATen ops without in-place changes. It is placed and run.
        layout: nodes of the program for the ops and tensors of ``graph``.
        examples: example inputs, by name; empty if the program has none.
        module: the module that was exported; None for a program.
        file: stamp of the file at ``path`` when the program was read from it (:func:`placeit.backends.digest.file_stamp`); None
            if the program was not read from a file.
        converted: formats of runtimes other than PyTorch that drive devices of the cluster, to which segments are converted.
    """

    program: ExportedProgram
    lowered: Lowered
    layout: ProgramMap
    examples: Arrays
    module: torch.nn.Module | None = None
    file: tuple[int, ...] | None = None
    converted: frozenset[base.Format] = frozenset()

    def statistics(self) -> dict[str, int | float]:
        """Count ops, edges, floating-point operations and parameters; see :meth:`placeit.backends.base.Model.statistics`."""
        weights = self.lowered.constants.values()
        read = [value for op in self.lowered.ops for value in reads(op)]
        return {
            "ops": len(self.graph),
            "edges": len(self.graph.edges),
            "layers": len(self.graph) + len(weights),
            "layer_edges": len(self.graph.edges) + sum(value in self.lowered.constants for value in read),
            "flops": float(self.graph.flops.sum()),
            "parameters": sum(tensor.numel() for tensor in weights if tensor.is_floating_point()),
            "parameter_bytes": sum(tensor.numel() * tensor.element_size() for tensor in weights),
        }

    def random_inputs(self, seed: int = 0) -> dict[str, NDArray[np.generic]]:
        """Draw inputs that are valid for the model, by input name.

        Floating-point inputs are standard normal. Integers and truth values are taken from the example inputs, since only the
        model knows which values are valid. With another seed than 0, integers that index a table are drawn from its rows
        between the least and the greatest example. Without example inputs they are drawn from all rows; other 8-bit integers
        are uniform, other integers are one, and truth values are true.
        """
        rng = np.random.default_rng(seed)
        drawn: dict[str, NDArray[np.generic]] = {}
        for spec in self.inputs:
            dtype = np.dtype(spec.dtype)
            if dtype.kind == "f":
                drawn[spec.name] = draw_any(rng, spec.shape, spec.dtype)
                continue
            example = self.examples.get(spec.name)
            allowed = allowed_values(self.lowered.inputs[spec.name])
            if example is not None and allowed is not None and example.size:
                allowed = common([allowed, ValueRange(int(example.min()), int(example.max()) + 1)])
            if example is not None and (seed == 0 or allowed is None):
                drawn[spec.name] = np.array(example)
            elif allowed is not None:
                drawn[spec.name] = draw(rng, allowed, spec.shape, spec.dtype)
            else:
                drawn[spec.name] = draw_any(rng, spec.shape, spec.dtype)
        return drawn

    def inputs_at(self, shapes: Mapping[str, Sequence[int]], seed: int = 0) -> dict[str, NDArray[np.generic]]:
        """Draw inputs of given sizes, from values that are valid at the typical sizes. Raises UsageError if they do not fit."""
        drawn = self.random_inputs(seed)
        self.check_sizes({name: shapes.get(name, value.shape) for name, value in drawn.items()})
        return {name: np.resize(value, shapes.get(name, value.shape)) for name, value in drawn.items()}

    def contradiction(self, shapes: Sequence[Sequence[int]]) -> str | None:
        """Return a message about two sizes that have to be equal and differ; None if all sizes agree."""
        first_seen: dict[object, tuple[int, str]] = {}
        for (name, node), shape in zip(self.lowered.inputs.items(), shapes, strict=True):
            for axis, (size, given) in enumerate(zip(dimensions(node), shape, strict=True)):
                first, where = first_seen.setdefault(size, (given, f"size {axis} of '{name}'"))
                if not isinstance(size, int) and first != given:
                    return f"In the program, {where} equals size {axis} of '{name}'."
        return None

    @property
    def stateful(self) -> frozenset[str]:
        """Names of the ops that read a buffer that the program changes, and of the ops that stand for the changes."""
        name = dict(zip(self.layout.nodes, self.graph.names, strict=True))
        return frozenset(name[op] for ops in self.lowered.state.values() for op in ops)

    @property
    def formats(self) -> frozenset[base.Format]:
        """The format of PyTorch, and formats of other runtimes that drive devices of the cluster."""
        own: frozenset[base.Format] = frozenset({"torch"})
        return own | self.converted

    @property
    def convertible(self) -> frozenset[base.Format]:
        """Formats of OpenVINO and ONNX, for programs of one size, without state, and with types that NumPy has."""
        if self.stateful or self.has_open_sizes or not all(map(numpy_can_hold, self.graph.tensor_dtypes)):
            return frozenset()
        weights = self.statistics()["parameter_bytes"]
        return frozenset({"openvino", "onnx"}) if weights < _MAX_ONNX else frozenset({"openvino"})

    def prepared(self, cluster: Cluster, graph: str = "") -> TorchModel:  # noqa: ARG002
        """Return the model with the formats of other runtimes that drive devices as well."""
        wanted = {form for device in cluster.devices for form in kind_of(device).formats}
        converted = self.convertible & wanted
        return self if converted == self.converted else replace(self, converted=converted)

    def converted_ops(self, form: base.Format) -> frozenset[str]:
        """Return the names of ops that can be converted; see :meth:`placeit.backends.base.ConvertsOps.converted_ops`."""
        from placeit.backends.torch.export import convertible_ops  # late: it imports OpenVINO

        return convertible_ops(self, form)

    def segment(self, form: base.Format, ops: Sequence[int], enter: Sequence[int], leave: Sequence[int]) -> Any:
        """Return a part of the model as a module, or convert it; see :meth:`placeit.backends.base.Model.segment`.

        Raises:
            DeviceError: the format has no op for a part of it; the message names it.
        """
        if form != "torch":
            from placeit.backends.torch.export import converted_segment  # late: it imports OpenVINO

            try:
                return converted_segment(self, form, ops, enter, leave)
            except ModelError as error:
                raise DeviceError(str(error)) from error
        return extract(self.layout, self.lowered.constants, ops, enter, leave)

    def with_kernel(self, dispatch_key: str) -> set[str]:
        """Return the names of ops with a PyTorch kernel; see :meth:`placeit.backends.base.TorchKernels.with_kernel`."""
        missing = without_kernel(self.lowered.ops, dispatch_key)
        return {name for name, node in zip(self.graph.names, self.layout.nodes, strict=True) if node not in missing}

    def reference(self, device: Device | None, precision: str) -> Callable[[Arrays], dict[str, NDArray[np.generic]]]:  # noqa: ARG002
        """Return a function that runs the uncut exported program in PyTorch on the CPU."""
        if precision != "f32":
            return self._in_precision(precision)
        module = self.program.module()
        names = [spec.name for spec in self.inputs]
        tensors = (*module.named_parameters(), *module.named_buffers())
        state = [(tensor, tensor.detach().clone()) for name, tensor in tensors if name in self.lowered.state]

        def run(inputs: Arrays) -> dict[str, NDArray[np.generic]]:
            args, kwargs = self.arguments({name: torch.from_numpy(np.array(inputs[name])) for name in names})
            with torch.inference_mode(), torch.autocast("cpu", enabled=False):
                try:
                    leaves = pytree.tree_leaves(module(*args, **kwargs))
                    results = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
                    return {spec.name: as_array(tensor).copy() for spec, tensor in zip(self.outputs, results, strict=True)}
                except (RuntimeError, IndexError) as error:
                    raise DeviceError(f"PyTorch cannot run {self.path} uncut on the CPU: {first_line(error)}") from error
                finally:  # the buffers are the user's module's
                    for tensor, initial in state:
                        tensor.copy_(initial)

        return run

    def _in_precision(self, precision: str) -> Callable[[Arrays], dict[str, NDArray[np.generic]]]:
        module = in_precision(self.segment("torch", range(len(self.graph)), [], []), precision)

        def run(inputs: Arrays) -> dict[str, NDArray[np.generic]]:
            with torch.inference_mode(), torch.autocast("cpu", enabled=False):
                results = module(*(torch.from_numpy(np.array(inputs[spec.name])) for spec in self.inputs))
            return {spec.name: as_array(tensor).copy() for spec, tensor in zip(self.outputs, results, strict=True)}

        return run

    def arguments(self, inputs: Mapping[str, torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call of the module: inputs in its types, and the constants of the export."""
        placeholders = self.program.graph.find_nodes(op="placeholder")
        types = {node.name: node.meta["val"].dtype for node in placeholders if node.name in inputs}
        leaves = [
            inputs[arg.name].to(types[arg.name]) if isinstance(arg, TensorArgument) else getattr(arg, "value", None)
            for arg in user_inputs(self.program)
        ]
        args, kwargs = pytree.tree_unflatten(leaves, self.program.call_spec.in_spec)
        return tuple(args), dict(kwargs)

    def called(
        self, run: Callable[[Arrays], Mapping[str, NDArray[np.generic]]], pickled: Callable[[], tuple[Any, ...]] | None = None
    ) -> PlacedModule:
        """Return a module that is called like the original module; see :class:`placeit.backends.base.IsCalled`."""
        return PlacedModule(self.program, self.module, run, tuple(spec.name for spec in self.outputs), pickled)

    def chain(self, elements: int, hops: int) -> TorchModel:
        """Return a chain of ``hops`` ReLUs over ``float32[1, elements]``."""
        return replace(relu_chain(elements, hops), converted=self.converted)


def relu_chain(elements: int, hops: int) -> TorchModel:
    """Return a chain of ``hops`` ReLUs over ``float32[1, elements]``."""
    layers = (torch.nn.ReLU() for _ in range(hops))
    return replace(load(torch.nn.Sequential(*layers), (torch.zeros(1, elements),), name="chain"), uniform=True)


def load(
    source: torch.nn.Module | ExportedProgram | str | Path,
    example: Sequence[Any] | Mapping[str, Any] | torch.Tensor | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    name: str | None = None,
    input_shapes: Mapping[str, Sequence[int | str | SizeRange]] | None = None,
    batch: int | None = None,
    trust: bool = False,
) -> TorchModel:
    """Return the model of a module, an exported program, or a file written by ``torch.export.save``.

    A module is exported in evaluation mode. Weights are shared with it, not copied. The example inputs fix every size without
    a range, and the numbers, truth values and strings among the inputs. Results of a module other than tensors are left out.

    Args:
        source: a module on the CPU, a program, or the path of a ``.pt2`` file.
        example: arguments for a call of the module: positional arguments, or keyword arguments by name. A program needs them
            only if it has open sizes and contains no example inputs.
        kwargs: keyword arguments for the same call.
        name: name of the model; by default, the name of the file or of the module's class.
        input_shapes: sizes of inputs, by name; ranges (``"1..512@128"``) stay open. A program has to have them open already.
        batch: not supported for PyTorch programs, whose batch is fixed by the example inputs.
        trust: whether to load a file that could run code while it is loaded (:mod:`placeit.backends.torch.archive`).

    Raises:
        ModelError: the module cannot be exported, or its program depends on data or cannot be cut; the message names the op.
        FileError: the file cannot be read.
        UsageError: ``source`` is no model, or ``example`` or ``kwargs`` are no arguments of a call.
    """
    if batch is not None:
        what = source if isinstance(source, str | Path) else type(source).__name__
        raise ModelError(
            f"{what}: the batch of a PyTorch program is fixed by its example inputs: give the shapes of its inputs."
        )
    args, kwargs = call_arguments(example, kwargs)
    if isinstance(source, torch.nn.Module):
        label = name or type(source).__name__
        if args is None:
            raise ModelError(
                f"{label}: a module is exported by calling it: give the arguments of a call (example=(x,), kwargs={{...}})."
            )
        sizes = OpenSizes(input_shapes, label) if input_shapes else None
        return replace(_describe(export(source, args, kwargs, label, sizes), Path(label), sizes), module=source)
    if isinstance(source, ExportedProgram):
        label, program, file = name or "program", source, None
    elif not isinstance(source, str | Path):
        raise not_a_model(source)
    else:
        label, file = str(name or source), None if name else file_stamp(Path(source))
        program = _read(Path(source), trust=trust)
    sizes = OpenSizes(input_shapes, label) if input_shapes else None
    placed = specialize(program, args, kwargs, label, sizes)
    return replace(_describe(placed, Path(label), sizes), file=file if placed is program else None)


def _describe(program: ExportedProgram, path: Path, sizes: OpenSizes | None) -> TorchModel:
    lowered = lower(program, str(path), sizes)
    graph, layout = build_graph(lowered)
    pairs = zip(graph.names, layout.nodes, strict=True)
    if (random := next(((name, node) for name, node in pairs if node is not None and is_random(node)), None)) is not None:
        name, node = random
        _log.warning(
            "%s draws random numbers (op '%s'%s), so that outputs differ from run to run. If that is dropout, the program was "
            "exported in training mode: call module.eval() before, or give dropout training=self.training.",
            path,
            name,
            f", called at{line}" if (line := line_of(node)) else "",
        )
    number = {node: v for v, node in enumerate(layout.nodes) if node is not None}
    found = {value: limits for value in layout.values if sizes and (limits := sizes.limits(dimensions(*value)))}
    inputs = tuple(
        replace(_spec(name, graph.names[number[node]], node.meta["val"], f"{path}: input"), limits=found.get((node, ())))
        for name, node in lowered.inputs.items()
    )
    outputs = tuple(
        replace(_spec(name, graph.names[v], meta_tensor(value), f"{path}: output"), limits=found.get(value))
        for (name, value), v in zip(lowered.outputs.items(), layout.results, strict=True)
    )
    return TorchModel(
        path=path,
        graph=graph,
        inputs=inputs,
        outputs=outputs,
        states=tuple(
            TensorSpec(
                name, graph.names[number[ops[-1]]], tuple(ops[-1].meta["val"].shape), dtype_name(ops[-1].meta["val"].dtype)
            )
            for name, ops in lowered.state.items()
        ),
        limits={number: found[value] for number, value in enumerate(layout.values) if value in found},
        together=tuple(tuple(graph.names[number[op]] for op in ops) for ops in lowered.state.values() if len(ops) > 1),
        program=program,
        lowered=lowered,
        layout=layout,
        examples=_examples(program, inputs),
    )


def _spec(name: str, op: str, tensor: torch.Tensor, what: str) -> TensorSpec:
    dtype = dtype_name(tensor.dtype)
    if not numpy_can_hold(dtype):
        how = "torch.view_as_complex, torch.view_as_real" if tensor.is_complex() else "x.to"
        raise ModelError(
            f"{what} '{name}' has type {dtype}, which is not a type of NumPy's real numbers or truth values: let another type "
            f"cross the model's border, and convert it inside ({how})."
        )
    return TensorSpec(name, op, tuple(map(int, tensor.shape)), dtype)


def _examples(program: ExportedProgram, inputs: Sequence[TensorSpec]) -> Arrays:
    """Return the example inputs in a program, by name."""
    if program.example_inputs is None:
        return {}
    names = (arg.name for arg in user_inputs(program))
    values = dict(zip(names, pytree.tree_leaves(program.example_inputs), strict=True))
    return {spec.name: np.resize(as_array(values[spec.name]), spec.shape) for spec in inputs}


def _read(path: Path, *, trust: bool) -> ExportedProgram:
    check_regular(path)
    try:
        with path.open("rb") as stream:
            stream.read(1)
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror or error}.") from error
    with as_model_error(f"Cannot read a program from {path}"):
        try:
            if not trust:
                screen(path)
            unknown = registered_types(path)
            if trust:  # arguments that are unpickled may have the types that are registered here
                unknown -= pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.keys()
            with plain_types(unknown), contextlib.nullcontext() if trust else _only_weights():
                return torch.export.load(path)
        except UntrustedError as error:
            raise _untrusted(path, str(error)) from error
        except (*FAILURES, pickle.UnpicklingError, zipfile.BadZipFile, EOFError) as error:
            if isinstance(error, pickle.UnpicklingError) and not trust:
                raise _untrusted(path, "something besides tensors is pickled in it") from error
            reason = first_paragraph(error)
            if "CUDA" in reason or (not torch.cuda.is_available() and _names_cuda(path)):
                raise ValueError(
                    "it was exported on a GPU, and this PyTorch has none. Which device works is what a placement decides: "
                    f"export the module again on the CPU (module.cpu()). PyTorch says: {reason}"
                ) from error
            missing: list[str] = []
            with contextlib.suppress(*FAILURES, zipfile.BadZipFile, EOFError):
                missing = missing_operators(path) if trust else []
            if missing:
                raise ValueError(
                    f"it calls '{missing[0]}', an operator that neither PyTorch nor any package loaded here defines: in "
                    "Python, import the package that does, and then call placeit.optimize with trust; the command line cannot."
                ) from error
            raise ValueError(
                "it is damaged, or no program that torch.export.save has written (weights and TorchScript, as torch.save and "
                "torch.jit.save write them, are none), or one of a release that this one does not read (PyTorch "
                f"{torch.__version__}): write it with torch.export.save(torch.export.export(module, inputs), '{path.name}'). "
                f"PyTorch says: {reason}"
            ) from error


_MAX_JSON = 1 << 26  # bytes of a JSON file that are examined


def _names_cuda(path: Path) -> bool:
    """Return whether an archive has data on a GPU, since a PyTorch with CUDA does not say so if there is no GPU."""
    with contextlib.suppress(*FAILURES, zipfile.BadZipFile, EOFError), zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.filename.endswith(".json"):
                with archive.open(member) as stream:
                    if b'"type": "cuda"' in stream.read(_MAX_JSON):
                        return True
    return False


def _untrusted(path: Path, why: str) -> ModelError:
    return ModelError(
        f"{path} could run code while it is loaded: {why}. If you trust its author, add --trust (trust=True in Python)."
    )


@contextlib.contextmanager
def _only_weights() -> Iterator[None]:
    """Make PyTorch refuse to unpickle anything but tensors, which ``torch.export.load`` would otherwise do silently."""
    key = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(key)
    os.environ[key] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[key]
        else:
            os.environ[key] = before
