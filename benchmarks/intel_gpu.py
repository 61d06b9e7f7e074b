"""The CPU and Intel GPUs: right outputs, no request lost, Ctrl-C, and the budget of a search.

It runs on real GPUs, or else on emulated ones (``tests/emulated_gpu``), which are the CPU; then none of the times is a GPU's.
If neither is available, it says why and ends without an error.

Random placements of a small model over the CPU and two GPUs run in one session, in float32 and in float16, and are compared to
the CPU's float32 outputs. Requests with different inputs arrive at a rate on a placement over all devices, and each answer is
compared with the CPU's. Processes that compile for GPUs, or run on them, get Ctrl-C at random moments. One search compiles for
GPUs with an empty cache of compiled programs; its time is the one that ``placeit optimize --json`` reports.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks._gpus import gpus, restart_with_gpus
from benchmarks._harness import Args, Report, main
from benchmarks._models import progress
from placeit.core.interrupts import INTERRUPTED
from placeit.core.placement import Placement
from placeit.devices.openvino import openvino_core
from placeit.measuring.check import OutputDifference
from placeit.planning.segments import Costs, Segmenter
from placeit.session import Session
from tests.emulated_gpu.build import MISSING
from tests.emulated_gpu.models import branches

__all__ = ["MOMENTS", "Ended", "answers", "interrupted", "on_all", "placed", "worst_error"]

MOMENTS = {"compiling": 8.0, "racing": 2.0}
"""The step of a process in which it gets Ctrl-C, and the seconds after the begin of that step within which it does."""

_BATCHES = 8
_TIMEOUT_S = 120.0  # longest time for a process to end, or a request to be answered
_BUDGET_S, _OVER = 60.0, 1.2
_TELLING = f"""
import sys
import placeit.measuring.measure as measure
import placeit.runtime.segment_compiler as compiler
from placeit.__main__ import main
def telling(word, function):
    def call(*args, **options):
        sys.stderr.write(word + "\\n")
        sys.stderr.flush()
        return function(*args, **options)
    return call
compiling, racing = {tuple(MOMENTS)}
compiler.SegmentCompiler.compile = telling(compiling, compiler.SegmentCompiler.compile)
measure.Race.run = telling(racing, measure.Race.run)
main()
"""


@dataclass(frozen=True)
class Ended:
    """How a process ended after Ctrl-C: its exit code (None if it had to be killed), seconds until then, and its last words."""

    code: int | None
    seconds: float
    error: str

    @property
    def as_it_should(self) -> bool:
        """Whether it ended by itself, with the code of an interrupt and no traceback."""
        noise = ("Traceback", "Exception ignored", "bug in placeit")
        return self.code == INTERRUPTED and not any(word in self.error for word in noise)


def placed(session: Session, groups: Sequence[int], *, merge: bool = True) -> Placement:
    """Place the groups of a session on devices, by number. The placement has segments, so it needs no costs."""
    costs = Costs.zero(len(groups), session.cluster)
    plan = Segmenter(session.grouping, costs).plan(np.asarray(groups, np.int32), merge=merge)
    return session.placement(plan.group_devices, plan)


def on_all(session: Session) -> Placement:
    """Place the ends of :func:`branches` on the CPU, and its branches on the first and the last GPU."""
    return placed(session, [0, 1, len(session.cluster) - 1, 0])


def worst_error(tested: Session, exact: Session, placements: int, *, seed: int = 0) -> float:
    """Run random placements, every other one in merged segments, and return the largest relative error of any output."""
    rng, worst = np.random.default_rng(seed), 0.0
    for turn in range(placements):
        groups = rng.integers(len(tested.cluster), size=len(tested.grouping.groups))
        inputs = tested.model.random_inputs(seed + turn)
        report = tested.run(placed(tested, groups.tolist(), merge=turn % 2 == 0), runs=1, warmup=0, inputs=inputs)
        worst = max(worst, OutputDifference.between(report.outputs, exact.reference(inputs)).max_rel)
    return worst


def answers(session: Session, placement: Placement, requests: int, rate: float, tolerance: float = 1e-4) -> tuple[int, int]:
    """Serve requests that arrive at a rate (per second); return how many were lost, and how many were answered wrongly."""
    batches = [session.model.random_inputs(seed) for seed in range(_BATCHES)]
    expected = [session.reference(batch) for batch in batches]
    lost = wrong = 0
    with session.serve(placement, queue=requests) as server:
        futures, begin = [], time.monotonic()
        for number in range(requests):
            time.sleep(max(0.0, begin + number / rate - time.monotonic()))
            futures.append(server.submit(batches[number % _BATCHES]))
        for number, future in enumerate(futures):
            try:
                outputs = future.result(_TIMEOUT_S)
            except Exception:  # noqa: BLE001 (after any error, the request is lost)
                lost += 1
            else:
                wrong += OutputDifference.between(outputs, expected[number % _BATCHES]).wrong(tolerance) is not None
    return lost, wrong


def interrupted(model: Path, placement: Path, moment: str, after: float, folder: Path) -> Ended:
    """Send Ctrl-C to a process that runs a placement, some seconds after it began to compile or to race."""
    command = [sys.executable, "-c", _TELLING, "run", str(model), "-p", str(placement), "--runs", "10000000"]
    # programs in a cache of compiled programs take no time to compile
    env = os.environ | {"PLACEIT_CACHE": str(folder), "PLACEIT_MODEL_CACHE": "1" if moment == "racing" else "0"}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8", env=env) as process:
        assert process.stderr is not None
        try:
            while (line := process.stderr.readline()) and line.strip() != moment:
                pass
            time.sleep(after)
            begin = time.monotonic()
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return Ended(None, time.monotonic() - begin, "")
        finally:
            process.kill()
    return Ended(process.returncode, time.monotonic() - begin, error)


def run(args: Args, report: Report) -> None:
    found = gpus()
    if not found:
        report.note(os.environ.get(MISSING, "OpenVINO finds no Intel GPU, nor the emulated ones."))
        return
    for name in found:
        report.note(f"{name}: {openvino_core().get_property(name, 'FULL_DEVICE_NAME')}")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell inherit that SIGINT is ignored
    placements, requests, interrupts = (6, 100, 4) if args.quick else (50, 1000, 50)
    devices = ("CPU", *found[:2])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = branches(folder)
        with Session(model, devices, cache=None) as session:
            saved = folder / "on_all.json"
            on_all(session).save(saved)
            _outputs(session, model, placements, args.seed, report)
            progress(f"{requests} requests on {', '.join(devices)}")
            lost, wrong = answers(session, on_all(session), requests, 100.0)
            report.claim(f"requests lost, of {requests} at a rate on {len(devices)} devices", lost, "", at_most=0)
            report.claim("requests answered wrongly, of those", wrong, "", at_most=0)
        _interrupts(model, saved, interrupts, args.seed, folder, report)
        _search(branches(folder, layers=2, width=256), devices, folder, report)


def _outputs(session: Session, model: Path, placements: int, seed: int, report: Report) -> None:
    for precision, most in (("f32", 1e-4), ("f16", 2e-2)):
        progress(f"{placements} random placements in {precision}")
        if precision == session.precision:
            worst = worst_error(session, session, placements, seed=seed)
        else:
            with Session(model, session.cluster, precision=precision, cache=None) as other:
                worst = worst_error(other, session, placements, seed=seed)
        report.claim(
            f"largest error of {placements} random placements in {precision}, to the CPU in f32", worst, "", at_most=most
        )


def _interrupts(model: Path, placement: Path, count: int, seed: int, folder: Path, report: Report) -> None:
    rng, bad, longest = random.Random(seed), 0, 0.0
    for turn in range(count):
        moment = tuple(MOMENTS)[turn % 2]
        after = rng.uniform(0, MOMENTS[moment])
        progress(f"Ctrl-C {turn + 1} of {count}, {after:.1f} s after the begin of {moment}")
        ended = interrupted(model, placement, moment, after, folder)
        longest = max(longest, ended.seconds)
        if not ended.as_it_should:
            bad += 1
            report.note(f"Ctrl-C after {after:.2f} s of {moment}: exit code {ended.code}\n{ended.error}")
    report.claim(f"Ctrl-C not answered by exit code {INTERRUPTED}, of {count}", bad, "", at_most=0)
    report.claim("longest time from Ctrl-C to the end of the process", longest, "s")


def _search(model: Path, devices: Sequence[str], folder: Path, report: Report) -> None:
    progress(f"a search on {', '.join(devices)} within {_BUDGET_S:g} s")
    options = ["-d", ",".join(devices), "--budget", f"{_BUDGET_S:g}", "-o", str(folder / "answer.json"), "--json", "--quiet"]
    command = [sys.executable, "-m", "placeit", "optimize", str(model), *options]
    env = os.environ | {"PLACEIT_CACHE": str(folder / "search")}
    done = subprocess.run(command, stdout=subprocess.PIPE, encoding="utf-8", check=True, env=env)
    answer = json.loads(done.stdout)
    budget = answer["budget"]
    report.row(
        search="two branches of two layers, 256 wide",
        candidates=len(answer["candidates"]),
        asked_s=budget["asked_s"],
        spent_s=budget["spent_s"],
        compiling_s=budget["compiling_s"],
    )
    name = "time of a search over its budget, compiling included"
    report.claim(name, budget["spent_s"] / budget["asked_s"], "", at_most=_OVER)


if __name__ == "__main__":
    restart_with_gpus("intel_gpu")
    main("intel_gpu", run)
