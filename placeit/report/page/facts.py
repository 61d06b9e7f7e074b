"""Sections with tables only: links, events, environment, and costs without a placement."""

from __future__ import annotations

from collections.abc import Mapping

from placeit.profiler.recording import Recording
from placeit.report.page.section import Section, Table
from placeit.report.shown import name_of, number, records, share
from placeit.report.text import NOTHING, amount, seconds, signed_seconds

__all__ = ["costs", "environment", "events", "links"]

_MAX_ROWS = 2000  # maximum number of rows of a table


def links(recording: Recording) -> Section | None:
    """Return a table of the used links, with their properties if known; None without used links."""
    used = {(use.src, use.dst): use for use in recording.link_use}
    known = {(link.src, link.dst): link for link in recording.links}
    if not used:
        return None
    rows = []
    for (src, dst), use in used.items():
        link = known.get((src, dst))
        rows.append(
            (
                f"{name_of(src)} → {name_of(dst)}",
                seconds(use.busy_s),
                share(use.busy_s, recording.wall_s),
                str(use.transfers),
                amount(use.bytes, "B"),
                amount(use.bytes / use.busy_s, "B/s") if use.busy_s > 0 else NOTHING,
                NOTHING if link is None else amount(link.bandwidth_bytes_per_s, "B/s"),
                NOTHING if link is None else seconds(link.latency_s),
                NOTHING if link is None else name_of(link.origin),
            )
        )
    titles = ("link", "busy", "share of the time", "transfers", "moved", "reached", "bandwidth", "latency", "origin")
    many = f"In {len(recording.requests)} requests, {seconds(recording.wall_s)}."
    return Section("links", "Links", [many], [Table(titles, rows, frozenset(range(1, 8)))])


def events(recording: Recording) -> Section | None:
    """Return a table of the recorded events of a server; None without events."""
    if not recording.events:
        return None
    rows = [
        (name_of(one.name), seconds(one.start_s), seconds(one.finish_s - one.start_s), name_of(one.why))
        for one in recording.events[:_MAX_ROWS]
    ]
    return Section("events", "Events", (), [Table(("event", "at", "took", "why"), rows, frozenset({1, 2}))])


def environment(recording: Recording) -> Section:
    """Return tables of the devices, and of the model, versions and machine."""
    model = recording.model
    facts = {"model": model.path, "precision": model.precision, "ops": str(len(recording.graph.ops))}
    facts |= {"edges": str(len(recording.graph.edges)), "groups": str(len(recording.graph.groups))}
    facts |= {"recorded": recording.made, **recording.environment, **recording.versions}
    devices = [
        (
            name_of(device.name),
            name_of(device.kind),
            name_of(device.full_name),
            name_of(device.driver),
            ", ".join(map(str, device.cores)) or NOTHING,
            amount(device.memory_bytes, "B"),
            amount(device.peak_flops_per_s, "FLOP/s"),
            amount(device.peak_bytes_per_s, "B/s"),
            f"{device.slowdown:g} times slower on purpose" if device.slowdown != 1 else "",
        )
        for device in recording.devices
    ]
    titles = ("device", "kind", "full name", "driver", "cores", "memory", "peak FLOP/s", "peak B/s", "emulated")
    parts = [
        Table(titles, devices, frozenset({5, 6, 7}), title="Devices"),
        Table(("fact", "value"), [(name_of(name), name_of(value)) for name, value in facts.items()], title="Model and machine"),
    ]
    return Section("environment", "Environment", (), parts)


def costs(recording: Recording) -> Section | None:
    """Return a table of the costs of groups of ops on each device; None if a placement ran."""
    if recording.plan is not None or recording.costs is None:
        return None
    names = [device.name for device in recording.devices]
    rows = []
    for group in records(recording.costs.get("groups")):
        took, cut = group.get("seconds"), group.get("cut_s")
        cells = [name_of(group.get("name")), name_of(group.get("kind")), name_of(group.get("ops"))]
        for name in names:
            cells += [signed_seconds(number(of.get(name))) if isinstance(of, Mapping) else NOTHING for of in (took, cut)]
        rows.append((sum(number(v) or 0.0 for v in took.values()) if isinstance(took, Mapping) else 0.0, cells))
    rows.sort(key=lambda row: -row[0])
    titles = ["group", "kind", "ops"]
    for name in names:
        titles += [f"on {name_of(name)}", "cut off"]
    left = f" The {_MAX_ROWS} most expensive of {len(rows)} are listed." if len(rows) > _MAX_ROWS else ""
    table = Table(titles, [cells for _, cells in rows[:_MAX_ROWS]], frozenset(range(2, len(titles))))
    text = (
        f"What each group of ops takes inside the whole model, and in addition where it is cut off from its neighbours.{left}"
    )
    return Section("costs", "Costs", [text], [table])
