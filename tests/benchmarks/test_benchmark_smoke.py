"""Every benchmark as a command on the least work: it ends well, and its JSON has the rows and claims that it is there for."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import placeit
from benchmarks import _torch_executor, anytime, calls, decision, executor, loading, memory, simulator, throughput
from benchmarks._fuzz_cases import KINDS
from benchmarks._generation_devices import CLUSTERS, SLOW_CORE, TWO_CORES
from benchmarks._generation_rivals import ALL_CORES, ONE_CORE, ONE_DEVICE, ONNX_RUNTIME, SPLIT, TORCH
from benchmarks._node_cases import FORMS
from benchmarks.papers.doppler import sizes as doppler
from benchmarks.papers.giph import bench as giph
from benchmarks.papers.giph.sizes import QUICK, Sizes
from benchmarks.papers.hsdag import bench as hsdag
from benchmarks.papers.hsdag.paper import LATENCY_MS
from benchmarks.papers.stream.sizes import Sizes as StreamSizes
from examples.decoder import TINY
from placeit.devices.host import allowed_cores
from placeit.session import Session
from tests.emulated_gpu.build import MISSING
from tests.small_models import inception_like

ANYTIME = replace(
    anytime.QUICK,
    problems=1,
    large=(60,),
    seconds=(0.05,),
    evaluations=(1, 3),
    reference=0.05,
    measured=(2,),
    models=("resnet50",),
)
DOPPLER = replace(doppler.QUICK.at(seeds=2, episodes=20), search_s=0.2, samples=4, rounds=6, saved=3, measured_s=20.0)
GIPH = replace(
    Sizes(**{name: most if isinstance(most, tuple) else min(2, most) for name, most in vars(QUICK).items()}),
    seeds=2,
    tests=4,
    max_tasks=8,
    timed_tasks=6,
    timed_sizes=(4,),
)
STREAM = StreamSizes(tests=6, calibration=10, updates=2, train=4, samples=2, evaluations=100, exact=2, operators=8)
SMALL_GRAPH = {"chain-mm": {"size": 64}, "ffnn": {"batch": 64, "features": 8, "hidden": 64}}


class Sure:
    """In place of measured costs, which may drop what they measure on a busy machine: by the plan, and never in doubt."""

    def __init__(self, session: Session, **_: Any) -> None:
        self._segmenter, self._known = session.segmenter, dict[bytes, float]()

    def __call__(self, placements: np.ndarray) -> np.ndarray:
        self._known |= {row.tobytes(): self._segmenter.plan(row).schedule.makespan for row in placements}
        return np.array([self._known[row.tobytes()] for row in placements])

    def winner(self, *_: int) -> Any:
        best = min(self._known, key=lambda key: self._known[key])
        return SimpleNamespace(outcome=SimpleNamespace(devices=np.frombuffer(best, np.int32)))


@dataclass(frozen=True)
class Smoke:
    """A run of a benchmark.

    Attributes:
        command: name and arguments, as after ``python -m benchmarks.``.
        rows: values that a column has to have, by column; others may be there as well.
        claims: words of claims that have to be there, with a value.
        hold: words of claims that hold on any machine, however busy it is.
        least: attributes that make the work small, by name: of the benchmark, or of a module before a colon.
    """

    command: str
    rows: Mapping[str, Collection[Any]] = field(default_factory=dict)
    claims: Collection[str] = ()
    hold: Collection[str] = ()
    least: Mapping[str, Any] = field(default_factory=dict)


QUICKLY = [
    Smoke(
        "bundle --quick",
        {"way": ("OpenVINO alone", "bundle", "bundle, split", "OpenVINO alone, cached", "bundle, cached")},
        ("start to first answer over OpenVINO alone", "the same with compiled models on disk"),
        least={"QUICK_ROUNDS": 1, "load_model": lambda _: inception_like()},
    ),
    Smoke(
        "batching --quick",
        {
            "model": ("perceptron", "resnet50"),
            "what": ("single requests", "auto", "up to 32 rows", "OpenVINO, BATCH:CPU(8)"),
        },
        ("auto over single requests", "resnet50: throughput of auto over the best size"),
        ("wrong outputs",),
        least={"LAYERS": 2, "WIDTH": 64, "QUICK_ROUNDS": 1, "QUICK_ROUND_S": 0.02},
    ),
    Smoke(
        "several_models --quick",
        {"model": ("text_direction", "voice_rate")},
        ("largest load within limits, joint", "predictions that limits are kept"),
        least={"MODELS": ("text_direction", "voice_rate"), "QUICK_SECONDS": 1.0},
    ),
    Smoke(
        "fleet --quick",
        {"way": ("joint", "round robin", "best fit", "declared", "each alone"), "nodes": (60,)},
        ("largest load with 95% of the requests in time, joint",),
        least={"QUICK": {(60, 6): (0.2,)}, "QUICK_STEPS": 14},
    ),
    Smoke(
        "calls --quick",
        {
            "calls": (
                "alone",
                "beside a Python thread",
                f"full, {calls.SMALL.name}",
                "large, 12 MiB in and out",
                "branches of 60 us",
            ),
            "case": (
                calls.RUN_1,
                calls.RUN_2,
                calls.SERVER_2,
                calls.QUEUE_16,
                calls.REPLICAS,
                calls.TIME_SPLIT,
                calls.RUN_SPLIT,
            ),
        },
        ("run over 1.1 times", "run over the work", "server over run", "beside a Python thread", "CPU time", "the caller's"),
        least={"QUICK": calls.Sizes(calls=2, slow=1, rounds=2), "MIB": (12,), "BRANCHES_US": (60.0,)},
    ),
    Smoke(
        "decision --quick",
        claims=("intervals that hold the truth, worst case", "placements at 0.95 chosen within"),
        least={"summary": lambda case, trials, seed, real=decision.summary: real(case, trials // 50, seed)},
    ),
    Smoke(
        "exploring --quick",
        {"way": ("calibrated search", "surrogate", "DOPPLER", "random")},
        ("surrogate less calibrated search",),
        least={"_QUICK_SECONDS": (0.1, 0.3), "measured_model": lambda _: inception_like()},
    ),
    Smoke(
        "gpu --quick --models chain-mm",
        {"graph": ("chain-mm",)} if torch.cuda.is_available() else {"measured": (False,)},
    ),
    Smoke(
        "heuristics --quick",
        {"placer": ("heft", "annealing")},
        ("HEFT, 100 tasks on 10 devices",),
        least={"_names": lambda _: ["heft", "annealing"]},
    ),
    Smoke("intel_gpu --quick"),
    Smoke(
        "lists --quick",
        {"placer": ("heft", "peft", "peft, over channels", "best-list", "drawn"), "family": ("streams", "1000 ops")},
        ("best-list over the better of HEFT and PEFT",),
        ("worst of all",),
    ),
    Smoke("openings --quick", {"races": (4,)}, ("second is faster", "it is slower")),
    Smoke(
        "papers.giph --part depth shipped --quick --workers 0",
        {"part": ("depth", "shipped"), "of": ("seed 0", "seed 1")},
        ("shipped policy, multi", "shipped policy, sensor-fusion, the scene trained on"),
        least={"papers.giph.sizes:QUICK": GIPH},
    ),
    Smoke(
        "papers.stream --part calibration --quick --workers 0",
        {"part": ("calibration",)},
        least={"papers.stream.sizes:QUICK": STREAM},
    ),
    Smoke(
        "serve --quick",
        {
            "what": (
                *("bare handler, echo", "bare handler, model", "placeit serve, HTTP", "placeit serve, gRPC"),
                *("at the limit", "AsyncInferQueue, 64 connections", "placeit serve, 0.9 of capacity"),
                *("reloads", "no attacks", "attacks on another server", "attacks", "number of attacks"),
            )
        },
        (
            "HTTP over a bare handler that runs the same model",
            "HTTP over a bare handler that runs nothing",
            "CPU time of a request, 1 connection, over AsyncInferQueue",
            "most memory that the server has had more during attacks",
        ),
        ("requests lost", "wrong answers", "exit code of the server"),
        {
            "QUICK_TURNS": 20,
            "QUICK_REQUESTS": 100,
            "QUICK_RELOADS": 2,
            "QUICK_SECONDS": 1.0,
            "_serve_loads:ROUNDS": 1,
            "QUICK_LOAD_S": 0.05,
        },
    ),
    Smoke(
        "serving --quick --seconds 150",  # by a clock that goes on by a second at each look
        claims=("kinds of trouble",),
        hold=("not accounted for", "requests that failed", "wrong outputs", "ended twice", "memory over", "threads over"),
        least={"_WAITING": (10,), "time": SimpleNamespace(perf_counter=itertools.count().__next__, sleep=time.sleep)},
    ),
    Smoke(
        "simulator --quick",
        {"links": ("contention-free", "channel"), "variant": ("noise", "memory limit")},
        ("evaluations a second", "speed-up over SimPy", "growth from 100 to 10,000"),
        ("largest relative difference of a makespan from SimPy",),
        {"best": lambda work, _, real=simulator.best: real(work, 0.0)},
    ),
    Smoke(
        "soak --quick",
        {"at": ("model loaded", "profiled", "placement", "session closed"), "placements": (2,)},
        hold=("most memory over the start", "most threads over the start"),
        least={"_QUICK": 2, "_EVERY": 1},
    ),
]
SLOWLY = [
    Smoke(
        "torch_zoo --quick --models mlp",
        {"module": ("mlp",), "reason": ("",)},
        ("modules with an answer or a reason", "answer over the best of the others"),
        ("largest output error",),
        {"QUICK_BUDGET_S": 8.0},
    ),
    Smoke(
        "torch_splits --quick --models ffnn",
        {"rival": [f"{way}, {where}" for way in ("torch.compile", "AOTInductor") for where in ("one core", "both cores")]},
        ("ffnn: time over compiled PyTorch on one core", "ffnn: time over compiled PyTorch on both cores"),
        ("ffnn: output error",),
        {"QUICK_BUDGET_S": 8.0},
    ),
    Smoke("fidelity --quick", {"kind": ("dense", "runs")}, ("mean error as profiled", "mean error calibrated")),
    Smoke(
        "generation --quick --cases clusters texts soak",
        {"cluster": ("two cores", "a core and one 1.5 times as slow"), "texts": ("1 at once", "8 at once"), "requests": (60,)},
        ("simulated time per token", "overhead per hop and token", "tokens per second over one text's", "memory grown"),
        ("tokens that differ", "texts that differ", "60 requests: lost", "60 requests: wrong"),
        {
            "QUICK": TINY,
            "_generation_devices:CLUSTERS": {name: CLUSTERS[name] for name in (TWO_CORES, SLOW_CORE)},
            "_generation_devices:_STEPS": (0, 8),
            "_generation_devices:_TURNS": (0, 6),
            "_generation_devices:_TURN": 2,
            "_generation_sizes:_REQUESTS": (0, 60),
            "_generation_sizes:_RATE": 1000.0,
        },
    ),
    Smoke(
        "recording --quick",
        {"what": ("40 segments of 100 us", "inception_v3", "largest")},
        ("reading meters takes", "40 segments of 100 us: latency while recorded", "inception_v3: latency while recorded"),
        ("critical path leaves open", "size of the largest recording"),
        {"QUICK_ROUNDS": 2, "BLOCK_S": 0.0, "REQUESTS": 3, "METERS_S": 0.3, "load_model": lambda _: inception_like()},
    ),
    Smoke("measured_cost --quick", {"plans": (12,), "failed": (0,)}, ("12 plans", "of them measured")),
    Smoke(
        "anytime --quick --minutes 60 --placers heft annealing giph --workers 0",
        {
            "problems": ("giph", "tensor", "model", "all", "60 ops", "models on unequal cores"),
            "placer": ("heft", "annealing", "giph"),
        },
        ("simulated: share of families and numbers of evaluations where learning pays",),
        least={"QUICK": ANYTIME},
    ),
    Smoke(
        "anytime --quick --minutes 60 --part simulated --seconds 0.5 --placers heft annealing giph --workers 0",
        {"problems": ("giph", "tensor", "model", "all", "60 ops"), "placer": ("heft", "annealing", "giph")},
        ("simulated: share of families and numbers of seconds where learning pays",),
        least={"QUICK": ANYTIME},
    ),
    Smoke("benchmark_app --quick", {"what": ("placeit", "benchmark_app")}, ("what placeit optimize answers over",)),
    Smoke(
        "estimates --quick --models light_squeezenet light_shufflenet file_type",
        {"model": ("light_squeezenet", "light_shufflenet", "file_type")},
        ("error of a model's predicted time, mean", "an estimate, the model being read", "cuts by the history: error, mean"),
    ),
    Smoke(
        "generation --quick --cases rivals encoder",
        {"rival": (ONE_CORE, ONE_DEVICE, ALL_CORES, SPLIT, ONNX_RUNTIME, TORCH)},
        ("time per token over plain OpenVINO on one core", "time over static compilation"),
        ("largest output error",),
        {"QUICK": TINY, "_TOKENS": 8, "_generation_sizes:_LENGTHS": (0, 2)},
    ),
    Smoke(
        "executor --quick",
        {
            "candidate": (executor.ONE, executor.BOTH, "OpenVINO HETERO, on both", "ONNX Runtime, parallel", executor.OURS),
            "plan": ("as it runs", "each group a segment"),
        },
        ("placeit over one core", "dispatch per segment, median", "C functions over Python functions"),
    ),
    Smoke(
        "executor --quick --backend torch --models ffnn",
        {
            "candidate": (_torch_executor.ONE_CORE, _torch_executor.ONE, _torch_executor.OURS, _torch_executor.LEVELS),
            "devices": (_torch_executor.EQUAL, _torch_executor.UNEQUAL),
        },
        ("host overhead per op launched", "the same, simulated: error"),
        least={"_torch_executor:QUICK": SMALL_GRAPH},
    ),
    Smoke(
        "fuzz --last 20",
        {"kind": KINDS, "cases": (20,)},
        hold=("crashed", "hung", "bug", "unclear", "exit code", "wrote", "ran code", "memory"),
    ),
    Smoke("heterogeneous --quick", {"case": ("A", "B")}, ("A: ", "B: share of ops on the fast core")),
    Smoke(
        "loading --quick --models shared",
        {"way": (loading.ALONE, loading.PLACEIT, loading.IN_SEGMENTS)},
        ("latency over OpenVINO alone", "resident in four segments over"),
        ("constants over OpenVINO alone",),
        {"QUICK_WIDTH": 64},
    ),
    Smoke(
        "memory --quick --models branches",
        {"way": (memory.OPENVINO, memory.ONNXRUNTIME, "placeit ort, 4 segments", "build", "optimize")},
        ("peak of placeit, 1 segment", "peak of placeit ort, 4 segments", "peak of build", "peak of optimize"),
        least={"QUICK_WIDTH": 64, "QUICK_BUDGET_S": 0.5},
    ),
    Smoke(
        "models --quick --models many_ends",
        {"model": ("many_ends",)},
        hold=("not read", "without an answer", "wrong outputs", "crash", "hang"),
        least={"QUICK_BUDGET_S": 0.5, "QUICK_SPLITS": 1, "QUICK_ROUNDS": 6},
    ),
    Smoke(
        "onnx_nodes --cases test_cumsum_1d_reverse test_roialign_mode_max test_reduce_sum_keepdims_example",
        {"runtime": ("openvino", "onnxruntime"), "form": FORMS},
        hold=("unclear", "wrong", "crashed", "hung"),
    ),
    Smoke(
        "open_sizes --quick --models gru",
        {"devices": ("OpenVINO", "ONNX Runtime", "both")},
        hold=("other outputs", "without a reason"),
        least={"QUICK_SPLITS": 1},
    ),
    Smoke("optimize --quick", {"cache": ("cold", "warm")}, ("cold cache", "warm cache")),
    Smoke(
        "papers.doppler --part table1 table2 table3 table9 fidelity --quick --workers 0",
        {"part": ("table1", "table2", "table3", "table9", "fidelity")},
        least={
            "papers.doppler.sizes:QUICK": DOPPLER,
            "papers.doppler.executed:MODELS": {"chain-mm": "chain-mm:shards=2,size=64"},
            "papers.doppler.executed:MeasuredCost": Sure,
        },
    ),
    Smoke(
        "papers.giph --quick --workers 0",
        {
            "part": giph.EXPERIMENTS.parts,
            "policy": ("giph", "hdp", "hdp, learning rate 0.01", "heft", "heft, planned"),
            "search": ("giph", "annealing, equal seconds", "guided, equal evaluations"),
            "seen_in_training": (True, False),
        },
        ("GiPH over HEFT's, as planned", "over HDP, trained for each problem", "GiPH is worse than HEFT", "sample in training"),
        least={"papers.giph.sizes:QUICK": GIPH},
    ),
    Smoke(
        "papers.hsdag --quick --part table1 table2 table5",
        {
            "what": ("placeit optimize", "fast", "slow", *list(LATENCY_MS)[2:], "HSDAG, from scratch"),
            "search": ("placeit optimize", "Placeto", "RNN-based", "HSDAG", "HSDAG, from scratch"),
        },
        least={"papers.hsdag.bench:QUICK": hsdag.Sizes(updates=1, measured_s=1, budget_s=3, rounds=6)},
    ),
    Smoke(
        "papers.stream --quick --workers 0",
        {"part": ("calibration", "exact", "fig5", "fig6", "table1")},
        least={"papers.stream.sizes:QUICK": STREAM},
    ),
    Smoke(
        "pipelines --quick",
        {"input": ("layergraphs_gnmt_inference", "operatorgraphs_resnet50_inference")},
        ("annealing over dp, geometric mean of all inputs",),
        least={"_EVALUATIONS": 2000},
    ),
    Smoke(
        "portfolio --quick",
        {"search": ("nothing learned", "shipped policies", "surrogate")},
        ("shipped policies: cases in which it is slower",),
    ),
    Smoke(
        "refining --quick --models inception_v3",
        {"phase": ("before", "trial", "after")},
        ("share of a core for searching",),
        ("not accounted for", "requests that failed", "wrong outputs"),
        {"_MORE": 20, "_QUICK": 5.0},
    ),
    Smoke(
        "runtimes --quick",
        {"candidate": [f"placeit, {of}, two devices" for of in ("OpenVINO", "ONNX Runtime", "one of each")]},
        ("whole model by placeit",),
        ("largest output error",),
    ),
    Smoke(
        "shared_cores --quick", {"what": (f"CPU@{min(allowed_cores())} alone",)}, ("models that run faster on shared cores",)
    ),
    Smoke(
        "throughput --quick",
        {"plan": [f"{throughput._ONE}, 0", throughput._REPLICAS, throughput._OPENVINO, throughput._SEARCHED]},
        ("mean error of simulated seconds", "throughput of two cores", "slowed: seconds per request of the best split"),
    ),
]
ALL = [(one, ()) for one in QUICKLY] + [(one, (pytest.mark.nightly, pytest.mark.timeout(900))) for one in SLOWLY]


@pytest.mark.parametrize("smoke", [pytest.param(one, id=one.command, marks=marks) for one, marks in ALL])
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # by the first import of Inductor in a process
def test_a_benchmark_reports_what_it_is_there_for(
    smoke: Smoke, command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MISSING, "This is a test.")  # or it would start this process anew, with emulated GPUs
    name, _, arguments = smoke.command.partition(" ")
    result = command(name, arguments, smoke.least)
    for column, values in smoke.rows.items():
        assert set(values) <= {row[column] for row in result.rows if column in row}, column
    for words in (*smoke.claims, *smoke.hold):
        found = [claim for name, claim in result.claims.items() if words in name and claim["value"] is not None]
        assert found, words
        assert words in smoke.claims or all(claim["holds"] for claim in found), found


def test_the_policy_of_the_stream_papers_own_training_stands_beside_the_shipped_one(
    command: Callable[..., Any], tmp_path: Path
) -> None:
    weights = Path(placeit.__file__).parent / "learning" / "weights" / "stream-allocation.safetensors"
    (tmp_path / "own.safetensors").write_bytes(weights.read_bytes())
    arguments = f"--part own --quick --workers 0 --work {tmp_path}"
    rows = command("papers.stream", arguments, {"papers.stream.sizes:QUICK": STREAM}).rows
    assert {row["policy"] for row in rows} == {"own", "shipped"}
    for row in rows:
        same = {"rate": row["rate"], "placement": "likeliest"}
        assert len({other["average"] for other in rows if same.items() <= other.items()}) == 1
