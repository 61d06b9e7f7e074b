"""Races of placements and of OpenVINO's automatic modes, with a check of their outputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks._models import settled_race
from benchmarks._plain import Plain, bound_thread, by_name, openvino_alone
from placeit.backends.openvino.model import OpenVinoModel
from placeit.core.placement import Placement
from placeit.devices.openvino import openvino_core
from placeit.measuring.check import OutputDifference
from placeit.measuring.statistics import Measurement, Ratio, faster
from placeit.session import Session

__all__ = ["AUTOMATIC", "Entry", "Raced", "Ratios", "race"]

Ratios: TypeAlias = Mapping[tuple[str, str], Ratio]

AUTOMATIC: Mapping[str, str] = {"OpenVINO, CPU first": "AUTO:CPU", "OpenVINO, GPU first": "AUTO"}
"""Automatic modes by their rows in Table 2. With only a CPU they have one device to choose from."""


@dataclass(frozen=True)
class Entry:
    """A participant of a race: a placement, or a device name of OpenVINO's that runs on the first core."""

    name: str
    placement: Placement | str


@dataclass(frozen=True)
class Raced:
    """Result of an entry.

    Attributes:
        measured: seconds.
        ratio: time over the anchor's time in the same rounds, with its interval.
        max_rel: largest difference from the outputs of the uncut model, over their largest value.
        l2: 2-norm of the difference, over all outputs together.
        mse: mean square of the difference.
        cosine: cosine of the angle between the outputs and the outputs of the uncut model.
    """

    measured: Measurement
    ratio: Ratio
    max_rel: float
    l2: float
    mse: float
    cosine: float


def race(
    session: Session, entries: list[Entry], anchor: str, core: int, *, rounds: int, seed: int
) -> tuple[dict[str, Raced], Ratios]:
    """Race all entries, interleaved; return the result of each entry, and the ratio of each pair."""
    assert isinstance(session.model, OpenVinoModel)
    inputs = session.model.sample_inputs()
    expected = session.reference(inputs)
    timers: dict[str, Callable[[], float]] = {}
    errors: dict[str, tuple[float, float, float, float]] = {}
    whole = _one(expected)
    with ExitStack() as stack:
        for entry in entries:
            if isinstance(entry.placement, Placement):
                executor = stack.enter_context(session.executor(session.plan_of(entry.placement)))
                error = session.reference.check(executor).max_rel
                outputs = executor.run(inputs)
                timers[entry.name] = executor.time
            else:
                plain = _automatic(session.model, entry.placement, core, stack)
                outputs = by_name(session.model, plain.run())
                error = OutputDifference.between(outputs, expected).max_rel
                timers[entry.name] = plain.time
            mine = _one({name: outputs[name] for name in expected})
            far, norms = float(np.square(mine - whole).sum()), float(np.linalg.norm(mine) * np.linalg.norm(whole))
            errors[entry.name] = error, far**0.5, far / whole.size, float(mine @ whole) / norms if norms else 1.0
        found = settled_race(timers, rounds=rounds, seed=seed)
    ratios = {(one, other): faster(found[one], found[other]) for one in found for other in found if one != other}
    own = Ratio(1.0, 1.0, 1.0)
    raced = {name: Raced(found[name], ratios.get((name, anchor), own), *errors[name]) for name in found}
    return raced, ratios


def _one(outputs: Mapping[str, NDArray[np.generic]]) -> NDArray[np.float64]:
    """Return all outputs as one vector."""
    return np.concatenate([outputs[name].astype(np.float64).ravel() for name in outputs])


def _automatic(model: OpenVinoModel, device: str, core: int, stack: ExitStack) -> Plain:
    """Compile a model for an automatic mode of OpenVINO, on one thread that is bound to a core, as a one-core device's is."""
    thread = stack.enter_context(bound_thread(core))
    options: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "DEVICE_PROPERTIES": {"CPU": {"INFERENCE_NUM_THREADS": 1, "ENABLE_CPU_PINNING": False}},
    }
    compiled = thread.submit(functools.partial(openvino_core().compile_model, model.ov_model, device, options)).result()
    values = [model.sample_inputs()[spec.name] for spec in model.inputs]
    return Plain(thread.submit(openvino_alone, compiled, values).result(), thread)
