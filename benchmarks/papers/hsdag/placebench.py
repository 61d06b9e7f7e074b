"""HSDAG and other searches on unequal devices, in simulation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

from benchmarks._harness import Report
from benchmarks._models import progress
from benchmarks.papers.hsdag.bench import Bench
from placeit.bench.problems import BenchProblem, built, stored
from placeit.core.files import write_text
from placeit.learning.agent import ProblemInstance
from placeit.learning.registry import make_agent
from placeit.learning.training.loop import train
from placeit.learning.training.sources import draw_from
from placeit.learning.training.stages import Stage, default_stages, scale_updates
from placeit.learning.training.valuing import finite_or_nan
from placeit.placers.base import Incumbent
from placeit.placers.registry import parse_placer

__all__ = ["unequal"]

_CLUSTERS: Mapping[str, tuple[str, ...]] = {"resnet50": ("soc",), "inception_v3": ("soc",), "bert_base": ("soc", "edge")}
_SEEDS, _STEPS, _LONG = 3, 20, 250_000  # seeds; placements of an episode; evaluations of the search for the reference
_PAPER: Mapping[str, Any] = {"epochs": 4, "learning_rate": 1e-4, "reward_to_go": False}
_CODE: Mapping[str, Any] = {"learning_rate": 1e-3}
_RULES: Mapping[str, Any] = {"problems": 1, "gamma": 0.95, "baseline": "none", "normalize": False}
_SETTINGS: Mapping[str, tuple[bool, Mapping[str, Any] | None]] = {
    "HSDAG, the public code's settings": (True, _RULES | _CODE),
    "HSDAG, placeit's settings": (False, None),
    "HSDAG, the paper's settings": (True, _RULES | _PAPER),
}
"""Trainings by their rows: whether edges are symmetric, and options of the stage; None for the agent's default."""

_UNLEARNED: Mapping[str, bool] = {"same moves, untrained policy": False, "same moves, uniform": True}
_PLACERS: Mapping[str, str] = {
    "fastest device": "single",
    "HEFT": "heft",
    "METIS": "metis",
    "random placements": "random",
    "Placeto": "placeto",
    "RNN-based": "hdp:samples=20",
    "annealing": "annealing",
}

Found: TypeAlias = tuple[float, float | None]
"""The best value that a search met, and the value of the policy's likeliest placement."""


def unequal(bench: Bench, report: Report) -> None:
    """PlaceBench. Unequal devices, in simulation.

    Latency of models of PlaceBench on its clusters `soc` (CPU, GPU and NPU of one chip) and `edge` (five unequal boards), as
    ratios to annealing with 250,000 evaluations: least, median and most of three seeds. All searches may value 2,000
    placements, which are the paper's 100 episodes of 20. Values are simulated, so they are the same on every machine.

    The paper's settings are in Table 6 and Eq. 14: a learning rate of 0.0001, four gradient steps an episode, each step
    counts as its own reward, no baseline and no bonus for entropy. The public code's: 0.001, one gradient step, discounted sums
    of rewards; here it also has 100 episodes, not 25. The discount, 0.95, is the public code's, since the paper gives none.
    Both with `symmetric=true`. placeit's settings are the agent's default stage, with 25 updates of four episodes.
    ``likeliest`` is the placement that the policy likes best when training has ended.
    """
    path = bench.folder / "placebench.json"
    kept: dict[str, Found] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    seeds = range(bench.seed, bench.seed + (_SEEDS if bench.sizes.updates >= 100 else 1))

    def found(key: str, run: Callable[[], Found]) -> Found:
        if key not in kept:
            progress(key)
            kept[key] = run()
            write_text(path, json.dumps(kept, indent=1) + "\n")
        return kept[key]

    for name in [f"{model}/{cluster}/latency" for model in bench.models for cluster in _CLUSTERS[model]]:
        problem = built(name, stored()["graphs"][name.partition("/")[0]])
        searches = _searches(problem, bench.sizes.updates * _STEPS)
        values: dict[str, list[Found]] = {search: [] for search in searches}
        for seed in seeds:
            for search, run in searches.items():
                values[search].append(found(f"{name}, {search}, seed {seed}", partial(run, seed)))
        reference, _ = found(f"{name}, reference", lambda: (_placed(problem, "annealing", bench.seed, _LONG), None))  # noqa: B023
        for search, some in values.items():
            ratios = np.array(some, float) / reference
            least, median, most = np.quantile(ratios[:, 0], (0, 0.5, 1))
            likeliest = None if np.isnan(ratios).any() else np.median(ratios[:, 1])
            report.row(
                part="placebench", problem=name, search=search, least=least, median=median, most=most, likeliest=likeliest
            )


def _searches(problem: BenchProblem, limit: int) -> dict[str, Callable[[int], Found]]:
    """Return functions of a seed that search with at most ``limit`` evaluations, by their rows."""
    return {
        **{row: lambda seed, text=text: (_placed(problem, text, seed, limit), None) for row, text in _PLACERS.items()},
        **{row: lambda seed, of=of: _trained(problem, limit, seed, *of) for row, of in _SETTINGS.items()},
        **{row: lambda seed, to=to: _unlearned(problem, limit, seed, uniform=to) for row, to in _UNLEARNED.items()},
    }


def _placed(problem: BenchProblem, placer: str, seed: int, limit: int) -> float:
    found = parse_placer(placer).place(problem.problem, problem.cost(), seed=seed, evaluations=limit)
    return problem.value(found)


def _trained(problem: BenchProblem, limit: int, seed: int, symmetric: bool, options: Mapping[str, Any] | None) -> Found:
    agent = make_agent("hsdag", seed=seed, devices=problem.problem.devices, symmetric=symmetric)
    found = Incumbent(problem.cost(), None)  # updates limit the evaluations
    draw = draw_from([ProblemInstance(problem.problem, finite_or_nan(found.offer), problem.problem.critical_path)])
    updates = limit // _STEPS
    if options is None:
        stages = default_stages(agent, draw)
        stages = scale_updates(stages, max(1, updates // stages[0].episodes))
    else:
        stages = [Stage(draw, updates=updates, **options)]
    train(agent, stages, evaluate_on=(), seed=seed)
    agent.network.eval()
    return found.cost, problem.value(agent.greedy_placement(problem.problem))


def _unlearned(problem: BenchProblem, limit: int, seed: int, *, uniform: bool) -> Found:
    agent = make_agent("hsdag", seed=seed, devices=problem.problem.devices)
    if uniform:
        for weights in agent.network.device[-1].parameters():
            torch.nn.init.zeros_(weights)
    found, rng = Incumbent(problem.cost(), limit), np.random.default_rng(seed)
    instance = ProblemInstance(problem.problem, found.offer, problem.problem.critical_path)
    while not found.over:
        found.offer(agent.rollout([instance], rng).visited[0])
    return found.cost, None
