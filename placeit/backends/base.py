"""What every model is, whatever file or framework it comes from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from placeit.cluster import Cluster, Device
from placeit.graph import OpGraph

__all__ = ["Arrays", "Model", "TensorSpec", "numpy_can_hold"]

Arrays: TypeAlias = Mapping[str, NDArray[np.generic]]
"""Values of inputs or outputs, by name."""

_KINDS_OF_NUMBER = "biuf"


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a model.

    Attributes:
        name: what callers know it by: the tensor's name in the model file.
        op: the ``Parameter`` or ``Result`` op behind it.
        shape: sizes; for an output that depends on the data, upper bounds.
        dtype: element type, NumPy spelling.
    """

    name: str
    op: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Model(ABC):
    """A model, with its task graph. One subclass for each framework that can run it: OpenVINO, PyTorch.

    In the task graph an op of kind ``Parameter`` stands for each input, and one of kind ``Result`` for each output.

    Attributes:
        path: the file.
        graph: the task graph.
        inputs: in the model's order.
        outputs: in the model's order.
        bounded: ops whose output sizes depend on the data; the graph has their upper bounds.
        together: sets of ops that need one device, because they share state or a tensor whose size depends on the data.
    """

    path: Path
    graph: OpGraph
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    bounded: tuple[str, ...] = ()
    together: tuple[tuple[str, ...], ...] = ()

    @property
    def name(self) -> str:
        """The file's name without its suffix."""
        return self.path.stem

    @property
    def channels_last(self) -> frozenset[int]:
        """Tensors of the graph that should cross a segment's border with their channels last in memory."""
        return frozenset()

    @abstractmethod
    def statistics(self) -> dict[str, int | float]:
        """Count what the model is made of.

        Returns:
            ``ops`` and ``edges`` of the task graph; ``layers`` and ``layer_edges`` with every constant counted as well;
            ``flops`` of one inference; ``parameters`` (weights) and ``parameter_bytes`` of all constants, each counted once.
        """

    @abstractmethod
    def random_inputs(self, seed: int = 0) -> dict[str, NDArray[np.generic]]:
        """Draw inputs that the model can make sense of, by input name."""

    @abstractmethod
    def driven(self, cluster: Cluster) -> Cluster:
        """Return the cluster with each device's ``kind`` set to the runtime that runs such a model there.

        Raises:
            DeviceError: nothing runs such a model on one of the devices; names it and says what to do.
        """

    @abstractmethod
    def uncut(self, device: Device | None, precision: str) -> Callable[[Arrays], dict[str, NDArray[np.generic]]]:
        """Prepare the whole model as its framework runs it by itself, to compare outputs with.

        Every call starts from the model's initial state, if it has any.

        Args:
            device: one that can run the whole model; None if there is none, for the CPU.
            precision: of the session, as for devices.

        Raises:
            DeviceError: the framework cannot run the model.
        """

    @abstractmethod
    def chain(self, elements: int, hops: int) -> Model:
        """Build a chain of element-wise ops that runs wherever this model does, to measure what segments and links cost.

        Args:
            elements: float32 elements of the tensor that runs along the chain.
            hops: ops.
        """


def numpy_can_hold(dtype: str) -> bool:
    """Whether NumPy has a number or truth-value type of this name."""
    try:
        return np.dtype(dtype).kind in _KINDS_OF_NUMBER and np.dtype(dtype).name == dtype
    except TypeError:
        return False
