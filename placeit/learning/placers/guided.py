"""Search guided by a learned policy: GiPH proposes the moves of simulated annealing, the cost function decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placeit.core import clock
from placeit.core.errors import UsageError
from placeit.core.extras import need
from placeit.core.problem import CostFunction, Problem
from placeit.placers.base import Incumbent, Measured, option
from placeit.placers.feasibility import has_room
from placeit.placers.list_scheduling import links_of
from placeit.placers.local_search import starts

if TYPE_CHECKING:
    from placeit.learning.agents.giph.shipped import Policy

__all__ = ["Guided"]

# Found on problems of the GiPH generator. Temperatures are the defaults of ``annealing``.
_HOT, _COLD = 0.5, 0.0005
_UNIFORM = 0.02  # share of proposals that are uniform over all moves, so that the policy never rules one out
_AGAIN = 0.5  # factor on the probability of a move each time that it is refused
_KEPT = 1000  # placements whose scores are cached, since the search returns to many
_IDLE = 100  # known placements proposed in a row after which every move is accepted
_LOOK, _LOOK_S = 50, 0.5  # the clock is read after this number of evaluations, or these seconds, if that is sooner
_PROPOSALS = 5  # proposals for each evaluation; small problems have fewer placements than evaluations


@dataclass(frozen=True)
class Guided:
    """Simulated annealing (Kirkpatrick et al. 1983) whose moves are drawn from GiPH's policy (Hu et al. 2023).

    Starts from the best of HEFT, PEFT and the single devices, so it is never worse than these. The policy scores every move of
    one op from the current placement; moves are drawn from the softmax of the scores. Costs are remembered, so no placement is
    valued twice, and known placements may be passed freely. The temperature falls with the number of evaluations; if a deadline
    does not leave time for all of them, it falls with the time.

    Meant for placements that are expensive to value, as in measured runs: ``annealing`` needs two to five times as many
    evaluations for the cost that this finds with a few hundred. Where placements are simulated, ``annealing`` values far more
    of them in the same time.
    """

    evaluations: int = option(2_500, "placements to evaluate, unless the caller sets a limit", least=0, most=10**12)
    batch: int = option(1, "moves evaluated in one call, the best of which may be made", least=1, most=10**5)
    weights: str = option("", "file of a policy of GiPH; empty for the one that ships with placeit; or untrained, or uniform")

    def __post_init__(self) -> None:
        from placeit.learning.agents.giph.shipped import FRESH

        if self.weights not in ("", *FRESH):
            need(f"The policy in {self.weights}", "learn", "torch")

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return the best evaluated placement; HEFT's if none may be evaluated.

        Raises:
            InfeasibleError: the weights of the ops fit in no way that was found.
            FileError: the file of the policy is missing or damaged, of another version, or holds another kind of policy.
            UsageError: the policy chooses ops without devices; no batch.
        """
        limit = self.evaluations if evaluations is None else evaluations
        return self._from(starts(problem, links_of(cost), deadline), problem, cost, seed, limit, deadline)

    def refine(
        self, problem: Problem, cost: CostFunction, measured: Measured, *, seed: int, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Go on from the best measured placement."""
        return self._from(measured.placements[:1], problem, cost, seed, self.evaluations, deadline)

    def _from(
        self,
        first: NDArray[np.int32],
        problem: Problem,
        cost: CostFunction,
        seed: int,
        evaluations: int,
        deadline: float | None,
    ) -> NDArray[np.int32]:
        """Anneal from the best of some placements."""
        from placeit.learning.agents.giph.shipped import policy

        if self.batch < 1:
            raise UsageError(f"The option 'batch' of the placer 'guided' is {self.batch}; it must be at least 1.")
        found = Incumbent(cost, evaluations, deadline)
        known = _Known(found)
        known.value(first)
        agent = policy(self.weights)
        if agent.pivots:
            raise UsageError(
                f"The policy in {self.weights} chooses which op to move but not where ('{agent.variant}'); the placer 'guided' "
                "needs one that scores both, such as a 'giph'."
            )
        current, now = found.placement, found.cost
        scale = now if np.isfinite(now) else float(problem.compute.min(axis=1).sum())
        total = found.left
        if total < 1 or scale <= 0:
            return found.placement
        hot, cold = _HOT * scale / len(problem), _COLD * scale
        moves = _Moves(agent, problem, current)
        rng = np.random.default_rng(seed)
        idle = 0
        reach, began, looked, seen = total, clock.now(), 0.0, clock.now()
        for _ in range(int(_PROPOSALS * total)):
            drawn = moves.draw(self.batch, rng)
            if not len(drawn) or found.left < 1 or found.over:
                break  # no op can be moved alone, or no evaluation is left
            placements = np.repeat(current[None], len(drawn), axis=0)
            placements[np.arange(len(drawn)), moves.op[drawn]] = moves.device[drawn]
            left = found.left
            costs = known.value(placements)
            idle = idle + 1 if found.left == left else 0
            at = int(np.argmin(costs))
            valued = total - left
            if deadline is not None and valued and (valued - looked >= _LOOK or clock.now() - seen >= _LOOK_S):
                looked, seen = valued, clock.now()
                reach = min(
                    total, valued * max(1.0, (deadline - began) / max(seen - began, 1e-9))
                )  # number of evaluations that time allows
            temperature = hot * min(1.0, cold / hot) ** min(1.0, valued / reach)
            bound = now - temperature * np.log(rng.random()) if idle < _IDLE else np.inf
            if costs[at] < np.inf and costs[at] <= bound:
                current, now = placements[at], float(costs[at])
                moves.go(current)
            else:
                moves.refuse(drawn)
        return found.placement


class _Known:
    """Values placements, each of them once."""

    def __init__(self, found: Incumbent) -> None:
        self._found = found
        self._costs: dict[bytes, float] = {}

    def value(self, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return ``float64[B]`` costs of ``int32[B, V]`` placements; infinite for those that may not be valued any more."""
        keys = [placement.tobytes() for placement in placements]
        new: dict[bytes, int] = {}
        for i, key in enumerate(keys):
            if key not in self._costs:
                new.setdefault(key, i)  # the first of equals, since evaluations may end before the others
        if new:
            rows = list(new.values())
            costs = self._found.offer(placements[rows])
            self._costs |= {keys[i]: cost for i, cost in zip(rows, costs.tolist(), strict=False)}  # as many as were valued
        return np.array([self._costs.get(key, np.inf) for key in keys])


class _Moves:
    """Moves of one op from the current placement, and how likely each is to be proposed.

    Attributes:
        op: ``int64[N]``, the op of each move.
        device: ``int64[N]``, where it would go.
    """

    def __init__(self, agent: Policy, problem: Problem, current: NDArray[np.int32]) -> None:
        self._problem = problem
        self._search = agent.answering(problem, current)
        self.op, self.device = self._search.nets.op, self._search.nets.device
        self._tight = problem.memory.min() < problem.param_bytes.sum()
        self._kept: dict[bytes, NDArray[np.float32]] = {}
        self.go(current)

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.intp]:
        """Draw up to ``count`` different moves (Gumbel top-k: in proportion to their weights, without replacement)."""
        count = min(count, self._able)
        perturbed = self._log + rng.gumbel(size=len(self._log))
        if count == 1:
            return np.array([np.argmax(perturbed)])
        return np.argsort(-perturbed, kind="stable")[:count]

    def refuse(self, moves: NDArray[np.intp]) -> None:
        """Make moves less likely as long as the current placement stays."""
        self._log[moves] += np.log(_AGAIN)

    def go(self, placement: NDArray[np.int32]) -> None:
        """Make ``int32[V]`` the current placement: weigh its moves by the policy's softmax, mixed with equal weights."""
        problem = self._problem
        able = self.device != placement[self.op]
        if self._tight:
            able &= has_room(problem, placement)[self.op, self.device]
        self._able = int(able.sum())
        self._log = np.full(len(able), -np.inf)
        if self._able:
            scores = self._scores(placement)[able].astype(np.float64)
            weights = np.exp(scores - scores.max())
            self._log[able] = np.log((1 - _UNIFORM) * weights / weights.sum() + _UNIFORM / self._able)

    def _scores(self, placement: NDArray[np.int32]) -> NDArray[np.float32]:
        key = placement.tobytes()
        if key not in self._kept:
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._search.nets.set(0, placement)
            self._kept[key] = self._search.scores()
        return self._kept[key]
