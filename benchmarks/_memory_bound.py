"""Models that memory bounds: each placement of them runs alone, in a separate process, as a user runs it.

Such a model reads each weight once, for a product with one row, so its time depends on the contents of the caches when it
begins: after other programs it takes up to twice as long as after itself.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._harness import Report
from benchmarks._models import progress, side_by_side, two_cores
from examples.decoder import Decoder, write_decoder
from examples.generate_text import generate, inputs_of, shapes
from placeit.backends.base import Arrays
from placeit.core.placement import Placement
from placeit.core.telemetry import import_openvino
from placeit.optimizer.certainty import excluded
from placeit.placers.bound import lower_bound
from placeit.planning.segments import Plan
from placeit.session import Inputs, Session

__all__ = ["MEMORY_BOUND", "run"]

MEMORY_BOUND = ("mlp_64mb", "lstm", "decoder_step", "two_branches")
"""Names of the models."""

_WIDE = 1024
_DECODER = Decoder(layers=6, width=512, heads=8, kv_heads=4, hidden=1536, vocabulary=8192, positions=256)  # 92 MB
_PROMPT, _TOKENS = 64, 48
_STEPS = 600  # steps of a search among plans
_FIRST = 0.2  # share of the runs that are left out, while the process warms up


@dataclass(frozen=True)
class _Alone:
    """Runs of one placement alone, for another process.

    Attributes:
        model: its file.
        sizes: sizes of the inputs of a decoder, typical for the step that is timed; empty for other models.
        devices: names.
        placement: its file.
        runs: how many.
    """

    model: str
    sizes: Mapping[str, Any]
    devices: tuple[str, ...]
    placement: str
    runs: int


def run(name: str, report: Report, *, quick: bool, seed: int) -> None:
    """Compare simulated times and lower bounds with the times that single devices and splits take when they run alone."""
    devices = tuple(f"CPU@{core}" for core in two_cores())
    with tempfile.TemporaryDirectory() as folder:
        path = _write(name, Path(folder))
        sizes = shapes(inputs_of(path), _PROMPT, _TOKENS, "token") if name == "decoder_step" else {}
        with Session(path, devices, inputs=Inputs(shapes=sizes), cache=None) as session:
            costs = session.profile(progress=progress)
            plans = dict(_plans(session, devices, seed))
            predicted = {what: plan.schedule.makespan for what, plan in plans.items()}
            bound, certain = lower_bound(session.segmenter.problem()), excluded(session, costs.core)
            control = side_by_side(session)
            for what, plan in plans.items():
                session.placing.placement(plan.group_devices, plan).save(Path(folder) / f"{what}.json")
        measured: dict[str, float] = {}
        for what in plans:
            progress(f"running {what} of {name} by itself")
            asked = _Alone(str(path), sizes, devices, str(Path(folder) / f"{what}.json"), 40 if quick else 300)
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                measured[what] = process.submit(_take, asked).result()
    for what, plan in plans.items():
        report.row(
            model=name,
            placement=what,
            segments=len(plan.programs),
            simulated_ms=predicted[what] * 1e3,
            alone_ms=measured[what] * 1e3,
            off_by_percent=(predicted[what] / measured[what] - 1) * 100,
            disturbed=costs.profiled is not None and costs.profiled.disturbed,
            control=control,
        )
    errors = [abs(predicted[what] / measured[what] - 1) * 100 for what in plans]
    report.claim(f"{name}: largest error of what runs by itself", max(errors), "%", at_most=5)
    said = max(bound, 0.0 if certain is None else certain.bound_s)
    splits = [measured[what] for what in plans if what not in devices]
    report.claim(f"{name}: lower bound over the fastest split by itself", said / min(splits), "", at_most=1)


def _plans(session: Session, devices: tuple[str, ...], seed: int) -> Iterator[tuple[str, Plan]]:
    """Yield the whole model on each device, its halves on two devices, and the best plans of a search that starts there."""
    segmenter, groups = session.segmenter, len(session.grouping.groups)
    for d, device in enumerate(devices):
        yield device, segmenter.plan(np.full(groups, d, np.int32))
    halves = np.array(np.arange(groups) * 2 // groups, np.int32)
    yield "halves", segmenter.plan(halves)
    found = segmenter.search(halves, segmenter.problem(), steps=_STEPS, seed=seed)
    if len(np.unique(found)) > 1:
        yield "searched", segmenter.plan(found)
    branches = _branches(session)
    if branches is not None:
        yield "branches", segmenter.plan(branches)


def _branches(session: Session) -> NDArray[np.int32] | None:
    """Return two parts of the groups without an edge between them, except from groups that read nothing; None if impossible."""
    edges, groups = session.grouping.groups.edges, len(session.grouping.groups)
    reading = np.zeros(groups, bool)
    reading[edges[:, 1]] = True
    part = np.arange(groups)
    for u, v in edges[reading[edges[:, 0]]].tolist():
        part[part == part[v]] = part[u]
    found = np.unique(part[reading])
    return None if len(found) != 2 else (part == found[1]).astype(np.int32)


def _take(asked: _Alone) -> float:
    """Return the median seconds of runs, by the clock of their caller."""
    placement = Placement.load(asked.placement)
    with Session(asked.model, asked.devices, inputs=Inputs(shapes=dict(asked.sizes)), cache=None) as session:
        if asked.sizes:
            seconds = _steps(session, placement, asked)
        else:
            with session.executor(session.plan_of(placement)) as executor:
                seconds = [_timed(executor.time) for _ in range(asked.runs)]
    return float(np.median(seconds[int(_FIRST * len(seconds)) :]))


def _steps(session: Session, placement: Placement, asked: _Alone) -> list[float]:
    """Return the seconds of tokens in generated texts."""
    seconds = list[float]()
    prompt = np.random.default_rng(0).integers(3, _DECODER.vocabulary, _PROMPT).tolist()
    with session.serve(placement) as server:
        while len(seconds) < asked.runs:
            with server.sequence() as sequence:
                times = list[float]()

                def step(inputs: Arrays, sequence: Any = sequence, times: list[float] = times) -> Arrays:
                    outputs: list[Arrays] = []
                    times.append(_timed(lambda: outputs.append(sequence.run(inputs))))
                    return outputs[0]

                generate(step, [*asked.sizes], prompt, _TOKENS)
            seconds += times[1:]  # the first time is the prompt's
    return seconds


def _timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _write(name: str, folder: Path) -> Path:
    """Write a model with random weights, and return its file."""
    path = folder / f"{name}.xml"
    if name == "decoder_step":
        return write_decoder(_DECODER, path)
    openvino = import_openvino()
    ops, random = openvino.opset13, np.random.default_rng(0)

    def weights(rows: int) -> Any:
        return ops.constant((random.standard_normal((rows, _WIDE)) / _WIDE**0.5).astype(np.float32))

    def products(x: Any, count: int) -> Any:
        for _ in range(count):
            x = ops.relu(ops.matmul(x, weights(_WIDE), False, False))
        return x

    x = ops.parameter([1, _WIDE], np.float32, name="in")
    if name == "mlp_64mb":
        outputs, inputs = [products(x, 16)], [x]
    elif name == "two_branches":
        outputs, inputs = [products(x, 8), products(x, 8)], [x]
    else:
        outputs, inputs = [], [x]
        h: Any = x
        for layer in range(2):
            state = [ops.parameter([1, _WIDE], np.float32, name=f"{what}{layer}") for what in "hc"]
            bias = ops.constant(np.zeros(4 * _WIDE, np.float32))
            cell = ops.lstm_cell(h, *state, weights(4 * _WIDE), weights(4 * _WIDE), bias, _WIDE)
            h, inputs = cell.output(0), [*inputs, *state]
            outputs += [cell.output(1)]
        outputs.append(h)
    model = openvino.Model([ops.result(output) for output in outputs], inputs, name)
    openvino.save_model(model, path, compress_to_fp16=False)
    return path
