"""The part of a search in which a policy learns to place the model: first in simulation, then by measured runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from placeit.core import clock
from placeit.learning.agent import Agent, Decisive, ProblemInstance
from placeit.learning.agent_notation import parse_agent
from placeit.learning.checkpoint import load_agent, save_agent
from placeit.learning.exploring import why_pointless
from placeit.learning.measured import MeasuredCosts
from placeit.learning.training.loop import train
from placeit.learning.training.sources import draw_from
from placeit.learning.training.stages import SIMULATED, Stage, default_stages
from placeit.learning.training.valuing import finite_or_nan
from placeit.measuring.budget import TRIFLE_S
from placeit.measuring.incumbent import compared
from placeit.measuring.statistics import FEWEST
from placeit.optimizer.candidates import Candidate, value_of
from placeit.optimizer.decision import DECISION_ROUNDS
from placeit.optimizer.ledger import MEASURING, Item
from placeit.optimizer.search import ROUNDS, SELECTION_ROUNDS, Search
from placeit.simulator.simulate import SimulatedCost

__all__ = ["learn", "open_agent"]

_SIMULATED_SHARE = 0.25  # share of the learning time for simulation, unless the policy has learned in simulation before
_UPDATE_PLACEMENTS = 8  # approximate number of placements of an update by runs
_MIN_MEASURED = 10  # placements that there should be time to measure
_MAX_UPDATES, _EVALUATE_EVERY = 100_000, 5  # updates by runs; updates between evaluations
_PATIENCE = 4  # evaluations without a better placement after which learning from runs ends
_RESERVE_FACTOR = 1.5  # on the seconds of the last races' runs, for opening their executors
_MAX_RACED = 4  # placements in the race of learned placements, and in the selection


def open_agent(text: str, state: Path | None, *, seed: int, devices: int) -> Agent:
    """Return the agent that is stored in a file, or, if the file does not exist, the agent that a text describes.

    Args:
        text: the agent, as ``name:option=value``.
        state: the file; None for no file.
        seed: seed of the initial weights.
        devices: number of outputs of an agent that has one output per device.

    Raises:
        UsageError: the agent or one of its options does not exist.
        FileError: a file of the agent is damaged, or holds another agent.
    """
    agent = parse_agent(text, seed=seed, devices=devices)
    return load_agent(state, lambda _: type(agent)) if state is not None and state.exists() else agent


def learn(search: Search, text: str, state: Path | None) -> None:
    """Train a policy on the model of a search, and race its best placements against the best placement found without it.

    The policy learns from simulated costs first, unless its file exists. Then it learns from runs, until the rest of the time
    is needed for the race and the decision. The placer's note in the report says whether learning paid.

    Args:
        search: the search, in which at least the single devices should have been measured.
        text: the agent, as ``name:option=value``.
        state: file to which the policy is saved, also after Ctrl-C; None not to save it.

    Raises:
        UsageError, FileError: as for :func:`open_agent`; or the file cannot be written.
        TrainingError: a loss or gradient is not finite.
        KeyboardInterrupt: Ctrl-C was pressed; measurements so far are kept.
    """
    agent = open_agent(text, state, seed=search.seed, devices=search.problem.devices)
    name = f"policy {agent.name}"
    if (why := why_pointless(search)) is not None:
        search.notes[name] = f"not asked: {why}"
        return
    reserved, left = _reserved_s(search), search.left()
    needed = _MIN_MEASURED * search.race_s([search.ranked[0]] * 2, ROUNDS)
    if left - reserved < max(needed, TRIFLE_S):
        budget = search.ledger.book() + reserved + needed
        search.notes[name] = (
            f"not asked: the decision takes about {reserved:.3g} s, and {max(0.0, left):.3g} s are left; a budget of about "
            f"{budget:.0f} s leaves time to learn"
        )
        return
    search.learn()
    with search.ledger.on(Item(name, placer=True)), _one_thread():
        training = _Training(search, agent, name)
        try:
            found = training.run(clock.now() + left - reserved, pretrain=state is None or not state.exists())
        finally:
            if state is not None:
                save_agent(agent, state, model=str(search.session.model.path), devices=list(search.problem.device_names))
        for label, placement in found:
            search.add(label, name, placement.copy)
    search.curves[name] = training.costs.curve
    with search.ledger.on(MEASURING):
        verdict = _race(search, name, [one for _, row in found if (one := search.find(row)) is not None])
    count = len(training.costs.curve)
    search.notes[name] = f"measured {count} placement{'s' * (count != 1)}; {verdict}"


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Limit PyTorch to one thread: its other threads spin while they wait, and would take cores from the devices' threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Training:
    """Trains a policy on the model of a search.

    Attributes:
        costs: factory of the costs by measured runs.
    """

    def __init__(self, search: Search, agent: Agent, name: str) -> None:
        self._search, self._agent, self._name = search, agent, name
        self.costs = MeasuredCosts(
            search.session, search.objective.name, journal=search.journal, seed=search.seed, progress=self._say
        )
        problem = search.segmenter.problem()
        cost = finite_or_nan(search.objective.cost(problem, SimulatedCost(problem)))
        self._instance = ProblemInstance(problem, cost, value_of(search.ranked[0]))

    def run(self, deadline: float, *, pretrain: bool) -> list[tuple[str, NDArray[np.int32]]]:
        """Train until the deadline, and return the best placements met, with names for the candidates.

        They are the best measured placement over several devices that the search has not found itself, the placement that the
        policy prefers, and the best simulated placement.
        """
        search, agent, instance = self._search, self._agent, self._instance
        recorded = (search.recorded(name) for name in list(search.known) if name not in search.homes)
        self.costs.measured.take_over(one for one in recorded if one is not None)
        stages = list(self._stages(deadline - clock.now(), pretrain=pretrain))
        result = train(agent, stages, evaluate_on=[instance], seed=search.seed, progress=self._say)
        splits = [one for one in self.costs.measured.known if one.cost is not None and len(np.unique(one.devices)) > 1]
        new = [one for one in splits if search.find(one.devices) is None]
        by_runs = sorted(new, key=lambda one: one.cost or 0.0)[:1]
        simulated = [best for one in result.stages if one.cost == SIMULATED for best in one.found]
        found = [(self._name, best.devices) for best in by_runs]
        if isinstance(agent, Decisive):
            found.append((f"{self._name}, its choice", agent.greedy_placement(instance.problem)))
        if simulated:
            found.append((f"{self._name}, simulated", min(simulated, key=lambda best: best.cost).placement))
        return found

    def _stages(self, seconds: float, *, pretrain: bool) -> Iterator[Stage]:
        """Yield the agent's default stages with simulated costs, and then the last of them with costs by runs."""
        draw = draw_from([self._instance])
        own = default_stages(self._agent, draw)
        for stage in own if pretrain else ():
            yield replace(stage, seconds=_SIMULATED_SHARE * seconds / len(own))
        self._agent.network.eval()
        visited = self._agent.rollout([self._instance], np.random.default_rng(self._search.seed)).visited[0]
        yield replace(
            own[-1],
            cost=self.costs,
            seconds=(1 - _SIMULATED_SHARE * pretrain) * seconds,
            updates=_MAX_UPDATES,
            problems=1,
            episodes=max(1, _UPDATE_PLACEMENTS // len(visited)),
            schedule="constant",
            evaluate_every=_EVALUATE_EVERY,
            patience=_PATIENCE,
        )

    def _say(self, what: str, share: float) -> None:
        curve, unit = self.costs.curve, self._search.objective.unit
        factor, unit = (1e3, "ms") if unit == "s" else (1.0, unit)
        figures = f"{len(curve)} measured, best {min(curve) * factor:.4g} {unit}, " if curve else ""
        self._search.say(f"learning ({self._agent.name}): {figures}{what}", share)


def _reserved_s(search: Search) -> float:
    """Estimate the seconds of the race of learned placements, the selection and the decision."""
    best = search.ranked[0]
    selection = search.race_s([best] * _MAX_RACED, SELECTION_ROUNDS)
    decision = search.race_s([best] * 2, DECISION_ROUNDS) + selection
    return _RESERVE_FACTOR * (selection + max(decision, search.final_s()))


def _race(search: Search, name: str, learned: Sequence[Candidate]) -> str:
    """Race learned placements beside the best other candidate; return a clause that says whether learning paid."""
    names = list(dict.fromkeys(one.name for one in learned))
    others = [one for one in search.ranked if one.name not in names]
    if not names or not others:
        return "no other placement to compare with"
    racing = [others[0], *(search.known[one] for one in names)]
    singles = [one for one in search.ranked if one.placer == "single"]
    search.race(
        racing,
        "racing what was learned",
        rounds=SELECTION_ROUNDS,
        share=search.share_before_final,
        min_rounds=FEWEST,
        drop_losers=False,
        anchor=search.anchor_of(singles, others[0], others[0]),
    )
    other = search.known[others[0].name]
    succeeded = [one for one in (search.known[name] for name in names) if one.failed is None]
    best = min(succeeded, key=value_of, default=None)
    ratio = None if best is None else compared(best.measured, other.measured)
    if best is None or ratio is None:
        return "none of its placements could be raced"
    if best.placer != name:
        return f"learning did not pay: its best placement is {best.name}, which was found without it"
    figures = f"{ratio.ratio:.3f} of the {search.objective.quantity} of {other.name}"
    verdict = "paid" if ratio.faster else "did not pay"
    return f"learning {verdict}: its best takes {figures} ({ratio.ci_low:.3f} to {ratio.ci_high:.3f})"
