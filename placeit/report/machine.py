"""Describe the conditions of measurements: disturbances of the machine, rates of runs, compiled programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from placeit.report import text

if TYPE_CHECKING:
    from placeit.optimizer.candidates import Candidate
    from placeit.planning.profiled import Profiled
    from placeit.runtime.compiling import Compiled

__all__ = ["at_rate", "compiling", "disturbance", "disturbed_rounds"]


def disturbed_rounds(disturbed: int, left_out: int, rounds: int, what: str = "rounds") -> str | None:
    """Describe how many rounds of a race were disturbed by other work on the machine; None if no round was.

    Args:
        disturbed: number of disturbed rounds among the rounds that count.
        left_out: number of disturbed rounds that do not count.
        rounds: number of rounds that count.
        what: word for the rounds, such as "runs".
    """
    if disturbed:
        return (
            f"busy: other work disturbed {disturbed} of {rounds} {what}, and there was no time to repeat them. Times may be "
            "off, and intervals are wider"
        )
    return f"busy at times: {left_out} {what} that other work disturbed do not count" if left_out else None


def disturbance(profiled: Profiled | None) -> str | None:
    """Describe how busy the machine was while costs were measured; None if it was not busy, or if this is unknown."""
    if profiled is None or not profiled.disturbed:
        return None
    load = "" if profiled.load is None else f", while other processes kept {profiled.load:.1f} cores busy"
    why = f"the times of the whole model varied by {text.percent(profiled.spread)}"
    if profiled.unsure:
        why += f", and of {profiled.blocks} blocks of runs {profiled.disturbed_blocks} were disturbed"
    return (
        f"busy while costs were measured: {why}{load}. Simulated times, and what placers proposed by them, may be off: measure "
        "again when it is quiet"
    )


def at_rate(rate: float, candidates: Iterable[Candidate]) -> str:
    """Describe the rate at which runs were started, and name the candidates whose runs take longer than a period."""
    late = [one.name for one in candidates if one.measured is not None and one.measured.median > 1 / rate]
    line = f"runs start at {rate:g} per second"
    if not late:
        return line
    return (
        f"{line}; a run of {', '.join(late)} takes longer than the {text.seconds(1 / rate)} between two starts, and is "
        "followed by the next one without a pause"
    )


def compiling(kinds: Mapping[str, Compiled]) -> str | None:
    """Describe how many programs were compiled for each kind of device, and in how many seconds; None without programs."""
    lines = [
        f"{kind} {one.compiled} program{'s' if one.compiled != 1 else ''}"
        f"{f' and {one.from_disk} from disk' if one.from_disk else ''} in {text.duration(one.seconds)}"
        f"{f', {one.reused} used again' if one.reused else ''}"
        for kind, one in kinds.items()
    ]
    return "; ".join(lines) or None
