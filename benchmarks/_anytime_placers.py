"""The placers of the benchmark: every registered placer, if possible without its own limit on the running time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from placeit.learning.agents.giph.shipped import FRESH
from placeit.learning.checkpoint import read_checkpoint
from placeit.placers.registry import parse_placer, placer_names

__all__ = ["contenders", "in_full", "is_learned", "name_of", "needs_time", "scales", "training_seconds"]

_ENDLESS = {
    "annealing": "evaluations=1000000000000",
    "giph": "episodes=1000000",
    "guided": "evaluations=1000000000000",
    "local-search": "evaluations=1000000000000",
    "random": "samples=10000",
    "random-task-eft": "episodes=100",
}
"""Options of placers that would otherwise end within a second. All other placers keep their defaults."""

_TIMED = {"cp-sat": "effort=1000000"}
"""Placers that ask for no values and that only a deadline limits. They are not used where there is no deadline."""

_STILL = "learning_rate=0"
_TWINS = (f"doppler:{_STILL},imitation=0", f"placeto:{_STILL}", f"hdp:{_STILL}", *(f"guided:weights={name}" for name in FRESH))
"""Placers that make the same moves as placers that learn, by policies that learn nothing."""

_SCALE = ("annealing", "best-list", "cpop", "guided", "heft", "local-search", "metis", "peft", "random")
"""Placers that are asked about large problems."""

_SHIPPED_TRAINING_S = {"giph": 540.0, "guided": 540.0}
"""The training of the policy that ships with placeit, from docs/giph.md."""


def contenders(extra: Sequence[str] = ()) -> list[str]:
    """Return all registered placers by name; for placers that learn, also variants with policies that learn nothing."""
    return [*placer_names(), *_TWINS, *extra]


def in_full(placer: str) -> str:
    """Return a placer with the option that makes it continue for as long as its budget lasts, unless that option is given."""
    name, _, given = placer.partition(":")
    endless = (_ENDLESS | _TIMED).get(name)
    if endless is None or f"{endless.partition('=')[0]}=" in given:
        return placer
    return f"{name}:{endless},{given}".rstrip(",")


def needs_time(placer: str) -> bool:
    """Whether only a deadline limits a placer."""
    return placer.partition(":")[0] in _TIMED


def scales(placer: str) -> bool:
    """Whether a placer is asked about graphs of 10,000 ops and more."""
    return placer.partition(":")[0] in _SCALE


def name_of(placer: str) -> str:
    """Return a placer as it was named by the user, without the option of :func:`in_full`."""
    name, _, given = placer.partition(":")
    endless = (_ENDLESS | _TIMED).get(name)
    kept = ",".join(option for option in given.split(",") if option != endless)
    return f"{name}:{kept}".rstrip(":")


def is_learned(placer: str) -> bool:
    """Whether a placer learns, before or while it places. False if it is not a placer, such as all of ``optimize``."""
    if placer.rpartition("weights=")[2] in FRESH or _STILL in placer:
        return False
    return placer.partition(":")[0] in placer_names() and type(parse_placer(placer)).__module__.startswith("placeit.learning.")


def training_seconds(placer: str) -> float | None:
    """Return the time for which a policy was trained beforehand; None if it was not, or its file does not say."""
    made = parse_placer(placer)
    weights = getattr(made, "weights", "") if dataclasses.is_dataclass(made) else ""
    if weights in FRESH:
        return None
    if not weights:
        return _SHIPPED_TRAINING_S.get(placer.partition(":")[0])
    seconds = read_checkpoint(weights).about.get("seconds")
    return float(seconds) if isinstance(seconds, int | float) else None
