"""GiPH's policy, its variants and its placer."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from placeit.core.errors import FileError, InfeasibleError, ProblemError, UsageError
from placeit.core.problem import Problem
from placeit.learning.agent import ProblemInstance
from placeit.learning.agents.giph.agent import GiphAgent, Variant
from placeit.learning.agents.giph.shipped import policy
from placeit.learning.checkpoint import load_policy, save_agent, weights_of
from placeit.learning.registry import make_agent
from placeit.learning.training.loop import Stage, evaluate, train
from placeit.learning.training.sources import draw_from, simulated
from placeit.placers import get_placer, place
from placeit.placers.feasibility import fits, random_placements
from placeit.placers.random_task_eft import earliest_finish_devices
from placeit.simulator.scheduler import GIPH_RULES
from placeit.simulator.simulate import SimulatedCost, schedule
from placeit.testing.problems import random_problem

VARIANTS = get_args(Variant)


def agent_of(variant: str = "giph", **options: object) -> GiphAgent:
    agent = make_agent("giph", seed=1, variant=variant, dim=4, **options)
    assert isinstance(agent, GiphAgent)
    return agent


def placed(problem: Problem, seed: int = 0) -> np.ndarray:
    return random_placements(problem, 1, np.random.default_rng(seed))[0]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("features", ["paper", "schedule", "public"])
def test_scores_do_not_depend_on_the_other_problems_of_a_batch(variant: str, features: str) -> None:
    agent = agent_of(variant, features=features)
    problems = [random_problem(ops, devices, seed=ops) for ops, devices in ((8, 3), (1, 2), (13, 4))]
    starts = [placed(problem) for problem in problems]
    together = agent.search(problems, starts)
    with torch.no_grad():
        scores = together.scores()
        for b, (problem, start) in enumerate(zip(problems, starts, strict=True)):
            alone = agent.search([problem], [start])
            torch.testing.assert_close(scores[together.nets.rows[b]], alone.scores()[alone.nets.rows[0]])


@pytest.mark.parametrize("variant", ["giph", "giph-task-eft"])
@pytest.mark.parametrize("tight", [False, True])
def test_a_search_moves_an_op_elsewhere_where_it_fits_and_never_the_same_twice(variant: str, tight: bool) -> None:
    problem = random_problem(9, 3, seed=5, tight=tight)
    agent, rng = agent_of(variant), np.random.default_rng(0)
    search, last = agent.search([problem], [placed(problem)]), -1
    for _ in range(30):
        legal = search.legal(0)
        ops, devices = search.targets(0, legal)
        placement = search.nets.placements[0].copy()
        if variant == "giph":
            assert (devices != placement[ops]).all()
        if len(set(ops.tolist())) > 1:
            assert last not in ops
        k = int(rng.integers(len(legal)))
        placement[ops[k]] = devices[k]
        assert fits(problem, placement)
        search.move(0, int(ops[k]), int(devices[k]))
        last = int(ops[k])
        np.testing.assert_array_equal(search.nets.placements[0], placement)


def test_all_moves_that_fit_are_legal_at_first() -> None:
    problem = random_problem(9, 3, seed=5)
    search = agent_of().search([problem], [placed(problem)])
    assert len(search.legal(0)) == problem.feasible.sum() - len(problem)


def earliest_finish_by_definition(problem: Problem, placement: np.ndarray, op: int) -> int:
    """Try every gap of every device, the plain way."""
    plan = schedule(problem, placement, rules=GIPH_RULES)
    ends = {}
    for d in np.flatnonzero(problem.feasible[op]).tolist():
        ready = 0.0
        for e in np.flatnonzero(problem.edges[:, 1] == op):
            u = problem.edges[e, 0]
            ready = max(ready, plan.finish[u] + problem.comm(e)[placement[u], d])
        busy = sorted((plan.start[v], plan.finish[v]) for v in range(len(problem)) if v != op and placement[v] == d)
        at = ready
        for begin, end in busy:
            if at + problem.compute[op, d] <= begin:
                break
            at = max(at, end)
        ends[d] = at + problem.compute[op, d]
    best = min(ends.values())
    return int(placement[op]) if ends[int(placement[op])] <= best else min(d for d in ends if ends[d] == best)


@pytest.mark.parametrize("seed", range(8))
def test_earliest_finish_is_that_of_the_best_gap(seed: int) -> None:
    problem = random_problem(12, 4, seed=seed)
    placement = placed(problem, seed)
    ops = np.arange(len(problem))
    expected = [earliest_finish_by_definition(problem, placement, op) for op in range(len(problem))]
    assert earliest_finish_devices(problem, placement, ops).tolist() == expected


@pytest.mark.parametrize("kind", ["imitation", "all-actions"])
def test_valuing_all_actions_teaches_more_than_chance(kind: str) -> None:
    instances = [simulated(random_problem(12, 4, seed=seed)) for seed in range(6)]
    agent = agent_of()
    before = evaluate(agent, instances, seed=3)
    train(agent, [Stage(draw_from(instances), 12, kind=kind, problems=6, learning_rate=0.02)], evaluate_on=[], seed=0)
    assert evaluate(agent, instances, seed=3) < 0.97 * before


@pytest.mark.slow
def test_reinforce_learns_with_the_paper_s_features_and_baseline() -> None:
    instances = [simulated(random_problem(8, 3, seed=seed)) for seed in range(4)]
    agent = agent_of(features="paper")
    stage = Stage(draw_from(instances), 40, problems=4, episodes=4, learning_rate=0.03, baseline="episode-mean")
    result = train(agent, [stage], evaluate_on=[], seed=0)
    gains = [record.episode_return for record in result.history if record.episode_return is not None]
    assert np.mean(gains[-10:]) > 1.2 * np.mean(gains[:10])


def test_another_way_to_learn_is_refused() -> None:
    with pytest.raises(UsageError, match=r"imitation or all-actions.*'guessing'"):
        agent_of().loss("guessing", [simulated(random_problem(3, 2))], np.random.default_rng(0))


@pytest.mark.parametrize(("options", "says"), [({"variant": "giph-9"}, "giph-9"), ({"features": "all"}, "all")])
def test_unknown_variants_and_features_are_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        GiphAgent(**options)


@pytest.mark.parametrize("kind", ["imitation", "all-actions", "reinforce"])
def test_a_cost_that_could_not_be_measured_is_no_lesson(kind: str) -> None:
    problem = random_problem(5, 2)
    broken = ProblemInstance(problem, lambda placements: np.full(len(placements), np.nan), 1.0)
    agent = agent_of()
    before = weights_of(agent)
    train(agent, [Stage(lambda rng, count, progress: [broken], 2, kind=kind)], evaluate_on=[], seed=0)
    assert all(torch.equal(before[name], tensor) for name, tensor in weights_of(agent).items())


@pytest.mark.parametrize("kind", ["imitation", "all-actions"])
def test_actions_that_could_not_be_measured_are_left_out(kind: str) -> None:
    one = simulated(random_problem(8, 3))

    def sometimes(placements: NDArray[np.int32]) -> NDArray[np.float64]:
        return np.where(placements.sum(axis=1) % 3 == 0, np.nan, one.cost(placements))

    loss = agent_of().loss(kind, [ProblemInstance(one.problem, sometimes, one.unit)], np.random.default_rng(0))
    assert torch.isfinite(loss)
    assert loss.item() != agent_of().loss(kind, [one], np.random.default_rng(0)).item()


def test_the_shipped_policy_improves_on_random_placements_of_problems_it_has_never_seen() -> None:
    ratios = []
    for seed in range(10):
        problem = random_problem(20, 4, seed=1000 + seed)
        cost = SimulatedCost(problem, rules=GIPH_RULES)
        found = get_placer("giph").place(problem, cost, seed=seed, evaluations=None)
        some = random_placements(problem, 1 + 2 * len(problem), np.random.default_rng(seed))
        ratios.append(cost(found[None])[0] / cost(some).min())
    assert np.mean(ratios) < 0.9


def test_weights_of_ones_own_can_be_used(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    problem = random_problem(6, 3)
    save_agent(agent_of("giph-3"), path)
    assert place(problem, f"giph:weights={path}").devices.shape == (6,)
    same = tmp_path / "same.safetensors"
    save_agent(load_policy("", GiphAgent), same)
    answers = [
        get_placer("giph", **o).place(problem, SimulatedCost(problem), seed=0, evaluations=None)
        for o in ({}, {"weights": str(same)})
    ]
    np.testing.assert_array_equal(*answers)


def test_what_ships_answers_without_pytorch_as_with_it() -> None:
    agent = load_policy("", GiphAgent)
    for seed in range(3):
        problem = random_problem(12, 3, seed=seed)
        start = placed(problem)
        scores = policy("").answering(problem, start).scores()
        np.testing.assert_allclose(scores, agent.answering(problem, start).scores(), rtol=1e-4, atol=1e-5)


def test_weights_of_another_policy_or_no_weights_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "placeto.safetensors"
    save_agent(make_agent("placeto", seed=0), path)
    with pytest.raises(FileError, match="'placeto', not of 'giph'"):
        place(random_problem(3, 2), f"giph:weights={path}")
    with pytest.raises(FileError, match="missing"):
        place(random_problem(3, 2), "giph:weights=missing.safetensors")
    (tmp_path / "text.safetensors").write_text("no tensors")
    with pytest.raises(FileError, match="text"):
        place(random_problem(3, 2), f"giph:weights={tmp_path / 'text.safetensors'}")


@pytest.mark.parametrize(("ops", "devices"), [(1, 1), (1, 4), (7, 1)])
def test_the_smallest_problems_have_an_answer(ops: int, devices: int) -> None:
    problem = random_problem(ops, devices, seed=3, everywhere=1.0)
    answer = place(problem, "giph")
    assert answer.devices.shape == (ops,)
    if ops == 1:
        assert problem.compute[0, answer.devices[0]] == problem.compute[0].min()


def test_a_cycle_and_an_op_without_a_device_are_named() -> None:
    links = np.ones((2, 2))
    with pytest.raises(ProblemError, match="cycle"):
        Problem.from_arrays(np.ones((2, 2)), [[0, 1], [1, 0]], [1.0, 1.0], links, links)
    with pytest.raises(InfeasibleError, match="op1"):
        Problem.from_arrays([[1.0, 1.0], [np.inf, np.inf]], [[0, 1]], [1.0], links, links)
