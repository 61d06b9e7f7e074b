"""The answer of ``placeit optimize`` without options on ResNet-50, against OpenVINO's ``benchmark_app -d CPU -hint latency``.

Both run at the same precision, in separate processes that take turns; the order of each round is drawn at random. The median
latencies that the processes report are compared, paired by round.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks._harness import Args, Report, main
from benchmarks._models import model_file, progress
from placeit.core.errors import ExecutionError
from placeit.measuring.statistics import faster, summed_up

_PLACEIT = (sys.executable, "-m", "placeit")
_QUIET_APP = (
    "from placeit.core.telemetry import import_openvino; import_openvino(); "
    "from openvino.tools.benchmark.main import main; main()"
)
_APP = (sys.executable, "-c", _QUIET_APP)
_MODEL = "resnet50"


def run(args: Args, report: Report) -> None:
    path, rounds, seconds = model_file(_MODEL), (6 if args.quick else 12), (1 if args.quick else 4)
    with tempfile.TemporaryDirectory() as folder:
        placement = Path(folder) / "placement.json"
        progress(f"placeit optimize {_MODEL}")
        answer = json.loads(
            _output([*_PLACEIT, "optimize", str(path), "-o", str(placement), "--seed", str(args.seed), "--json"])
        )
        chosen = answer["chosen"]["name"]
        report.note(f"  {chosen}: {answer['reason']}")
        app = [*_APP, "-m", str(path), "-d", "CPU", "-hint", "latency", "-infer_precision", "f32", "-t", str(seconds)]
        ours = [*_PLACEIT, "run", str(path), "-p", str(placement), "--duration", str(seconds), "--json"]
        samples: dict[str, list[float]] = {"placeit": [], "benchmark_app": []}
        random = np.random.default_rng(args.seed)
        for turn in range(rounds):
            progress(f"round {turn + 1} of {rounds}")
            for who in random.permutation(list(samples)).tolist():
                samples[who].append(
                    _app_median(_output(app)) if who == "benchmark_app" else json.loads(_output(ours))["latency_s"]["median"]
                )
    found = {who: summed_up(who, times, range(rounds)) for who, times in samples.items()}
    ratio = faster(found["placeit"], found["benchmark_app"])
    for who, measured in found.items():
        report.row(
            what=who,
            answer=chosen if who == "placeit" else "CPU",
            median_ms=measured.median * 1e3,
            low_ms=measured.ci_low * 1e3,
            high_ms=measured.ci_high * 1e3,
        )
    report.row(ratio=ratio.ratio, ratio_low=ratio.ci_low, ratio_high=ratio.ci_high)
    report.claim(f"{_MODEL}: time of what placeit optimize answers over benchmark_app", ratio.ratio, "", at_most=1.05)


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        raise ExecutionError(f"'{' '.join(command)}' failed with exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def _app_median(text: str) -> float:
    """Return the median that ``benchmark_app`` prints, in seconds."""
    found = re.search(r"Median:\s+([\d.]+) (ms|us)", text)
    if found is None:
        raise ExecutionError("benchmark_app prints no median latency.")
    return float(found[1]) * (1e-3 if found[2] == "ms" else 1e-6)


if __name__ == "__main__":
    main("benchmark_app", run)
