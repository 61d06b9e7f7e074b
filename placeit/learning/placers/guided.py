"""Search guided by a learned policy: GiPH proposes the moves of simulated annealing."""

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

# Tuned on problems of the GiPH generator.
_HOT, _COLD = 0.5, 0.0005  # first and last temperature; multiples of the start's cost, the first divided by the number of ops
_UNIFORM = 0.02  # share of proposals that are uniform over all moves, so that the policy never excludes a move
_REJECTED = 0.5  # factor on the probability of a move each time that it is rejected
_MAX_CACHED = 1000  # placements whose scores are cached, since the search returns to many
_MAX_IDLE = 100  # consecutive proposals of known placements after which every move is accepted
_CHECK_EVERY, _CHECK_S = 50, 0.5  # evaluations or seconds between two updates of the number of evaluations that time allows
_PROPOSALS = 5  # maximum proposals per evaluation; small problems have fewer placements than evaluations


@dataclass(frozen=True)
class Guided:
    """Simulated annealing (Kirkpatrick et al. 1983) whose moves are drawn from GiPH's policy (Hu et al. 2023).

    The search starts from the best of HEFT, PEFT and the single devices, so it is never worse than these. The policy scores
    every move of one op from the current placement, and moves are drawn from the softmax of the scores. Costs are cached, so no
    placement is valued twice. The temperature falls with the number of evaluations, or with time if the deadline is too early
    for all of them.

    It is meant for placements that are expensive to value, as in measured runs: ``annealing`` needs two to five times as many
    evaluations to reach the cost that this placer finds with a few hundred. If placements are simulated, ``annealing`` values
    far more of them in the same time.
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
            InfeasibleError: no feasible placement is found.
            FileError: the file of the policy is missing or damaged, of another version, or holds another kind of policy.
            UsageError: the policy chooses ops without devices, or ``batch`` is less than 1.
        """
        limit = self.evaluations if evaluations is None else evaluations
        return self._anneal(starts(problem, links_of(cost), deadline), problem, cost, seed, limit, deadline)

    def refine(
        self, problem: Problem, cost: CostFunction, measured: Measured, *, seed: int, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Anneal from the best measured placement."""
        return self._anneal(measured.placements[:1], problem, cost, seed, self.evaluations, deadline)

    def _anneal(
        self,
        first: NDArray[np.int32],
        problem: Problem,
        cost: CostFunction,
        seed: int,
        evaluations: int,
        deadline: float | None,
    ) -> NDArray[np.int32]:
        """Anneal from the best of the ``int32[B, V]`` placements in ``first``."""
        from placeit.learning.agents.giph.shipped import policy

        if self.batch < 1:
            raise UsageError(f"The option 'batch' of the placer 'guided' is {self.batch}; it must be at least 1.")
        found = Incumbent(cost, evaluations, deadline)
        cached = _CachedCosts(found)
        cached.value(first)
        agent = policy(self.weights)
        if agent.pivots:
            raise UsageError(
                f"The policy in {self.weights} chooses which op to move but not where ('{agent.variant}'); the placer 'guided' "
                "needs one that scores both, such as a 'giph'."
            )
        current, current_cost = found.placement, found.cost
        scale = current_cost if np.isfinite(current_cost) else float(problem.compute.min(axis=1).sum())
        total = found.left
        if total < 1 or scale <= 0:
            return found.placement
        hot, cold = _HOT * scale / len(problem), _COLD * scale
        moves = _Moves(agent, problem, current)
        rng = np.random.default_rng(seed)
        idle = 0
        started = checked = clock.now()
        reachable, checked_at = total, 0.0  # evaluations that time allows; evaluations at the last check
        for _ in range(int(_PROPOSALS * total)):
            drawn = moves.draw(self.batch, rng)
            if not len(drawn) or found.over:
                break  # no op can be moved alone, or no evaluation is left
            placements = np.repeat(current[None], len(drawn), axis=0)
            placements[np.arange(len(drawn)), moves.op[drawn]] = moves.device[drawn]
            left = found.left
            costs = cached.value(placements)
            idle = idle + 1 if found.left == left else 0
            lowest = int(np.argmin(costs))
            valued = total - left
            if deadline is not None and valued and (valued - checked_at >= _CHECK_EVERY or clock.now() - checked >= _CHECK_S):
                checked_at, checked = valued, clock.now()
                reachable = min(total, valued * max(1.0, (deadline - started) / max(checked - started, 1e-9)))
            temperature = hot * min(1.0, cold / hot) ** min(1.0, valued / reachable)
            bound = current_cost - temperature * np.log(rng.random()) if idle < _MAX_IDLE else np.inf
            if costs[lowest] < np.inf and costs[lowest] <= bound:
                current, current_cost = placements[lowest], float(costs[lowest])
                moves.go(current)
            else:
                moves.reject(drawn)
        return found.placement


class _CachedCosts:
    """Values placements, each of them only once."""

    def __init__(self, found: Incumbent) -> None:
        self._found = found
        self._costs: dict[bytes, float] = {}

    def value(self, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return ``float64[B]`` costs of ``int32[B, V]`` placements; ``inf`` for placements beyond the evaluations left."""
        keys = [placement.tobytes() for placement in placements]
        new: dict[bytes, int] = {}
        for i, key in enumerate(keys):
            if key not in self._costs:
                new.setdefault(key, i)  # the first of equal placements
        if new:
            rows = list(new.values())
            costs = self._found.offer(placements[rows])
            self._costs |= {keys[i]: cost for i, cost in zip(rows, costs.tolist(), strict=False)}  # offer may value fewer
        return np.array([self._costs.get(key, np.inf) for key in keys])


class _Moves:
    """Moves of one op from the current placement, with the probability of proposing each.

    Attributes:
        op: ``int64[N]``, the op of each move.
        device: ``int64[N]``, the device to which the op would move.
    """

    def __init__(self, agent: Policy, problem: Problem, current: NDArray[np.int32]) -> None:
        self._problem = problem
        self._search = agent.answering(problem, current)
        self.op, self.device = self._search.nets.op, self._search.nets.device
        self._tight = problem.memory.min() < problem.param_bytes.sum()
        self._cache: dict[bytes, NDArray[np.float32]] = {}
        self.go(current)

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.intp]:
        """Draw up to ``count`` different moves by their probabilities, without replacement (the Gumbel top-k trick)."""
        count = min(count, self._count)
        perturbed = self._log_weights + rng.gumbel(size=len(self._log_weights))
        if count == 1:
            return np.array([np.argmax(perturbed)])
        return np.argsort(-perturbed, kind="stable")[:count]

    def reject(self, moves: NDArray[np.intp]) -> None:
        """Make moves less likely until the current placement changes."""
        self._log_weights[moves] += np.log(_REJECTED)

    def go(self, placement: NDArray[np.int32]) -> None:
        """Make ``int32[V]`` the current placement; its moves are weighted by the policy's softmax, mixed with equal weights."""
        problem = self._problem
        allowed = self.device != placement[self.op]
        if self._tight:
            allowed &= has_room(problem, placement)[self.op, self.device]
        self._count = int(allowed.sum())
        self._log_weights = np.full(len(allowed), -np.inf)
        if self._count:
            scores = self._scores(placement)[allowed].astype(np.float64)
            weights = np.exp(scores - scores.max())
            self._log_weights[allowed] = np.log((1 - _UNIFORM) * weights / weights.sum() + _UNIFORM / self._count)

    def _scores(self, placement: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return the policy's scores of all moves from a placement, cached."""
        key = placement.tobytes()
        if key not in self._cache:
            if len(self._cache) >= _MAX_CACHED:
                self._cache.clear()
            self._search.nets.set(0, placement)
            self._cache[key] = self._search.scores()
        return self._cache[key]
