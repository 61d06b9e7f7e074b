"""Choose the answer of a search, and give the reason in a sentence."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence

import numpy as np

from placeit.core.errors import ExecutionError, InfeasibleError, PlaceitError
from placeit.measuring.incumbent import WORTH
from placeit.optimizer.candidates import Beside, Candidate, known_value, measured_median
from placeit.optimizer.certainty import MARGIN
from placeit.optimizer.decision import Decision
from placeit.optimizer.search import Search
from placeit.optimizer.whole_models import compiles_splits
from placeit.simulator.objectives.base import Objective

__all__ = ["better_references", "chosen_of"]

_AS_IT_IS = "plain ONNX Runtime, without placeit, is the best that was measured"
_VARIES = (
    "The model computes other outputs each time for the same inputs, so that none can be called right: have it read its random "
    "numbers as an input, or, in an ONNX file, give its random ops a seed."
)
_EQUAL = 1.1  # devices are equal if none takes more than this many times as long as another


def chosen_of(
    search: Search, decision: Decision, order: Sequence[Candidate], single: Candidate | None
) -> tuple[Candidate, str]:
    """Choose the answer of a search, and give the reason in a sentence.

    Args:
        search: the search.
        decision: its decision.
        order: the candidates with the facts known so far, best first and failed ones last.
        single: the best candidate on one device; None if no single device can run the model.

    Raises:
        InfeasibleError: there are no candidates.
        ExecutionError: all of them failed; gives the reason of each.
    """
    objective = search.objective
    where = f"{search.session.model.path} on {', '.join(search.problem.device_names)}"
    reasons = [f"{', '.join(some)}: {why}" for why, some in _by_reason(search.unplanned).items()]
    if not order:
        raise InfeasibleError(" ".join([f"No placement of {where} was found.", *reasons]))
    reasons += [f"{one.name}: {one.failed}" for one in order if one.failed is not None]
    ran = any(one.failed is not None for one in order)
    order = [one for one in order if one.failed is None]
    if ran and (not order or (search.session.cluster.executable and order[0].measured is None)):
        varies = False
        with contextlib.suppress(PlaceitError):
            varies = search.session.reference.varies()
        if varies or not order:
            raise ExecutionError(" ".join([f"Every placement of {where} failed.", *([_VARIES] if varies else reasons)]))
        return order[0], "every placement that was run failed, and this one was not run"
    if not search.session.cluster.executable:
        least = known_value(order[0])
        limit = least / WORTH if single is None else min(least / WORTH, known_value(single))
        best = _best_in_simulation(objective, order, limit)
        if best is single:
            margin = " by more than 1 %" if least < known_value(best) else ""
            return (
                best,
                f"in simulation, no placement is {objective.better} than {best.name} alone{margin}; nothing was measured",
            )
        lowest = "the lowest" if known_value(best) == least else "within 1 % the lowest"
        simulated = objective.quantity if objective.steady else objective.name
        return best, (
            f"it has {lowest} simulated {simulated}{_of_replicas(best)}; nothing was measured, because a device is only "
            "described"
        )
    if decision.winner is None and decision.hurried:
        best = _best_in_simulation(objective, order, known_value(order[0]) / WORTH)
        return best, "there was no time to measure anything; it is the best in simulation"
    if decision.winner is None:
        if single is not None:
            return single, "the search was interrupted before the decision, so the single device is chosen"
        return order[0], "the search was interrupted; this is the best so far"
    if single is None or decision.single is None:
        unable = "may, by the pins, run the model whole" if search.session.pins else "can run the model whole"
        if search.problem.feasible.all(axis=0).any():
            unable = "has memory for the whole model"
        if single is not None:  # there was no time to compile it
            unable = "was measured"
        why = f"it was measured to be {objective.best}; no single device {unable}{_of_replicas(decision.winner)}"
        return decision.winner, why
    if decision.winner.placer != "single":
        ratio = decision.ratio
        assert ratio is not None  # noqa: S101
        return decision.winner, (
            f"in the deciding race it takes {ratio.ratio:.3f} of the {objective.quantity} of {single.name} "
            f"(95 % interval {ratio.ci_low:.3f} to {ratio.ci_high:.3f})"
            f"{_of_replicas(decision.winner)}"
        )
    if search.session.costs.shared and len(search.problem.device_names) > 1:
        return decision.winner, "the budget is too short to compare placements over several devices with the single ones"
    if len(search.problem.device_names) == 1:
        if search.is_onnxruntime(decision.winner.name):
            return decision.winner, _AS_IT_IS
        rivals = [one.name for one in order if one.name != decision.winner.name]
        if all(map(search.is_onnxruntime, rivals)):
            beside = ", and plain ONNX Runtime was not measured to be better" if rivals else ""
            return decision.winner, f"it is the only device{beside}"
    seconds = measured_median(decision.winner)
    if search.excluded is not None and decision.ratio is None and seconds < search.excluded.bound_s:
        return decision.winner, search.excluded.why(seconds)
    several = "placement over several devices" if objective.steady else "split placement"
    single_s = measured_median(single) if single.simulated_s is None else single.simulated_s
    share = search.bound_s / single_s if objective.is_makespan and 0 < single_s < math.inf else math.nan
    if decision.hurried and (1.0 - MARGIN) * share > 1.0 and not compiles_splits(search.session):
        why = f"no {several} can be {objective.better}"
    elif decision.hurried:
        why = f"no time was left to decide whether a {several} is {objective.better}; {_enough_s(search):.0f} s may be enough"
    elif decision.ratio is not None:
        why = (
            f"the best {several} takes {decision.ratio.ratio:.3f} of its {objective.quantity} (95 % interval "
            f"{decision.ratio.ci_low:.3f} to {decision.ratio.ci_high:.3f}), which is not {objective.better} beyond the interval"
        )
    else:
        why = f"no {several} was measured to be {objective.better}"
    if share <= 1:  # the bound does not hold for another runtime that is faster than all devices of the search
        why += f"; the lower bound, ignoring cut costs, is {share:.3f} of its time"
    if search.is_onnxruntime(single.name):
        why += f"; {_AS_IT_IS}"
    return decision.winner, why


def better_references(references: Sequence[Beside], objective: Objective) -> str:
    """Return clauses on the references that are better than the answer beyond the interval; empty if there are none."""
    better = ((one.row.name, one.ratio) for one in references if one.ratio is not None and one.ratio.faster)
    return "".join(
        f"; {name}, a mode of OpenVINO and not a placement, takes {ratio.ratio:.3f} of its "
        f"{objective.quantity} (95 % interval {ratio.ci_low:.3f} to {ratio.ci_high:.3f})"
        for name, ratio in better
    )


def _enough_s(search: Search) -> float:
    """Return the estimated budget, in seconds, with which a search like this one has time for the decision."""
    singles, splits = search.finalists()
    return search.ledger.book() + search.compiling_s([*singles, *splits]) + search.final_s()


def _of_replicas(chosen: Candidate) -> str:
    """Return a clause on replicas if they are the answer; else an empty text."""
    if not chosen.replicas:
        return ""
    why = "; each of its groups of devices serves whole requests, which hand nothing over and wait for no other group"
    speeds = [plan.schedule.makespan for plan in chosen.plans]
    if all(len(np.unique(plan.placement)) == 1 for plan in chosen.plans) and max(speeds) <= _EQUAL * min(speeds):
        why += ": on equal devices that is hardly to be beaten"
    return why


def _best_in_simulation(objective: Objective, order: Sequence[Candidate], limit: float) -> Candidate:
    """Return the best candidate with a simulated value up to ``limit``; for throughput, the one with the fewest segments."""
    near = [one for one in order if known_value(one) <= limit]
    if objective.steady:
        return min(near, key=lambda one: (one.segments, known_value(one)))
    # up to 1 % less of an objective that is not a time is not worth being slower
    return min(near, key=known_value if objective.is_measured else lambda one: one.plan.schedule.makespan)


def _by_reason(unplanned: Mapping[str, tuple[str, str]]) -> dict[str, list[str]]:
    """Return the names of missing candidates, by the reason why they are missing."""
    found: dict[str, list[str]] = {}
    for candidate, (_, why) in unplanned.items():
        found.setdefault(why, []).append(candidate)
    return found
