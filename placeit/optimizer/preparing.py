"""The stages before candidates are entered: starting placements, costs, and bounds."""

from __future__ import annotations

import functools
import logging
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placeit.core import clock
from placeit.devices.plain import plain_devices
from placeit.measuring.budget import TRIFLE_S, min_budget_s
from placeit.optimizer.certainty import excluded
from placeit.optimizer.journal import open_journal
from placeit.optimizer.ledger import PROFILING
from placeit.optimizer.runs import COMPILING_SHARE
from placeit.optimizer.search_state import SearchState, Stage
from placeit.optimizer.starts import divide_for, elsewhere, on_eager_devices
from placeit.optimizer.whole_models import compiles_splits
from placeit.planning.room import check_room
from placeit.profiler.memory_rates import Rates, shared_reads
from placeit.profiler.support import supported_ops
from placeit.workbench import Workbench

__all__ = ["Bound", "Load", "Profile", "tell_worth"]

_PROFILE_SHARE = 0.4  # share of the time left after loading that profiling may take
_MEMORY_S = 3.0  # seconds that must be left to measure how fast all devices read memory together; that takes a sixth of them
_LOG = logging.getLogger(__name__)


class Load(Stage):
    """Find the devices of the starting placements, divide groups where these divide them, and open the file to resume from."""

    name = "load"
    reads = ()
    writes = ("starts", "on_cores", "journal")
    may_be_interrupted = False

    def run(self, state: SearchState) -> None:
        """Prepare the groups.

        Raises:
            PlacementError: a starting placement does not fit the model or the devices.
            FileError, UsageError: the file cannot be resumed from; see :func:`placeit.optimizer.journal.open_journal`.
        """
        _check_room(state.session)
        given = state.goal.starts
        state.on_cores = on_cores = elsewhere(state.session, given)
        state.starts = starts = {
            name: on_eager_devices(state.session, one) for name, one in given.items() if name not in on_cores
        }
        divide_for(state.session, starts)
        if (resume := state.goal.budget.resume) is not None:
            objective = state.goal.objective
            measured = objective.measured_with(objective.meters(state.session.cluster))
            state.journal = open_journal(Path(resume), state.session, measured)


def _check_room(session: Workbench) -> None:
    """Raise InfeasibleError if weights and states cannot fit into the memory of the devices, as far as a check can tell."""
    model, cluster, texts = session.model, session.cluster, session.setup.texts
    if model.graph.held_once.sum() <= min(device.memory_bytes for device in cluster.devices):
        return
    able = session.placing.able()
    if cluster.executable and not session.setup.expected:
        able &= supported_ops(model, cluster)
    check_room(session.grouping, able, cluster)
    if texts is not None:
        texts.check_room(session.grouping, able, cluster)


class Profile(Stage):
    """Measure the costs of groups, links and cuts, or read them from the cache."""

    name = "profile"
    reads = ("deadline",)
    writes = ("enough", "excluded")
    may_be_interrupted = False

    def run(self, state: SearchState) -> None:
        """Profile, and stop early if the budget is too short or no split can be faster than a plain device."""
        with state.ledger.on(PROFILING):
            state.session.profile(
                budget_s=max(0.0, state.deadline - clock.now()) * _PROFILE_SHARE,
                check=state.session.policy.check_costs,
                worth=functools.partial(self._is_worth, state),
                certain=functools.partial(_is_certain, state) if _may_stop(state) else None,
                progress=state.progress,
            )

    @staticmethod
    def _is_worth(state: SearchState, seconds: NDArray[np.float64]) -> bool:
        state.enough = enough = tell_worth(seconds, state.deadline, state.goal.budget.seconds)
        return enough


class Bound(Stage):
    """Find out whether a bound excludes all splits, and how much devices read from a memory that they share."""

    name = "bound"
    reads = ("deadline",)
    writes = ("excluded", "memory")
    may_be_interrupted = False

    def run(self, state: SearchState) -> None:
        """Bound the time of any placement by the costs."""
        session, core = state.session, state.session.costs.core
        cached = session.costs.profiled is not None and session.costs.profiled.cached  # else profiling has tried the bound
        with state.ledger.on(PROFILING):
            if cached and _may_stop(state) and _is_enough(core.sum(axis=0), state.deadline):
                _is_certain(state, core)
            if not state.goal.objective.steady and state.deadline - clock.now() > _MEMORY_S:
                state.memory = shared_reads(session.grouping, session.costs, Rates.of_model(session.model, session.cache))


def _is_enough(seconds: NDArray[np.float64], deadline: float) -> bool:
    """Return whether there is time to compare placements, by seconds of a run on each device; ``inf`` where none can run."""
    return min_budget_s(seconds[np.isfinite(seconds)]) <= max(deadline - clock.now(), TRIFLE_S)


def tell_worth(seconds: NDArray[np.float64], deadline: float, budget: float) -> bool:
    """Return whether there is time to compare placements, by seconds of a run on each device; if not, log a warning."""
    finite = seconds[np.isfinite(seconds)]
    enough = _is_enough(seconds, deadline)
    if len(seconds) > 1 and len(finite) and not enough:
        _LOG.warning(
            "A run takes %.3g s. Comparing placements takes at least about %.3g s, but of the budget of %g s only "
            "%.3g s are left.",
            finite.min(),
            min_budget_s(finite),
            budget,
            max(0.0, deadline - clock.now()),
        )
    return enough


def _may_stop(state: SearchState) -> bool:
    """Return whether a search may end early because no split can be faster than a plain device."""
    session, goal = state.session, state.goal
    alone = goal.candidates.plain and not session.pins and bool(plain_devices(session.cluster))
    may = session.policy.stop_early and goal.objective.is_makespan and alone and not compiles_splits(session)
    return may and goal.energy is None  # a split may take less energy


def _is_certain(state: SearchState, core: NDArray[np.float64]) -> bool:
    """Return whether no split can be faster, by the minimum seconds of each group on each device, ``float64[G, D]``."""
    state.excluded = found = excluded(state.session, core, COMPILING_SHARE * (state.deadline - clock.now()))
    return found is not None
