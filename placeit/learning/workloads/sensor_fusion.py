"""Cooperative sensor fusion at intersections: the case study of GiPH (section 5.3 and Appendix B.4)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import UsageError
from placeit.core.problem import Problem
from placeit.learning.workloads.mobility import Sighting, grid_points, traffic

__all__ = [
    "LatencyModel",
    "Scene",
    "SensorFusionCase",
    "fit_latency",
    "random_scene",
    "sensor_fusion_case",
    "sensor_fusion_trace",
]

RANGE_M = 400.0  # of RSUs
SIDE = 6  # intersections in a row
BLOCK_M = 380.0  # metres between two intersections
CONNECTED = 398  # vehicles that take part
_TYPES = "ABC"
_RSU_TYPE = _TYPES.index("C")
_EDGE_DEVICES = {"A": 10, "B": 10, "C": 20}  # number of edge devices by type
_CAMERAS = ((15.0, 0.0), (0.0, 15.0), (-15.0, 0.0), (0.0, -15.0))  # positions relative to the RSU, in metres

# rows: camera and LIDAR detection (on the GPU), fusion for the vehicle and at the road side (on the CPU)
_DETECT_CAMERA, _DETECT_LIDAR, _FUSE_VEHICLE, _FUSE_ROADSIDE, _SENSE = range(5)
_KINDS = ("camera detection", "LIDAR detection", "vehicle fusion", "road-side fusion", "sensing")
MEAN_MS = np.array([[53.0, 36.0, 9.0], [14.0, 7.0, 3.0], [35.0, 35.0, 11.0], [250.0, 250.0, 28.0]])
"""Mean running times of the four tasks on device types A, B and C, in milliseconds (GiPH, Table 1)."""
MIGRATION_BYTES = np.array([11494.0, 560.0, 11796.0, 20907.0])
"""Data that moves with each of the four tasks when it is relocated (GiPH, Table 2)."""
STATIC_BYTES = np.array([72173.525, 24.576, 38.110, 38.950]) * 1e3
"""Initial data of each of the four tasks (GiPH, Table 2, kilobytes)."""
_STARTUP_MS = {"A": np.array([4273.73, 60.98, 0.39, 2.83]), "C": np.array([794.66, 9.26, 0.11, 1.00])}

_IMAGE, _SCAN, _DETECTIONS, _FUSED = 60_000.0, 5_760.0, 1_000.0, 2_000.0  # bytes


@dataclass(frozen=True, eq=False)
class LatencyModel:
    """Running times of ``N`` tasks on ``K`` kinds of processor: C_i T_j + S_j (GiPH, Appendix B.4).

    Attributes:
        compute: ``float64[N]``, C_i, units of compute.
        per_unit: ``float64[K]``, T_j, seconds per unit.
        startup: ``float64[K]``, S_j, seconds.
    """

    compute: NDArray[np.float64]
    per_unit: NDArray[np.float64]
    startup: NDArray[np.float64]

    @property
    def seconds(self) -> NDArray[np.float64]:
        """Running time of each task on each kind of processor, ``float64[N, K]``, seconds."""
        return self.compute[:, None] * self.per_unit[None, :] + self.startup[None, :]


def fit_latency(mean_s: NDArray[np.float64]) -> LatencyModel:
    """Fit the latency model to the mean times of the two tasks that share a kind of processor, CPU or GPU.

    With two tasks the fit is exact, on a linear and on a logarithmic scale, and one degree of freedom is left. The longer task
    counts as one unit of compute. The shorter task counts as the largest fraction for which no startup time is negative, so
    that startup times are as short as possible.

    Args:
        mean_s: ``float64[2, K]``, positive seconds; one task takes longer than the other on every kind.

    Raises:
        UsageError: the array has another shape, or neither task takes longer on every kind.
    """
    if mean_s.ndim != 2 or len(mean_s) != 2 or not (np.ptp(np.argmax(mean_s, axis=0)) == 0 and (mean_s[0] != mean_s[1]).all()):
        raise UsageError("A latency model is fitted to the times of two tasks, one of which takes longer on every device type.")
    longer = int(np.argmax(mean_s[:, 0]))
    long, short = mean_s[longer], mean_s[1 - longer]
    compute = np.empty(2)
    compute[longer], compute[1 - longer] = 1.0, (short / long).min()
    per_unit = (long - short) / (1 - compute[1 - longer])
    return LatencyModel(compute, per_unit, np.maximum(0.0, long - per_unit))


@dataclass(frozen=True, eq=False)
class Scene:
    """Fixed parts: ``R`` road-side units (RSUs) at intersections, four cameras at each RSU, and ``K - R`` edge devices.

    Attributes:
        position: ``float64[K, 2]``, positions of the devices that compute, in metres; RSUs first.
        kind: ``int64[K]``, type A, B or C as 0, 1 or 2.
        names: names of the devices that compute.
        seconds: ``float64[4, K]``, running time of each of the four tasks on each device.
        startup_s: ``float64[4, K]``, startup time of each of the four tasks on each device.
        rsus: number of RSUs, R.
    """

    position: NDArray[np.float64]
    kind: NDArray[np.int64]
    names: tuple[str, ...]
    seconds: NDArray[np.float64]
    startup_s: NDArray[np.float64]
    rsus: int


@dataclass(frozen=True, eq=False)
class SensorFusionCase:
    """The pipelines around one vehicle at one moment, ``V`` tasks on ``D`` devices, and their relocation costs.

    Tasks and devices have the same names in all cases of a scene. A relocation costs the time to migrate a task's data over
    the link between its devices, and the time to start the task.

    Attributes:
        problem: the placement problem; sensing tasks run only on their sensor, and take no time.
        migration_bytes: ``float64[V]``, bytes that move when a task is relocated.
        static_bytes: ``float64[V]``, bytes that initialise a task on a device where it has not run before.
        startup_s: ``float64[V, D]``, seconds; ``inf`` where a task cannot run.
        sighting: the vehicle, the time and the position.
    """

    problem: Problem
    migration_bytes: NDArray[np.float64]
    static_bytes: NDArray[np.float64]
    startup_s: NDArray[np.float64]
    sighting: Sighting


def random_scene(rng: np.random.Generator) -> Scene:
    """Draw the positions of edge devices: 10 of type A, 10 of B, 20 of C, uniformly over the area of 36 intersections.

    The intersections are on a square grid, 380 m apart, so that about three of them are near a vehicle, as in Fig. 8b. Their
    RSUs are of type C.
    """
    corners = grid_points(SIDE, BLOCK_M)
    edge_kinds = [_TYPES.index(kind) for kind, number in _EDGE_DEVICES.items() for _ in range(number)]
    kind = np.array([_RSU_TYPE] * len(corners) + edge_kinds)
    spread = rng.uniform(0, (SIDE - 1) * BLOCK_M, (len(edge_kinds), 2))
    gpu, cpu = fit_latency(MEAN_MS[:2] / 1e3), fit_latency(MEAN_MS[2:] / 1e3)
    return Scene(
        position=np.concatenate([corners, spread]),
        kind=kind,
        names=(
            *(f"rsu{r}" for r in range(len(corners))),
            *(f"edge{e}-{_TYPES[kind]}" for e, kind in enumerate(edge_kinds)),
        ),
        seconds=np.concatenate([gpu.seconds, cpu.seconds])[:, kind],
        startup_s=_startup_ms()[:, kind] / 1e3,
        rsus=len(corners),
    )


def _startup_ms() -> NDArray[np.float64]:
    """Return the startup times in milliseconds, by task and type.

    Table 2 lacks type B. Its startup time is interpolated between A and C, on a logarithmic scale, in the ratio of the running
    times in Table 1. For the fusions, which take as long on B as on A, it is the startup time of A.
    """
    a, c = _STARTUP_MS["A"], _STARTUP_MS["C"]
    share = np.log(MEAN_MS[:, 0] / MEAN_MS[:, 1]) / np.log(MEAN_MS[:, 0] / MEAN_MS[:, 2])
    return np.stack([a, a ** (1 - share) * c**share, c], axis=1)


def sensor_fusion_trace(scene: Scene, rng: np.random.Generator, *, connected: int = CONNECTED) -> list[Sighting]:
    """Simulate connected vehicles for an hour, and record their positions every 10 s.

    Differs from the paper, which uses the traffic simulator SUMO and a map: see
    :func:`placeit.learning.workloads.mobility.traffic`.

    Args:
        scene: the scene.
        rng: random generator.
        connected: number of vehicles that take part; by default a tenth of the paper's 3980.
    """
    return traffic(rng, side=math.isqrt(scene.rsus), block_m=BLOCK_M, vehicles=connected)


def sensor_fusion_case(scene: Scene, sighting: Sighting, *, reach_m: float = RANGE_M) -> SensorFusionCase:
    """Return the pipelines in which a vehicle takes part at its position (GiPH, Fig. 8b).

    The vehicle's camera and LIDAR feed a detection each, and the two detections feed the vehicle's data fusion. Each RSU within
    400 m has four cameras, a detection for each, and a data fusion, which also reads the vehicle's fused data. Links have a
    bandwidth of 60 exp(-d / 100) Mbit/s at a distance of d metres, and no delay.

    The paper leaves the following open: an image has 60 kB, a LIDAR scan 5.76 kB, the objects detected in either 1 kB, and the
    vehicle's fused data 2 kB; the vehicle only senses; a device runs one task at a time on its GPU and CPU together.

    Args:
        scene: the scene.
        sighting: the vehicle, the time and the position.
        reach_m: maximum distance from the vehicle of devices that may be used, besides the RSUs in range; ``inf`` for all 76
            devices. The paper does not mention such a limit. An image takes three minutes over a kilometre, and a month over
            two.

    Raises:
        UsageError: no RSU is within 400 m of the vehicle.
    """
    distance = np.hypot(*(scene.position - (sighting.x, sighting.y)).T)
    is_rsu = np.arange(len(scene.kind)) < scene.rsus
    near = np.flatnonzero(is_rsu & (distance <= RANGE_M)).tolist()
    if not near:
        raise UsageError(
            f"No road-side unit is within {RANGE_M:g} m of vehicle {sighting.vehicle} at ({sighting.x:.0f}, {sighting.y:.0f}); "
            "a case needs one."
        )
    usable = np.flatnonzero((distance <= reach_m) | np.isin(np.arange(len(distance)), near))
    builder = _Builder()
    vehicle = f"vehicle{sighting.vehicle}"
    sensor = builder.sensor(vehicle, (sighting.x, sighting.y))
    camera = builder.detection(f"{vehicle}/camera", _DETECT_CAMERA, sensor, _IMAGE)
    lidar = builder.detection(f"{vehicle}/lidar", _DETECT_LIDAR, sensor, _SCAN)
    fused = builder.task(f"{vehicle}/fusion", _FUSE_VEHICLE)
    builder.edges += [(camera, fused, _DETECTIONS), (lidar, fused, _DETECTIONS)]
    for rsu in near:
        detections = []
        for number, offset in enumerate(_CAMERAS):
            name = f"{scene.names[rsu]}/camera{number}"
            own = builder.sensor(name, scene.position[rsu] + offset)
            detections.append(builder.detection(name, _DETECT_CAMERA, own, _IMAGE))
        roadside = builder.task(f"{scene.names[rsu]}/fusion", _FUSE_ROADSIDE)
        builder.edges += [(detection, roadside, _DETECTIONS) for detection in detections]
        builder.edges.append((fused, roadside, _FUSED))
    return builder.build(scene, usable, sighting)


class _Builder:
    """Collects the tasks, edges and sensors of a case; in the problem, sensors follow the devices that compute."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.kinds: list[int] = []
        self.edges: list[tuple[int, int, float]] = []
        self._sensor_of: dict[int, int] = {}
        self._sensors: list[str] = []
        self._positions: list[tuple[float, float]] = []

    def sensor(self, name: str, position: tuple[float, float] | NDArray[np.float64]) -> int:
        """Add a sensor; return its number."""
        self._sensors.append(name)
        self._positions.append((float(position[0]), float(position[1])))
        return len(self._sensors) - 1

    def task(self, name: str, kind: int) -> int:
        """Add a task; return its number."""
        self.names.append(name)
        self.kinds.append(kind)
        return len(self.names) - 1

    def detection(self, name: str, kind: int, sensor: int, size: float) -> int:
        """Add a sensing task and a task that detects objects in its data; return the number of the latter."""
        sense = self.task(name, _SENSE)
        self._sensor_of[sense] = sensor
        detect = self.task(f"{name}/detection", kind)
        self.edges.append((sense, detect, size))
        return detect

    def build(self, scene: Scene, usable: NDArray[np.intp], sighting: Sighting) -> SensorFusionCase:
        """Return the case of these tasks on the ``usable`` devices of a scene."""
        tasks, computing, kinds = len(self.names), len(usable), np.array(self.kinds)
        compute = np.full((tasks, computing + len(self._sensors)), np.inf)
        startup, migration, static = np.full_like(compute, np.inf), np.zeros(tasks), np.zeros(tasks)
        movable = np.flatnonzero(kinds != _SENSE)
        compute[movable, :computing] = scene.seconds[np.ix_(kinds[movable], usable)]
        startup[movable, :computing] = scene.startup_s[np.ix_(kinds[movable], usable)]
        migration[movable], static[movable] = MIGRATION_BYTES[kinds[movable]], STATIC_BYTES[kinds[movable]]
        for task, sensor in self._sensor_of.items():
            compute[task, computing + sensor] = startup[task, computing + sensor] = 0.0
        position = np.concatenate([scene.position[usable], np.array(self._positions)])
        distance = np.hypot(*(position[:, None] - position[None, :]).transpose(2, 0, 1))
        problem = Problem.from_arrays(
            compute,
            np.array([edge[:2] for edge in self.edges], np.int32),
            [edge[2] for edge in self.edges],
            60e6 / 8 * np.exp(-distance / 100),
            np.zeros_like(distance),
            op_names=self.names,
            device_names=[*(scene.names[k] for k in usable.tolist()), *self._sensors],
            kinds=[_KINDS[kind] for kind in self.kinds],
        )
        return SensorFusionCase(problem, migration, static, startup, sighting)
