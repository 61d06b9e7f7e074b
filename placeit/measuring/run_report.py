"""The result of running a placement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.core.cluster import Cluster
from placeit.core.jsonable import jsonable_dict
from placeit.core.placement import Placement
from placeit.core.views import Shown
from placeit.devices.meters import Series
from placeit.devices.nvml import GpuUse
from placeit.measuring.check import OutputDifference
from placeit.measuring.statistics import Measurement
from placeit.planning.segments import Plan
from placeit.runtime.spans import Done, Span

__all__ = ["AtSize", "RunReport"]


@dataclass(frozen=True)
class AtSize:
    """Measured and simulated times of requests of one size.

    Attributes:
        shapes: shapes of the inputs with open sizes, by name.
        measured_s: median seconds of some requests.
        simulated_s: simulated seconds, from the times of segments at the next smaller and the next larger size; None for a size
            at which the times of segments are known.
    """

    shapes: Mapping[str, tuple[int, ...]]
    measured_s: float
    simulated_s: float | None


@dataclass(frozen=True, eq=False)
class RunReport(Shown):
    """The result of running a placement.

    Attributes:
        model: path of the model.
        placement: the placement that ran.
        cluster: the devices.
        warmup: runs before the timed ones.
        duration_s: seconds that the timed runs were to take; None if their number was given.
        latency: seconds of single requests, from the call to the answer.
        inner_s: median seconds of these requests from the start of their lanes to the end of the last segment.
        disturbed: number of these requests that ran while something else disturbed the machine.
        left_out: number of further requests that were disturbed, and do not count.
        utilization: share of the time that each device computed, during the traced run.
        output_error: difference of the outputs from the outputs of the whole model on one device.
        precision: precision of the devices.
        failed: why the outputs are wrong, by the session's tolerance; None if they are right.
        spans: segments and transfers of the traced run, with their times.
        done: the timed runs, the last ones if there were many.
        traced: the run of ``spans``; None if there was no traced run.
        readings: readings of meters during the timed runs.
        outputs: outputs of the traced run, by name.
        plan: the plan that ran.
        simulated_s: simulated seconds of a request; None if the model has not been profiled.
        segment_s: median seconds of each segment of the plan in the timed runs, ``float64[S]``; 0 for one that runs nothing.
        native: whether the plan's lanes needed no Python from the start of a request to its end.
        host_paced: devices with streams on which no segment was launched ahead, as another device has no streams or was slowed
            down on purpose: the host waited for the end of each of their segments.
        refused: why the compiler of a device refused segments, which ran op by op, by their numbers in the plan.
        gpus: how busy each NVIDIA GPU of the machine was during the timed runs, by name; empty without NVML.
        sizes: times at several sizes, ascending, if sizes are open.
        spinning: share of one core that threads of devices spent spinning.
        interrupted: whether Ctrl-C ended the timed runs early. Then there is no traced run and no outputs, and
            ``output_error`` is that from the check before the timed runs.
    """

    model: str
    placement: Placement
    cluster: Cluster
    warmup: int
    duration_s: float | None
    latency: Measurement
    utilization: dict[str, float]
    output_error: OutputDifference
    failed: str | None
    spans: list[Span]
    outputs: dict[str, NDArray[np.generic]]
    plan: Plan
    simulated_s: float | None
    segment_s: NDArray[np.float64]
    native: bool
    host_paced: tuple[str, ...]
    inner_s: float
    gpus: Mapping[str, GpuUse]
    refused: Mapping[int, str]
    done: Sequence[Done] = ()
    traced: Done | None = None
    readings: Sequence[Series] = ()
    interrupted: bool = False
    disturbed: int = 0
    left_out: int = 0
    sizes: Sequence[AtSize] = ()
    precision: str = "f32"
    spinning: float = 0.0

    def __repr__(self) -> str:
        right = self.failed or f"output error {self.output_error.max_rel:.1e}"
        return f"<RunReport of {self.model}: {self.placement!r}, {self.latency!r}, {right}>"

    def to_dict(self) -> dict[str, Any]:
        """Return the report for JSON, as ``placeit run --json`` prints it beside the names of files."""
        latency = self.latency
        return jsonable_dict(
            {
                "model": self.model,
                "devices": self.placement.counts(),
                "precision": self.precision,
                "segments": len(self.plan.programs),
                "native": self.native,
                "spinning": self.spinning,
                "host_paced": list(self.host_paced),
                "refused": [{"segment": s, "why": why} for s, why in self.refused.items()],
                "runs": len(latency.samples),
                "warmup": self.warmup,
                "duration_s": self.duration_s,
                "latency_s": {"median": latency.median, "p95": latency.p95, "ci": (latency.ci_low, latency.ci_high)},
                "inner_s": self.inner_s,
                "disturbed": self.disturbed,
                "left_out": self.left_out,
                "simulated_s": self.simulated_s,
                "utilization": self.utilization,
                "gpus": {name: vars(use) for name, use in self.gpus.items()},
                "output_error": self.output_error.to_dict(),
                "failed": self.failed,
                "sizes": [
                    {"shapes": one.shapes, "measured_s": one.measured_s, "simulated_s": one.simulated_s} for one in self.sizes
                ],
                "emulated": self.cluster.emulated_names,
                "interrupted": self.interrupted,
            }
        )
