"""Estimates from the history of kernel times: each model predicted from all others, and the seconds that an estimate takes.

Models of several families are profiled on one core, as ``placeit profile`` does. Then each is predicted from the history
without it, and without other exports of the same network. Its measured time is taken from the profile.

If the history were good enough, a profile could measure less: only the whole model, with the cost of cuts taken from the other
models. The last column has the effect: the mean error of the simulated times of the model cut into segments at random, with
such costs, against the same error with the full profile.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import fields, replace
from pathlib import Path
from statistics import fmean, median

import numpy as np

from benchmarks._architectures.packaged import LIGHT, PACKAGED
from benchmarks._harness import Args, Report, main
from benchmarks._models import MODELS, model_file, progress
from placeit.backends import load
from placeit.backends.base import Model
from placeit.devices.host import allowed_cores
from placeit.planning.segments import Segmenter
from placeit.profiler.cache import Cache
from placeit.profiler.kernel_history import History, Overheads, ProfiledModel, history_key
from placeit.profiler.kernel_times import KernelTimes
from placeit.profiler.sampling import border_bytes
from placeit.session import Session

QUICK = ("light_squeezenet", "light_shufflenet", "text_detector", "file_type")
_BUDGET_S, _PASSED, _LONG_S = 30.0, 0.15, 1e-3
_DIVISIONS, _CUT_PASSED = 30, 0.05  # divisions of a model; error that a shorter profile may add


def run(args: Args, report: Report) -> None:
    device, names = f"CPU@{min(allowed_cores())}", args.models or (QUICK if args.quick else NAMES)
    with tempfile.TemporaryDirectory() as folder:
        cache, known, profiles = Cache(Path(folder)), dict[str, str](), dict[str, Segmenter]()
        for name in names:
            progress(f"profiling {name}")
            with Session(_read(name), device, cache=cache) as session:
                session.profile(budget_s=_BUDGET_S)
                known[str(session.model.identity)], profiles[str(session.model.identity)] = name, session.segmenter
                begin = time.perf_counter()
                session.estimate()
                taken = time.perf_counter() - begin
                models = History(cache.folder).of(history_key(session.cluster.devices[0], session.precision))
    errors, cut_errors = zip(
        *(_predict(known[one.identity], one, models, profiles[one.identity], report) for one in models), strict=True
    )
    report.claim("error of a model's predicted time, mean", fmean(errors), "", at_most=_PASSED)
    long = [error for error, model in zip(errors, models, strict=True) if model.seconds >= _LONG_S]
    if long:
        report.claim("the same, of models of 1 ms and more, mean", fmean(long), "", at_most=_PASSED)
    report.claim("error of a model's predicted time, median", median(errors), "", at_most=_PASSED)
    report.claim("an estimate, the model being read", taken, "s", at_most=2.0)
    report.claim("a model cut into segments, cuts by the history: error, mean", fmean(cut_errors), "", at_most=_CUT_PASSED)
    report.claim("a model cut into segments, cuts by the history: error, worst model", max(cut_errors), "", at_most=_CUT_PASSED)


def _predict(
    name: str, model: ProfiledModel, models: list[ProfiledModel], profile: Segmenter, report: Report
) -> tuple[float, float]:
    others = [other for other in models if other is not model and _network(other) != _network(model)]
    predicted = float(KernelTimes(others).seconds(model.traits) @ model.ops)
    error, cut_error = abs(predicted / model.seconds - 1), _cut_error(profile, others)
    report.row(
        model=name,
        ops=int(model.ops.sum()),
        measured_ms=model.seconds * 1e3,
        predicted_ms=predicted * 1e3,
        error=error,
        cut_error=cut_error,
    )
    return error, cut_error


def _cut_error(profile: Segmenter, others: list[ProfiledModel]) -> float:
    """Return the mean error of the time of a model in segments, if cuts and dispatches cost the same as for other models."""
    overheads = Overheads(*(median(getattr(other.overheads, field.name) for other in others) for field in fields(Overheads)))
    cut = overheads.cut_each + overheads.cut_byte * border_bytes(profile.graph)[:, None]
    shorter = Segmenter(profile.grouping, replace(profile.costs, cut=cut, dispatch=np.array([overheads.dispatch])))
    rng, groups, found = np.random.default_rng(0), len(profile.graph), []
    for _ in range(_DIVISIONS):
        begins = rng.random(groups) < rng.uniform(0.1, 0.9)
        begins[0] = False
        plans = [each.merged(np.cumsum(begins), np.zeros(groups, np.int32)) for each in (profile, shorter)]
        as_profiled, predicted = (plan.schedule.makespan for plan in plans)
        found.append(abs(predicted / as_profiled - 1))
    return fmean(found)


def _network(model: ProfiledModel) -> str:
    """Return the name of the network, without the name of its exporter."""
    return model.name.removesuffix(".onnx").removeprefix("light_").split("-")[0]


def _read(name: str) -> Model:
    if name in MODELS:
        return load(model_file(name))
    found = (LIGHT if name in LIGHT else PACKAGED)[name]
    sample = found()
    return load(sample.path, input_shapes=found.shapes or None)


NAMES = (*LIGHT, *PACKAGED, *MODELS)

if __name__ == "__main__":
    main("estimates", run, models=NAMES)
