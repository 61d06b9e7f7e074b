"""Print explanations of placements, differences between placements, and the events of searches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from placeit.report import as_text, text

if TYPE_CHECKING:
    from rich.console import Console

    from placeit.optimizer.diff import Difference
    from placeit.optimizer.explain import Crossing, Explained, Explanation, Reading
    from placeit.optimizer.story import Event
    from placeit.planning.profiled import Profiled

__all__ = ["difference", "effect", "explanation", "story"]

_MAX_OPS = 5  # maximum number of ops to list of a group or a segment


def explanation(console: Console, found: Explanation) -> None:
    """Print why ops are on their devices, and what moving them would change."""
    figures = {
        "simulated": f"{text.seconds(found.simulated_s)}, {text.seconds(found.host_s)} of it by the host",
        "planned anew": f"{text.seconds(found.replanned_s)} (what moves are compared with)",
        "segments": str(found.segments),
        "costs": _costs(found.profiled),
        **{f"memory of {one.device}": _reading(one) for one in found.memory if one.bytes_per_s is not None},
        **({} if found.replicas == 1 else {"replicas": f"{found.replicas}; this is about the first"}),
    }
    text.facts(console, figures)
    for one in found.ops:
        console.print()
        _explained(console, one, found.devices)


def _explained(console: Console, one: Explained, devices: Sequence[str]) -> None:
    text.paragraph(console, f"{one.op} ({one.kind}) on {one.device}", style="bold")
    text.facts(
        console,
        {
            "decided": "; ".join(f"{decision.by}: {decision.why}" for decision in one.decided),
            "group": _ops(one.group),
            "segment": f"number {one.segment}: {_ops(one.segment_ops)}",
            "runs": f"{text.seconds(one.start_s)} .. {text.seconds(one.finish_s)}",
            "slack": text.seconds(one.slack_s) if one.slack_s else "none: on the critical path",
            **({} if one.memory.bytes_per_s is None else {"memory": _reading(one.memory)}),
            **{f"transfer {i}": _transfer(crossing) for i, crossing in enumerate(one.transfers, 1)},
            **{f"cut {i}": _cut(crossing) for i, crossing in enumerate(one.cuts, 1)},
        },
    )
    changes = {(move.what, move.device): change(move.change_s) for move in one.moves}
    rows = [
        (
            f"{name} (here)" if name == one.device else name,
            text.seconds(one.core_s[name]),
            text.seconds(one.cut_s[name]),
            text.signed_seconds(one.load_s[name]),
            changes.get(("group", name), text.NOTHING),
            changes.get(("segment", name), text.NOTHING),
        )
        for name in devices
    ]
    heads = ("device", "group", "cut off", "load", "moving the group", "moving the segment")
    text.table(console, heads, rows, spare=("load", "cut off"))
    text.show_failures(console, {f"{move.what} to {move.device}": move.refused for move in one.moves}, title="cannot be moved")


def story(console: Console, events: Sequence[Event], unit: str, *, searched: bool) -> None:
    """Print the events of a search by stage, with the seconds since the start of the search.

    Args:
        console: console to print to.
        events: the events.
        unit: unit of the objective.
        searched: whether the recording is of a search; if not, a note says so.
    """
    if not events:
        note = "The search in this recording has no story: an earlier version of placeit made it."
        text.paragraph(console, note if searched else "This recording is of a run, not of a search, and so has no story.")
    for one in events:
        if one.what == "stage begins":
            text.paragraph(console, one.stage, style="bold")
            continue
        value = (one.state or {}).get("cost" if one.what == "compared" else "value")
        line = one.what if one.candidate is None else f"{one.candidate}: {one.what}"
        line += f", {text.amount(value, unit, least=-3)}" if isinstance(value, int | float) else ""
        line += "" if one.reason is None else f"; {one.reason}"
        text.paragraph(console, line, label=f"{one.at_s:9.3f} s  ")


def difference(console: Console, found: Difference) -> None:
    """Print how two placements differ."""
    text.facts(console, {"effect": effect(found)})
    console.print()
    rows = [
        (name, text.seconds(simulated), text.seconds(replanned))
        for name, simulated, replanned in zip(found.names, found.simulated_s, found.replanned_s, strict=True)
    ]
    text.table(console, ("placement", "simulated", "planned anew"), rows)
    console.print()
    if not found.moved:
        same = "and the same segments" if found.same_segments else "and differ in their segments"
        text.paragraph(console, f"Both have all ops on the same devices, {same}.")
    else:
        rows_of_moves = [(_ops(one.ops), one.src, one.dst, change(one.change_s)) for one in found.moved]
        rows_of_moves.append(("all together", "", "", change(found.change_s)))
        text.table(console, ("ops moved", "from", "to", "alone changes"), rows_of_moves, left=3)
        refused = {f"{_ops(one.ops)} to {one.dst}": one.refused for one in found.moved}
        text.show_failures(console, refused, title="cannot be moved alone")
    text.paragraph(console, f"Changes are simulated, for single requests, by costs that are {_costs(found.profiled)}.")
    if found.measured is not None:
        console.print()
        as_text.comparison(console, found.measured)


def effect(found: Difference) -> str:
    """Return a line with the measured or else simulated change in time from the first placement to the second."""
    if (ratio := found.speedup) is not None:
        return f"{found.names[1]} is {text.ratio(ratio)} times as fast as {found.names[0]} (measured)"
    if not found.moved:
        return "both have all ops on the same devices"
    return f"{change(found.change_s)} from {found.names[0]} to {found.names[1]} (simulated)"


def change(value: float | None) -> str:
    """Format the change of a time: ``+1.23 ms``, ``-45.6 us``, ``none``."""
    if value is None:
        return text.NOTHING
    return "none" if abs(value) < 1e-12 else f"{'+' if value > 0 else ''}{text.signed_seconds(value)}"


def _ops(names: Sequence[str]) -> str:
    more = len(names) - _MAX_OPS
    return ", ".join(names[:_MAX_OPS]) + (f" and {more} more" if more > 0 else "")


def _transfer(one: Crossing) -> str:
    size = text.amount(one.bytes, "B")
    return f"{one.tensor}, {one.src} -> {one.dst}, {size}, {text.seconds(one.seconds)}, read by {_ops(one.readers)}"


def _cut(one: Crossing) -> str:
    return f"{one.tensor}, {one.way}, {text.amount(one.bytes, 'B')}, {text.seconds(one.seconds)}"


def _reading(one: Reading) -> str:
    moved = f"{text.amount(one.bytes, 'B')} at {text.amount(one.bytes / one.seconds, 'B/s')}" if one.seconds else text.NOTHING
    if one.bound:
        return f"bound by memory bandwidth: {moved}"
    return f"{moved}; {one.device} reads {text.amount(one.bytes_per_s, 'B/s')}"


def _costs(profiled: Profiled | None) -> str:
    return "estimates by figures of the devices" if profiled is None else "from the cache" if profiled.cached else "measured"
