"""The part of a search in which a surrogate of the machine selects the next placements to measure, and when to stop."""

from __future__ import annotations

from placeit.learning.choosing import Measurement, worth_measuring
from placeit.measuring.budget import TRIFLE_S
from placeit.optimizer.candidates import Candidate, value_of
from placeit.optimizer.ledger import MEASURING, Item
from placeit.optimizer.measuring import within
from placeit.optimizer.search import Search

__all__ = ["EXPLORING", "explore", "why_pointless"]

EXPLORING = "surrogate"
"""The placer's name."""

_ROUNDS = 3  # runs of each placement, each paired with a run of the anchor
_BATCH = 4  # placements that are measured before the surrogate is fitted again


def explore(search: Search) -> None:
    """Measure the most promising placements, a few at a time, until the expected gain is small or the time is up.

    Args:
        search: the search, in which at least the single devices should have been measured.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed; measurements so far are kept.
    """
    if (why := why_pointless(search)) is not None:
        search.notes[EXPLORING] = f"not asked: {why}"
        return
    curve = search.curves.setdefault(EXPLORING, [])
    while search.left() > search.final_s() + TRIFLE_S:
        search.learn()
        candidates = _choose(search, len(curve))
        with search.ledger.on(MEASURING):
            known = [one for one in search.ranked if one.cost is not None]
            anchor = search.anchor_of([one for one in known if one.placer == "single"], known[0], known[0])
            candidates = within(search, search.left() - search.final_s(), candidates, [anchor])
            if not candidates:
                break
            what = f"exploring {len(candidates)} placement{'s' * (len(candidates) > 1)}"
            share = search.share_before_final
            search.race(candidates, what, rounds=_ROUNDS, share=share, min_rounds=_ROUNDS, drop_losers=False, anchor=anchor)
        results = [search.known[one.name] for one in candidates]
        curve += [value_of(one) for one in results if one.measured is not None]
    search.notes[EXPLORING] = f"measured {len(curve)} placement{'s' * (len(curve) != 1)}"


def why_pointless(search: Search) -> str | None:
    """Return the reason why exploring is pointless; None if it is worth its time."""
    if search.indivisible:
        return "there is nothing to place"
    if search.session.costs.shared:
        return "the budget is too short to compare placements"
    return None if _measurements(search) else "nothing was measured"


def _measurements(search: Search) -> list[Measurement]:
    """Return the plans that were measured beside a candidate of known cost, with their costs."""
    placed = (one for one in search.ranked if search.is_placed(one) and one.steady)
    return [Measurement(one.plan, one.cost) for one in placed if one.cost]


def _choose(search: Search, number: int) -> list[Candidate]:
    """Add the placements that are most worth measuring to the search's candidates, numbered from ``number``; return them."""
    placed = [one for one in search.candidates if search.is_placed(one)]
    pending = [one for one in placed if one.measured is None and one.failed is None and not one.late]
    with search.ledger.on(Item(EXPLORING, placer=True)):
        rows = worth_measuring(
            search.segmenter,
            search.problem,
            search.objective,
            _measurements(search),
            [one.groups for one in pending],
            [one.plan for one in placed if one not in pending],
            count=_BATCH,
            seed=search.seed + number,
        )
        for i, row in enumerate(rows):
            search.add(f"{EXPLORING} {number + i + 1}", EXPLORING, row.copy)
    return [one for row in rows if (one := search.find(row)) is not None]
