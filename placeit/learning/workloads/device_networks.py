"""Random device networks (GiPH, Appendix B.2), and the placement problem of a task graph on one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import ProblemError
from placeit.core.problem import Problem
from placeit.learning.workloads.parameters import check_range
from placeit.learning.workloads.task_graphs import TaskGraph

__all__ = ["DeviceNetwork", "DeviceNetworkParameters", "problem_of", "random_device_network"]


@dataclass(frozen=True, eq=False)
class DeviceNetwork:
    """``D`` devices, the links between them, and the hardware types (of ``T``) of each device.

    Attributes:
        speed: ``float64[D]``, units of compute per second, the paper's SP_k.
        bandwidth: ``float64[D, D]``, bytes per second, ``inf`` on the diagonal, the paper's BW_kl.
        delay: ``float64[D, D]``, seconds, zero on the diagonal, the paper's DL_kl.
        supports: ``bool[D, T]``.
        names: unique, ``D`` of them.
    """

    speed: NDArray[np.float64]
    bandwidth: NDArray[np.float64]
    delay: NDArray[np.float64]
    supports: NDArray[np.bool_]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.speed)


@dataclass(frozen=True)
class DeviceNetworkParameters:
    """Parameters of :func:`random_device_network`; in brackets the paper's symbols.

    Attributes:
        devices: number of devices [m].
        mean_speed: mean compute speed of a device [SP].
        mean_bandwidth: mean bandwidth of a link [BW].
        mean_delay: mean delay of a link; delays are uniform on [0, 2 DL] [DL].
        speed_heterogeneity: speeds are uniform on [SP (1 - x), SP (1 + x)] [eps_SP].
        bandwidth_heterogeneity: bandwidths are uniform on [BW (1 - x), BW (1 + x)] [eps_BW].
        hardware_types: number of types of hardware.
        support: probability that a device has hardware of a type.
        feasible_devices: expected number of devices that have hardware of a type, and so can run a task; ``support`` then
            follows from it. None to let it follow from ``support``.

    Raises:
        UsageError: a parameter is out of its range.
    """

    devices: int = 8
    mean_speed: float = 5.0
    mean_bandwidth: float = 100.0
    mean_delay: float = 10.0
    speed_heterogeneity: float = 0.4
    bandwidth_heterogeneity: float = 0.4
    hardware_types: int = 5
    support: float = 0.3
    feasible_devices: float | None = None

    def __post_init__(self) -> None:
        check_range(self, "devices", 1, 2000)
        check_range(self, "mean_speed", 0, above=True)
        check_range(self, "mean_bandwidth", 0, above=True)
        check_range(self, "mean_delay", 0)
        check_range(self, "speed_heterogeneity", 0, 1, below=True)
        check_range(self, "bandwidth_heterogeneity", 0, 1, below=True)
        check_range(self, "hardware_types", 1, 10_000)
        check_range(self, "support", 0, 1)
        if self.feasible_devices is not None:
            check_range(self, "feasible_devices", 1, self.devices)

    @property
    def support_probability(self) -> float:
        """Probability that a device has hardware of a type: ``support``, or else fitted to ``feasible_devices``."""
        if self.feasible_devices is None:
            return self.support
        low, high = 0.0, 1.0
        # m p devices have the hardware, or one if none would: m p + (1 - p)^m on average, which grows with p from 1 to m
        for _ in range(60):
            p = (low + high) / 2
            if self.devices * p + (1 - p) ** self.devices < self.feasible_devices:
                low = p
            else:
                high = p
        return (low + high) / 2


def random_device_network(parameters: DeviceNetworkParameters, rng: np.random.Generator) -> DeviceNetwork:
    """Draw a device network (GiPH, Appendix B.2).

    Both directions of a link are equal. A type of hardware that no device has is given to a random device, so that every task
    of a graph with at most this number of types can run on some device.
    """
    count = parameters.devices
    pairs = np.triu_indices(count, 1)
    low, high = 1 - parameters.bandwidth_heterogeneity, 1 + parameters.bandwidth_heterogeneity
    bandwidth = np.full((count, count), np.inf)
    bandwidth[pairs] = parameters.mean_bandwidth * rng.uniform(low, high, len(pairs[0]))
    delay = np.zeros((count, count))
    delay[pairs] = rng.uniform(0, 2 * parameters.mean_delay, len(pairs[0]))
    lower = (pairs[1], pairs[0])
    bandwidth[lower], delay[lower] = bandwidth[pairs], delay[pairs]
    low, high = 1 - parameters.speed_heterogeneity, 1 + parameters.speed_heterogeneity
    supports = rng.random((count, parameters.hardware_types)) < parameters.support_probability
    chosen = rng.integers(count, size=parameters.hardware_types)
    missing = np.flatnonzero(~supports.any(axis=0))
    supports[chosen[missing], missing] = True
    return DeviceNetwork(
        speed=parameters.mean_speed * rng.uniform(low, high, count),
        bandwidth=bandwidth,
        delay=delay,
        supports=supports,
        names=tuple(f"device{d}" for d in range(count)),
    )


def problem_of(graph: TaskGraph, network: DeviceNetwork) -> Problem:
    """Return the problem of placing a task graph on a device network (GiPH, Appendix B.5, equations 2 and 3).

    A task takes C_i / SP_k seconds, ``inf`` where its hardware is missing; data takes DL_kl + B_ij / BW_kl seconds.

    Raises:
        ProblemError: a task requires a type of hardware whose number the network does not have.
        InfeasibleError: no device has the hardware that some task requires.
    """
    types = network.supports.shape[1]
    if graph.requires.max() >= types:
        task = int(np.argmax(graph.requires))
        raise ProblemError(
            f"Task '{graph.names[task]}' requires hardware of type {graph.requires[task]}, and the device network has types "
            f"0..{types - 1}: generate both with the same 'hardware_types'."
        )
    compute = graph.compute[:, None] / network.speed[None, :]
    compute[~network.supports[:, graph.requires].T] = np.inf
    return Problem.from_arrays(
        compute,
        graph.edges,
        graph.edge_bytes,
        network.bandwidth,
        network.delay,
        op_names=graph.names,
        device_names=network.names,
        kinds=graph.kinds or None,
        output_shapes=graph.output_shapes or None,
    )
