"""Estimates from the history of kernel times: each model predicted from all others, and the seconds that an estimate takes.

Models of several families are profiled on one core, as ``placeit profile`` does. Then each is predicted from the history
without it, and without other exports of the same network. Its measured time is the one of the profile.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import fmean, median

from benchmarks._architectures.packaged import LIGHT, PACKAGED
from benchmarks._harness import Args, Report, main
from benchmarks._models import MODELS, model_file, progress
from placeit.backends import load
from placeit.backends.base import Model
from placeit.devices.host import allowed_cores
from placeit.profiler.cache import Cache
from placeit.profiler.kernel_history import History, Profiled, history_key
from placeit.profiler.kernel_times import KernelTimes
from placeit.session import Session

QUICK = ("light_squeezenet", "light_shufflenet", "text_detector", "file_type")
_BUDGET_S, _PASSED, _LONG_S = 30.0, 0.15, 1e-3


def run(args: Args, report: Report) -> None:
    device, names = f"CPU@{min(allowed_cores())}", args.models or (QUICK if args.quick else NAMES)
    with tempfile.TemporaryDirectory() as folder:
        cache, known = Cache(Path(folder)), dict[str, str]()
        for name in names:
            progress(f"profiling {name}")
            with Session(_read(name), device, cache=cache) as session:
                session.profile(budget_s=_BUDGET_S)
                known[str(session.model.identity)] = name
                begin = time.perf_counter()
                session.estimate()
                taken = time.perf_counter() - begin
                models = History(cache.folder).of(history_key(session.cluster.devices[0], session.precision))
    errors = [_predict(known[model.identity], model, models, report) for model in models]
    report.claim("error of a model's predicted time, mean", fmean(errors), "", at_most=_PASSED)
    long = [error for error, model in zip(errors, models, strict=True) if model.seconds >= _LONG_S]
    if long:
        report.claim("the same, of models of 1 ms and more, mean", fmean(long), "", at_most=_PASSED)
    report.claim("error of a model's predicted time, median", median(errors), "", at_most=_PASSED)
    report.claim("an estimate, the model being read", taken, "s", at_most=2.0)


def _predict(name: str, model: Profiled, models: list[Profiled], report: Report) -> float:
    others = [other for other in models if other is not model and _network(other) != _network(model)]
    predicted = float(KernelTimes(others).seconds(model.traits) @ model.ops)
    error = abs(predicted / model.seconds - 1)
    report.row(model=name, ops=int(model.ops.sum()), measured_ms=model.seconds * 1e3, predicted_ms=predicted * 1e3, error=error)
    return error


def _network(model: Profiled) -> str:
    """Name the network, whoever exported it."""
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
