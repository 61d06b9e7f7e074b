"""The stage that measures candidates: races in turns, with corrected costs and new candidates between turns."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from placeit.core import clock
from placeit.measuring.budget import TRIFLE_S
from placeit.measuring.incumbent import is_worth_trying, why_hopeless
from placeit.measuring.measure import FAILURES
from placeit.measuring.statistics import FEWEST, summed_up
from placeit.optimizer.book import reason_of
from placeit.optimizer.candidate_state import Ran
from placeit.optimizer.candidates import Candidate, known_value, value_of
from placeit.optimizer.improving import refine
from placeit.optimizer.ledger import COMPILING, MEASURING
from placeit.optimizer.proposing import ask_all
from placeit.optimizer.races import too_late
from placeit.optimizer.search import FEWEST_BESIDE, ROUNDS, Search
from placeit.optimizer.search_state import SearchState, Stage
from placeit.optimizer.whole_models import compiles_splits

__all__ = ["Measure", "improve", "measure", "promising", "time_plain", "time_singles", "within"]

_FINALISTS = 5  # maximum number of new placements that are measured in one turn
_TURNS = 3  # maximum number of turns of measuring and searching again
_TURN_SHARE = 0.35  # share of the time left for a turn
_EXPLORING_SHARE = 0.5  # share of the spare time for placers that choose what is measured
_AGAIN_SHARE = 0.1  # share of the spare time for placers that are asked again
_MUCH_SHARE = 0.1  # share of the time left, above which only candidates expected to be best are compiled


class Measure(Stage):
    """Measure the most promising candidates in turns; then run the placers that choose what is measured."""

    name = "measure"
    reads = ("search",)
    writes = ()
    may_be_interrupted = True

    def run(self, state: SearchState) -> None:
        """Measure candidates, if the devices are real."""
        search, exploring = state.search, state.goal.exploring if state.search.excluded is None else {}
        end = search.deadline
        try:
            search.deadline -= _EXPLORING_SHARE * max(0.0, search.spare()) * bool(exploring)
            improve(search)
        finally:
            search.deadline = end
        for name, placer in exploring.items():
            try:
                placer.explore(search)
            except FAILURES as error:
                search.unplanned[name] = (name, reason_of(error))
                search.story.tell("no placement", None, f"{name}: {reason_of(error)}")


def improve(search: Search) -> None:
    """Measure the most promising candidates, correct the costs by the times of their segments, and search again."""
    if not search.session.cluster.executable:
        return
    with search.ledger.on(MEASURING):
        time_plain(search)
        if not promising(search):  # there is time for one run of each single device only
            time_singles(search)
            return
    for turn in range(_TURNS):
        begin = clock.now()
        with search.ledger.on(MEASURING):
            measure(search)
        one_more = search.left() - (clock.now() - begin) > search.final_s()
        if search.excluded is not None or not one_more or turn == _TURNS - 1 or search.indivisible:
            return
        search.learn()
        count = len(search.known)
        ask_all(search, search.placers, _AGAIN_SHARE, turn=turn + 2)
        refine(search)
        if len(search.known) == count or not worth_another_turn(search):
            return


def worth_another_turn(search: Search) -> bool:
    """Return whether some unmeasured candidate is now expected to beat the best that was measured."""
    fresh = [one for one in search.standing if one.measured is None and one.placer != "single" and search.is_placed(one)]
    best = min(map(value_of, rivals(search)), default=math.inf)
    return any(is_worth_trying(search.expected(one.groups[None])[0] * search.scale, best) for one in fresh)


def rivals(search: Search) -> list[Candidate]:
    """Return the candidates that splits are compared with; if the best split is compiled later, eager ones only."""
    return [one for one in search.standing if search.is_placed(one) or not compiles_splits(search.session)]


def promising(search: Search) -> list[Candidate]:
    """Return unmeasured candidates worth measuring, after the best measured one and the best single device."""
    scale = search.scale
    best = min((known_value(one, scale) for one in rivals(search)), default=math.inf)
    fresh: list[Candidate] = []
    for one in search.standing:
        if one.measured is None and one.placer != "single":
            # given placements are always measured
            is_always_measured = one.given or one.simulated_value is None
            why = None if is_always_measured else why_hopeless(known_value(one, scale), best, search.objective.worse)
            one = search.reconsider(one.name) if why is None else search.skip(one.name, why)
            if why is None:
                fresh.append(one)
    fresh = sorted(fresh, key=lambda one: (not one.given, known_value(one, scale)))
    ranked = search.ranked
    singles = [one for one in ranked if one.placer == "single"][:1]
    singles += [one for one in search.fresh_singles if not is_excluded(search, one)]  # all of them, at first
    beside = sorted(dict.fromkeys([*singles, *ranked[:1]]), key=search.run_s)
    decision = 2 * search.race_s(beside[:1], FEWEST)
    room = max(min(max(search.left() * _TURN_SHARE, search.left() - decision), search.spare()), TRIFLE_S)
    chosen = within(search, room, fresh, beside)
    while beside and search.race_s([*beside, *chosen], 1) > room:  # the slowest first
        beside.pop()
    return [*beside, *chosen]


def is_excluded(search: Search, candidate: Candidate) -> bool:
    """Return whether the bound that excludes splits excludes a single device as well; if so, record that."""
    out = search.excluded is not None and search.is_placed(candidate) and not candidate.given
    if out:
        search.skip(candidate.name, "by the lower bound, it cannot be faster")
    return out


def within(search: Search, room: float, fresh: Sequence[Candidate], beside: Sequence[Candidate]) -> list[Candidate]:
    """Return the first candidates that can race beside others within ``room`` seconds, compiling included.

    A candidate that takes long to compile is left out unless it is expected to be better than the compiled ones.
    """
    chosen: list[Candidate] = []
    much = max(TRIFLE_S, search.left() * _MUCH_SHARE)
    scale = search.scale
    ready = min((known_value(one, scale) for one in search.standing if search.compiling_s([one]) <= much), default=math.inf)
    for one in fresh:
        race = [*beside, *chosen, one]
        running = search.race_s(race, ROUNDS if len(race) > 1 else 1)
        if len(chosen) == _FINALISTS or running > room:
            break
        takes, better = search.compiling_s([one]), is_worth_trying(known_value(one, scale), ready)
        if takes > much and not better and not one.given:
            why = f"it is not simulated {search.objective.better} than the compiled ones, and compiling it takes"
            search.skip(one.name, f"{why} about {takes:.3g} s")
        elif running + search.compiling_s(race) > room:
            search.skip(one.name, too_late(takes, room), late=True)
        else:
            chosen.append(one)
    return chosen


def time_plain(search: Search) -> None:
    """Run plain devices once if there is no time to race all single devices, since their times are not known otherwise."""
    fresh = search.fresh_singles
    if search.race_s(fresh, ROUNDS) > max(search.left() * _TURN_SHARE, TRIFLE_S):
        for candidate in fresh:
            if candidate.simulated_s is None:
                time_once(search, candidate)


def time_once(search: Search, candidate: Candidate) -> float | None:
    """Return the seconds of one run of a candidate, measured on the first call; None if it fails."""
    if candidate.name not in search.once:
        try:
            with search.ledger.on(COMPILING):
                opened = search.deploy(candidate)
            with opened as deployed:
                first = deployed.time()  # without caches, so a second run counts if there is time
                search.once[candidate.name] = min(first, deployed.time()) if first < search.left() else first
        except FAILURES as error:
            search.fail(candidate.name, error)
    return search.once.get(candidate.name)


def time_singles(search: Search) -> None:
    """Run every single device once, unless that has been done; without meters, since there is no time for them."""
    if search.meters is not None and search.meters.complete:
        search.meters.fault = "there was no time to read meters"
        search.go_by_model()
    for candidate in search.fresh_singles:
        if (seconds := time_once(search, candidate)) is None:
            continue
        name, alone = candidate.name, search.homes.get(candidate.name)
        used = np.eye(len(search.problem.device_names))[candidate.groups[0]] if alone is None else alone.busy
        busy = used * seconds
        value = summed_up(name, [search.objective.of_run(seconds, lambda: (busy, 0.0))], [0])  # noqa: B023
        modelled = value if search.objective.has_model else None
        state = Ran(summed_up(name, [seconds], [0]), value, modelled=modelled)
        search.set_state(name, state, "measured", "run once, since there is no time for a race")


def measure(search: Search) -> None:
    """Race the promising candidates; if all of them fail, race the next promising ones, until one has been measured."""
    while (racing := promising(search)) and any(one.measured is None for one in racing):
        what = f"measuring {len(racing)} placement{'s' if len(racing) > 1 else ''}"
        rounds = search.rounds_within(max(search.spare() - search.compiling_s(racing), TRIFLE_S), racing)
        measured = [one for one in search.ranked if one in racing]
        singles = [one for one in (*measured, *racing) if one.placer == "single"]
        anchor = search.anchor_of(singles, next((one for one in measured if one.cost is not None), None), racing[0])
        share = max(search.spare(), 0.0) / max(search.left(), TRIFLE_S)  # runs on a busy machine take longer than expected
        search.race(racing, what, rounds=rounds, share=share, min_rounds=min(rounds, FEWEST_BESIDE), anchor=anchor)
        if search.ranked:
            return
