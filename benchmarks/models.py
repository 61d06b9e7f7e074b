"""placeit on real kinds of models: whether it reads them, how fast its answer is, and whether splits compute the same.

Models are part of packages, or are published architectures with random weights, as files of every kind that placeit reads
(``_architectures``). Each is read, and given to ``placeit.optimize`` with no devices named and a small budget. The answer is
called by ``Optimized.run``, as programs do, in the same race as the plain runtimes, which are called as programs without
placeit call them: OpenVINO (``read_model``, ``compile_model`` in float32, ``compiled(inputs)``), ONNX Runtime
(``InferenceSession.run``, its defaults), and PyTorch for its own programs. All are timed by the clock of the caller, in
interleaved blocks of consecutive calls. Another column has the answer's time by placeit's clock.

A model holds if it is read, with no more memory for constants than OpenVINO takes; if a call of the answer takes at most 1.05
times as long as a call of the fastest plain runtime, within the interval of the ratio; and if the outputs of the answer, and of
random splits over two cores, by each runtime that runs the model, equal the plain runtime's within placeit's tolerance.

Each model is tried in a separate process: its peak of memory is the peak from the file to the answer. If it crashes or hangs,
its row says so. Below the table, the reasons why models do not hold are listed, in the words of the errors.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks._architectures import KINDS, Sample, make
from benchmarks._child import Child, Ended
from benchmarks._harness import Args, Report, main
from benchmarks._model_trial import MOST, ONNX_RUNTIME, OPENVINO, OWN, PLACEIT, PYTORCH, Trial, Wrong, serve
from benchmarks._models import progress, two_cores

QUICK = ("file_type", "voice_if", "mobilenet", "llama_decoder", "int8_cnn", "contrib", "branch", "ir", "pt2_cnn")
BUDGET_S, QUICK_BUDGET_S = 10.0, 5.0
SPLITS, QUICK_SPLITS = 12, 4
ROUNDS, QUICK_ROUNDS = 40, 16
MAX_NOTED = 5  # failures of a model, in the progress
MAX_SHOWN = 3  # failures of one kind on one pair of devices, in the table
_CASE_S = 240.0


def run(args: Args, report: Report) -> None:
    names = args.models or (QUICK if args.quick else tuple(KINDS))
    budget, splits = (QUICK_BUDGET_S, QUICK_SPLITS) if args.quick else (BUDGET_S, SPLITS)
    rounds = QUICK_ROUNDS if args.quick else ROUNDS
    arguments = (two_cores(), budget, splits, rounds, args.seed)
    found: dict[str, Trial] = {}
    if (load := os.getloadavg()[0]) > 1:
        report.note(
            f"  Other work is running (load {load:.1f}): waking a thread takes longer then, and ratios of times say little."
        )
    with tempfile.TemporaryDirectory() as folder:
        making, trying = Path(folder, "making"), Path(folder, "trying")
        making.mkdir()
        trying.mkdir()
        with Child(making, _serve_making, case_s=_CASE_S) as maker:
            for number, name in enumerate(names):
                progress(f"{number + 1} of {len(names)} models: {name}")
                found[name] = _tried(_made(maker, name, making), trying, arguments)
                report.note(f"    {_told(found[name])}")
                for wrong in found[name].wrong[:MAX_NOTED]:
                    report.note(f"    {wrong.what}, {wrong.where}: {wrong.reason}")
    fill(report, found)


def _serve_making(connection: Connection, _: str) -> None:
    """Write models into folders, by name, and answer with the sample, or with the reason why it cannot be made."""
    connection.send("ready")
    while (request := connection.recv()) is not None:
        name, folder = request
        try:
            connection.send(make(name, folder))
        except Exception as error:  # noqa: BLE001 (tools of other libraries raise any exception)
            connection.send((error,))  # strings are messages about the current step


def _made(maker: Child, name: str, folder: Path) -> Sample | str:
    """Write a model, or return the reason why it cannot be made."""
    try:
        answer = maker.ask((name, folder / name))
    except Ended as end:
        return str(end)
    return answer if isinstance(answer, Sample) else f"{type(answer[0]).__name__}: {answer[0]}"


def _tried(sample: Sample | str, folder: Path, arguments: tuple[object, ...]) -> Trial:
    if isinstance(sample, str):
        return Trial(wrong=[Wrong("made", "-", sample)])
    with Child(folder, serve, arguments, case_s=_CASE_S) as child:
        try:
            found: Trial = child.ask(sample)
        except Ended as end:
            return Trial(wrong=[Wrong(end.status, end.doing, end.words)])
    return found


def fill(report: Report, found: Mapping[str, Trial]) -> None:
    """Add the table, the checks that do not hold, and the claims."""
    for name, trial in found.items():
        report.row(
            model=name,
            ops=trial.ops,
            groups=trial.groups,
            reads_s=trial.reads_s,
            constants_mb=None if trial.constants is None else trial.constants / 1e6,
            over_plain=_over(trial.constants, trial.plain_constants),
            optimize_s=trial.optimize_s,
            peak_mb=None if trial.memory is None else trial.memory / 1e6,
            splits=trial.splits,
            error=trial.error,
            tolerance=trial.tolerance,
            holds=not trial.wrong,
        )
    for name, trial in found.items():
        ms = {who: trial.times[who].median * 1e3 if who in trial.times else None for who in _RUNTIMES}
        ratio = trial.ratio
        report.row(
            model=name,
            answer=trial.answer,
            openvino_ms=ms[OPENVINO],
            onnxruntime_ms=ms[ONNX_RUNTIME],
            pytorch_ms=ms[PYTORCH],
            answer_ms=ms[PLACEIT],
            own_clock_ms=ms[OWN],
            ratio=None if ratio is None else ratio.ratio,
            low=None if ratio is None else ratio.ci_low,
            high=None if ratio is None else ratio.ci_high,
        )
    for name, trial in found.items():
        alike: Counter[tuple[str, str]] = Counter()
        for wrong in trial.wrong:
            kind = (wrong.what, wrong.where.rpartition(" on ")[2])
            alike[kind] += 1
            if alike[kind] <= MAX_SHOWN:
                report.row(model=name, does_not_hold=wrong.what, where=wrong.where, reason=wrong.reason)
        for runtime, why in trial.plain.items():
            if why:
                report.row(model=name, plain_runtime=runtime, does_not_run_it=why)
    for what, title in _CLAIMS.items():
        bad = sum(any(wrong.what == what for wrong in trial.wrong) for trial in found.values())
        report.claim(f"{title}, of {len(found)}", bad, "models", at_most=0)
    ratios = [trial.ratio.ratio for trial in found.values() if trial.ratio is not None]
    above = sum(ratio > MOST for ratio in ratios)
    report.claim(f"answers over {MOST:g} times the fastest plain runtime, within the interval or beyond", above, "models")
    report.claim("largest ratio of the answer to the fastest plain runtime", max(ratios, default=None), "")


def _told(trial: Trial) -> str:
    """Return the outcome of a model in a line."""
    ratio = trial.ratio
    time = "not raced" if ratio is None else f"{ratio.ratio:.3g} ({ratio.ci_low:.3g} to {ratio.ci_high:.3g}) of the fastest"
    return f"{time}; {trial.splits} splits; {len(trial.wrong)} wrong"


def _over(value: float | None, of: float | None) -> float | None:
    return value / of if value is not None and of else None


_RUNTIMES = (OPENVINO, ONNX_RUNTIME, PYTORCH, PLACEIT, OWN)
_CLAIMS = {
    "made": "models that could not be written",
    "reads": "models not read, or with more constants than OpenVINO has",
    "answers": "models without an answer that runs",
    "in time": f"answers over {MOST:g} times the fastest plain runtime beyond the interval, by the caller's clock",
    "right": "models with wrong outputs, or with splits that fail",
    "crashed": "models that crash",
    "hung": "models that hang",
}


if __name__ == "__main__":
    main("models", run, models=tuple(KINDS))
