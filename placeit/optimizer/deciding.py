"""The stage that decides between the best single device and the best placement over several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from placeit.measuring.budget import TRIFLE_S, rounds_within
from placeit.measuring.incumbent import compared
from placeit.measuring.statistics import FEWEST, faster_in_any_opening
from placeit.optimizer.candidates import Candidate, value_of
from placeit.optimizer.decision import Decision, decision_rounds
from placeit.optimizer.ledger import DECIDING
from placeit.optimizer.references import enter_references
from placeit.optimizer.search import SELECTION_ROUNDS, Search
from placeit.optimizer.search_state import SearchState, Stage
from placeit.optimizer.whole_models import enter_twins

__all__ = ["Decide", "affordable", "confirm", "decided", "guests", "selected"]

_SELECTION_SHARE = 0.5  # share of the time left for the race of the finalists


class Decide(Stage):
    """Race the finalists, and then the best two of them alone."""

    name = "decide"
    reads = ("search",)
    writes = ("decision",)
    may_be_interrupted = True

    def run(self, state: SearchState) -> None:
        """Decide, if the devices are real."""
        state.decision = confirm(state.search)


def confirm(search: Search) -> Decision:
    """Select the best single device and the best placement over several, then decide between the two.

    A race of the finalists selects the two, and another race of the two alone decides. So the luck that helped to select
    them does not enter the decision.
    """
    if not search.session.cluster.executable:
        return Decision()
    with search.ledger.on(DECIDING):
        while (decision := decided(search, *selected(search))) is None:
            pass
    return decision


def selected(search: Search) -> tuple[Candidate | None, Candidate | None]:
    """Race the finalists if time allows, and return the best single device and the best placement over several.

    The best split races with its segments compiled as well (:func:`placeit.optimizer.whole_models.enter_twins`).
    """
    singles, splits = search.finalists()
    twins = enter_twins(search, splits[0], search.left() - search.final_s()) if splits and search.with_references else []
    splits += twins
    finalists = [*singles, *splits]
    rounds = 0
    if finalists:  # enough time has to be left for the decision
        share = min(_SELECTION_SHARE, search.spare() / max(search.left(), TRIFLE_S))
        rounds = affordable(search, SELECTION_ROUNDS, finalists, max(share, 0.0))
    if (len(singles) > 1 or len(splits) > 1) and rounds >= FEWEST:
        search.race(finalists, "measuring the finalists", rounds=rounds, share=_SELECTION_SHARE, anchor=finalists[0])
    else:
        for twin in twins:
            search.skip(twin.name, "no time was left to race it", late=True)
    updated = [[search.known[one.name] for one in group] for group in (singles, splits)]
    single, split = (min((one for one in group if one.failed is None), key=value_of, default=None) for group in updated)
    if search.objective.steady and split is not None:  # of equally good ones, the one with the fewest segments
        equal = [one for one in updated[1] if one.failed is None and one.race == split.race and not _better(split, one)]
        split = min([split, *equal], key=lambda one: (one.segments, value_of(one)))
    return single, split


def _better(split: Candidate, other: Candidate) -> bool:
    """Return whether a split was measured to be better than another one in the same race, beyond the interval."""
    ratio = compared(split.value, other.value)
    return ratio is not None and ratio.faster


def decided(search: Search, single: Candidate | None, split: Candidate | None) -> Decision | None:
    """Decide between a single device and a split by a separate race; return None if one of them failed in it.

    The number of rounds is fixed before the race, and the result is looked at only once, at its end.
    """
    if single is None or split is None or value_of(single) == 0:  # no split can be better than zero
        splits = (one for one in search.standing if one.placer != "single")
        waiting = any(one.measured is None and (one.not_run is None or one.late) for one in splits)
        winner = single or split
        if winner is not None and (asides := guests(search, [winner], SELECTION_ROUNDS)):
            what = "comparing with OpenVINO's own modes"
            search.race([winner], what, rounds=SELECTION_ROUNDS, share=1.0, together=True, guests=asides)
            winner = search.known[winner.name]
            if winner.failed is not None:
                return None
        return Decision(winner, single and winner, hurried=split is None and waiting)
    pair, found = [single, split], {}
    rounds = affordable(search, decision_rounds(single, split), pair, 1.0)
    asides = guests(search, pair, max(rounds, FEWEST))
    if rounds >= FEWEST:
        what = "deciding between the finalists"
        found = search.race(pair, what, rounds=rounds, share=1.0, together=True, guests=asides)
    single, split = (search.known[one.name] for one in pair)
    if single.failed is not None or split.failed is not None:
        return None
    if len(found) < 2 or min(len(value.samples) for value in found.values()) < FEWEST:
        return Decision(single, single, hurried=True)
    single, split = (_final(search, one) for one in (single, split))
    ratio = faster_in_any_opening(found[split.name], found[single.name])
    return Decision(split if ratio.faster else single, single, ratio)


def _final(search: Search, one: Candidate) -> Candidate:
    runs = one.runs
    return one if runs is None else search.revise(one.name, replace(runs, final=True), "in the deciding race")


def guests(search: Search, candidates: Sequence[Candidate], rounds: int) -> list[Candidate]:
    """Return the references to race beside candidates, as far as there is time left to compile and run them."""
    if not search.with_references:
        return []
    room, found = search.left() - search.race_s(search.with_others(candidates), rounds), []
    for one in enter_references(search, search.problem):
        devices = one.reference.devices if one.reference is not None else ()
        room -= sum(map(search.session.runtime.compiler.expected_whole_s, devices)) + search.race_s([one], rounds)
        if room > 0:
            found.append(search.reconsider(one.name))
        else:
            search.skip(one.name, "there was no time left to compile and run it")
    return found


def affordable(search: Search, rounds: int, candidates: Sequence[Candidate], share: float) -> int:
    """Return how many of ``rounds`` rounds there is time for, in a share of the time left."""
    room = (search.left() - search.compiling_s(candidates)) * share
    return min(rounds, rounds_within(room, map(search.run_s, search.with_others(candidates)), period=search.period))
