"""The interface of models, independent of file format and framework."""

from __future__ import annotations

import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from placeit.backends.checking import checked_inputs
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import UsageError
from placeit.core.graph import OpGraph
from placeit.core.sizes import Limits, spelled_shape

if TYPE_CHECKING:
    import onnx

__all__ = [
    "Arrays",
    "ConvertsOps",
    "Format",
    "IsCalled",
    "Model",
    "NotByOpenVino",
    "OnnxKinds",
    "Sample",
    "TensorSpec",
    "TorchKernels",
    "fields_of",
]

Arrays: TypeAlias = Mapping[str, NDArray[np.generic]]
"""Values of inputs or outputs, by name."""

Format: TypeAlias = Literal["openvino", "onnx", "torch"]
"""Formats in which a runtime accepts a segment: an ``openvino.Model``, an ``onnx.ModelProto`` or a ``torch.nn.Module``."""


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a model.

    Attributes:
        name: name for callers: the tensor's name in the model file.
        op: name of its ``Parameter`` or ``Result`` op.
        shape: sizes; typical sizes where they are open, upper bounds for an output whose size depends on the data.
        dtype: element type, NumPy spelling.
        limits: least and largest sizes, if some are open; None if all are fixed.
        shapes: all typical shapes, of which ``shape`` is the first; empty if ``shape`` is the only one.
    """

    name: str
    op: str
    shape: tuple[int, ...]
    dtype: str
    limits: Limits | None = None
    shapes: tuple[tuple[int, ...], ...] = ()

    def sizes(self, times: Sequence[int] = ()) -> list[int | str]:
        """Return its shape: numbers for fixed sizes, and for open ones a text with range, typical sizes and frequencies."""
        return spelled_shape(self.shapes or [self.shape], self.limits, times)


@dataclass(frozen=True, eq=False)
class Sample:
    """A request for measurements.

    Attributes:
        inputs: arrays by name.
        share: share of all requests that have such inputs.
    """

    inputs: Arrays
    share: float = 1.0


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Model(ABC):
    """A model with its task graph.

    Each framework has its subclasses. ``formats`` states in which formats a model can supply segments.

    The task graph has an op of kind ``Parameter`` for each input, and one of kind ``Result`` for each output.

    Attributes:
        path: the file.
        graph: the task graph.
        inputs: the inputs, in the model's order.
        outputs: the outputs, in the model's order.
        limits: least and largest sizes of the graph's tensors with open sizes, by tensor number.
        times: how often requests of each typical size occur, in proportion.
        states: tensors that the model keeps from one run to the next, at a typical size, each with the op that reads it.
        caches: outputs of the file that became state, by the input whose next value they hold.
        logits: tokens of a step for which a decoder with state computes logits: ``last`` or ``all``.
        bounded: ops whose output sizes depend on the data; the graph has upper bounds of these sizes.
        together: sets of ops that must be on one device, because they share state or a tensor whose size depends on the data,
            or because the program that runs has no tensor between them.
        pairs: sets of ops that a runtime fuses and that grouping keeps together, such as a rounding and its reader. Placements
            may separate them.
        rounding: relative rounding step of ops that round to a few bits, by name: the largest step over the largest value.
        given: arrays to run it on, by name; None for random inputs.
        uniform: whether all its ops compute the same function (:meth:`chain`), so that one program serves all parts of a size.
        refused: pairs of a device and an op, by name, that the device reports to support and does not compile.
        placed: whether its ops are segments that were cut for the devices of one placement (:mod:`placeit.backends.bundle`).
        paging: writes its parts for caches in blocks, if it is a decoder of several texts for which OpenVINO can do that.
    """

    path: Path
    graph: OpGraph
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    states: tuple[TensorSpec, ...] = ()
    caches: Mapping[str, str] = field(default_factory=dict)
    logits: str = "last"
    limits: Mapping[int, Limits] = field(default_factory=dict)
    times: tuple[int, ...] = (1,)
    bounded: tuple[str, ...] = ()
    together: tuple[tuple[str, ...], ...] = ()
    pairs: tuple[tuple[str, ...], ...] = ()
    rounding: Mapping[str, float] = field(default_factory=dict)
    given: Arrays | None = None
    uniform: bool = False
    refused: frozenset[tuple[str, str]] = frozenset()
    placed: bool = False
    paging: Any | None = None

    def __repr__(self) -> str:
        ends = (", ".join(f"{s.name} {list(s.shape)} {s.dtype}" for s in specs) for specs in (self.inputs, self.outputs))
        return f"<{type(self).__name__} {self.path}: {len(self.graph)} ops; {' -> '.join(ends)}>"

    @property
    def name(self) -> str:
        """Name of the file without its suffix."""
        return self.path.stem

    @property
    def identity(self) -> str:
        """Digest of everything that determines how long parts of the model take: the graph, and further content of parts."""
        return self.graph.hash

    @property
    def channels_last(self) -> frozenset[int]:
        """Tensors of the graph that should cross a segment's border in channels-last layout."""
        return frozenset()

    @abstractmethod
    def statistics(self) -> dict[str, int | float]:
        """Count ops, edges, operations and parameters of the model.

        Returns:
            ``ops`` and ``edges`` of the task graph; ``layers`` and ``layer_edges``, which include constants; ``flops`` of one
            inference; ``parameters`` (weights) and ``parameter_bytes`` of all constants, each counted once.
        """

    @abstractmethod
    def random_inputs(self, seed: int = 0) -> dict[str, NDArray[np.generic]]:
        """Draw inputs that are valid for the model, by input name."""

    @property
    def stateful(self) -> frozenset[str]:
        """Names of the ops that read or write state, which lasts from one request of a sequence to the next."""
        ops = zip(self.graph.names, self.graph.kinds, strict=True)
        return frozenset(name for name, kind in ops if kind in ("ReadValue", "Assign"))

    @property
    def settable(self) -> dict[str, TensorSpec]:
        """Tensors that can be given values, by name: the inputs, or the constants of a model without inputs."""
        return {spec.name: spec for spec in self.inputs}

    def inputs_at(self, shapes: Mapping[str, Sequence[int]], seed: int = 0) -> dict[str, NDArray[np.generic]]:  # noqa: ARG002
        """Draw inputs of given shapes.

        Args:
            shapes: shapes of the inputs with open sizes, by name.
            seed: seed of the random numbers.

        Raises:
            UsageError: the sizes contradict each other, or valid values are unknown.
        """
        raise UsageError(f"Inputs of other sizes cannot be drawn for {self.path}.")

    @property
    def has_open_sizes(self) -> bool:
        """True if an input may have any size in a range."""
        return any(spec.limits is not None for spec in self.inputs)

    def check_sizes(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Raise UsageError if shapes of the inputs, each of which is in range, contradict each other.

        Inputs whose sizes are equal at the typical sizes may change them together; then no shapes are inferred.

        Args:
            shapes: shape of each input, by name.
        """
        if sum(spec.limits is not None for spec in self.inputs) <= 1:
            return
        pairs = {
            (typical, size)
            for spec in self.inputs
            for typical, size, (low, high) in zip(spec.shape, shapes[spec.name], spec.limits or (), strict=False)
            if low < high
        }
        if len({typical for typical, _ in pairs}) == len(pairs):
            return
        reason = self._cached_contradiction(tuple(tuple(shapes[spec.name]) for spec in self.inputs))
        if reason is not None:
            listing = ", ".join(f"'{spec.name}' {list(shapes[spec.name])}" for spec in self.inputs)
            raise UsageError(f"The sizes of the inputs do not fit each other: {listing}. {reason}")

    @cached_property
    def _cached_contradiction(self) -> Callable[[tuple[tuple[int, ...], ...]], str | None]:
        return functools.lru_cache(1024)(self.contradiction)

    def contradiction(self, shapes: Sequence[Sequence[int]]) -> str | None:  # noqa: ARG002
        """Return why shapes of the inputs, in the model's order, contradict each other; None if they do not, or if unknown."""
        return None

    def with_inputs(self, inputs: Arrays) -> Self:
        """Return the model with inputs that measurements and checks use instead of random ones.

        Args:
            inputs: an array for each input, by name; the arrays are copied.

        Raises:
            UsageError: an input is missing, unknown, or has another shape or type than the model wants.
        """
        checked = checked_inputs(inputs, self.settable)
        return replace(self, given={name: np.array(value, order="C") for name, value in checked.items()})

    def sample_inputs(self, seed: int = 0) -> Arrays:
        """Return the given inputs, or else random ones, by input name."""
        return self.random_inputs(seed) if self.given is None else self.given

    def sample_requests(self, seed: int = 0) -> Sequence[Sample]:
        """Return the requests for measurements: inputs of each typical size, or the given inputs."""
        return [Sample(self.sample_inputs(seed))]

    @property
    def given_digest(self) -> str | None:
        """SHA-256 of the given inputs with their names, types and shapes; None if no inputs were given."""
        if self.given is None:
            return None
        digest = hashlib.sha256()
        for name, value in sorted(self.given.items()):
            digest.update(f"{name!r} {value.dtype} {value.shape} ".encode())
            digest.update(np.ascontiguousarray(value).tobytes())
        return digest.hexdigest()

    @property
    @abstractmethod
    def formats(self) -> frozenset[Format]:
        """Formats in which the model can supply segments."""

    @abstractmethod
    def segment(self, form: Format, ops: Sequence[int], enter: Sequence[int], leave: Sequence[int]) -> Any:
        """Cut a part out of the model.

        Args:
            form: one of ``formats``.
            ops: op numbers of the part, ascending.
            enter: tensors that it reads from outside. They are its first inputs; the model's inputs among ``ops`` follow, in op
                order.
            leave: tensors that other parts read. They are its first outputs; the model's outputs among ``ops`` follow, in op
                order.

        Returns:
            An object of the format. A PyTorch module maps tensors to a tuple of tensors; its weights are buffers in the memory
            of the model's weights.

        Raises:
            DeviceError: this part cannot be cut out in this format.
        """

    def function(self, ops: Sequence[int], enter: Sequence[int], leave: Sequence[int]) -> str | None:  # noqa: ARG002
        """Return a digest of a part's function, including the values of its weights, so that equal parts are compiled once.

        The arguments are as for :meth:`segment`. Digests are equal for parts that one program can serve; None if no other part
        has the same weights, or if that is unknown.
        """
        return None

    def whole_file(self, form: Format) -> Model:  # noqa: ARG002
        """Return the model for a device that runs it whole in a format, which may be one that only the whole file has."""
        return self

    @property
    def rounds(self) -> bool:
        """True if it has operators on quantised numbers, which runtimes round differently."""
        return False

    @property
    def convertible(self) -> frozenset[Format]:
        """Formats other than ``formats`` in which it can supply segments, after a conversion (:meth:`prepared`)."""
        return frozenset()

    def prepared(self, cluster: Cluster, graph: str = "") -> Model:  # noqa: ARG002
        """Return the model with the formats that the drivers of a cluster's devices need; itself if it has them already.

        Args:
            cluster: the devices.
            graph: hash of the wanted task graph, if the model can have several; empty for any.

        Raises:
            DeviceError: one of the runtimes cannot run the model.
        """
        return self

    @abstractmethod
    def reference(self, device: Device | None, precision: str) -> Callable[[Arrays], dict[str, NDArray[np.generic]]]:
        """Return a function that runs the uncut model in its own framework, as the reference for outputs.

        Every call starts from the model's initial state, if it has any.

        Args:
            device: a device that can run the whole model; None for the CPU.
            precision: inference precision, as for devices.

        Raises:
            DeviceError: the framework cannot run the model.
        """

    @abstractmethod
    def chain(self, elements: int, hops: int) -> Model:
        """Return a chain of element-wise ops in this model's format, to measure the costs of segments and links.

        Args:
            elements: float32 elements of each tensor of the chain.
            hops: number of ops.
        """


def fields_of(model: Model) -> dict[str, Any]:
    """Return the fields of a model by name, to make a model of another class from it."""
    return {field.name: getattr(model, field.name) for field in fields(model)}


@runtime_checkable
class OnnxKinds(Protocol):
    """A model that supplies segments as ONNX and groups its ops by kind of computation."""

    def onnx_kinds(self) -> Iterator[tuple[Collection[str], onnx.ModelProto]]:
        """Yield sets of ops, by name, that can be cut out and do the same computation, each with one of the ops as a model."""
        ...


@runtime_checkable
class NotByOpenVino(Protocol):
    """A model that OpenVINO may not be able to run."""

    @property
    def why(self) -> str:
        """Why OpenVINO cannot run it, as a sentence; empty if it may be able to."""
        ...


@runtime_checkable
class ConvertsOps(Protocol):
    """A model of another framework that can be converted to the formats of OpenVINO and ONNX Runtime."""

    def converted_ops(self, form: Format) -> Collection[str]:
        """Return the names of the ops that the converter to a format supports, including inputs and outputs."""
        ...


@runtime_checkable
class TorchKernels(Protocol):
    """A model that supplies segments as PyTorch modules, and knows for which ops PyTorch has kernels."""

    def with_kernel(self, dispatch_key: str) -> Collection[str]:
        """Return the names of the ops for which PyTorch has a kernel on a kind of device.

        Args:
            dispatch_key: PyTorch's name of the kind, ``CPU`` or ``CUDA``. A build without CUDA has no kernels for it.
        """
        ...


@runtime_checkable
class IsCalled(Protocol):
    """A model that can be called like a function of its framework."""

    def called(
        self, run: Callable[[Arrays], Mapping[str, NDArray[np.generic]]], pickled: Callable[[], tuple[Any, ...]] | None = None
    ) -> Callable[..., Any]:
        """Return a function with the model's signature in its framework, on the framework's tensors.

        Args:
            run: runs the model once on inputs by name, and returns outputs by name.
            pickled: returns a function and its arguments with which a pickle restores the result; None if that is not possible.
        """
        ...
