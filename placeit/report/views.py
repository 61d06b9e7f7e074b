"""Results as HTML pages, notebook tables and pandas tables, for :mod:`placeit.core.views`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from placeit.core.extras import import_extra
from placeit.measuring.run_report import RunReport
from placeit.optimizer.candidates import Candidate
from placeit.optimizer.compare import Comparison
from placeit.optimizer.result import Optimized
from placeit.profiler.profile_report import ProfileReport
from placeit.profiler.recording import Recording
from placeit.report import as_json
from placeit.report.page import check_page, write_page
from placeit.report.shown import decision, name_of, op_rows
from placeit.report.text import NOTHING, percent, seconds, signed_seconds

__all__ = ["frame", "html", "page", "recording"]

_MAX_ROWS = 12  # maximum number of rows of a table in a notebook


def recording(found: Recording | Optimized) -> Recording:
    """Return the recording of a result. The recording of a search has a few runs of its answer."""
    if isinstance(found, Recording):
        return found
    return replace(found.recorded, search=as_json.search(found))


def page(found: Recording | Optimized, path: str | Path) -> None:
    """Write a result as an HTML page."""
    check_page()  # before anything runs
    write_page(path, recording(found))


@functools.singledispatch
def _rows(found: object) -> list[dict[str, Any]]:
    """Return the rows of a result's table, as dicts by column."""
    raise TypeError(f"{type(found).__name__} has no table")


@_rows.register
def _(found: Recording) -> list[dict[str, Any]]:
    return [vars(row) for row in op_rows(found)]


@_rows.register
def _(found: Optimized) -> list[dict[str, Any]]:
    return [_candidate(one) | {"chosen": one.name == found.chosen.name} for one in found.candidates]


@_rows.register
def _(found: Comparison) -> list[dict[str, Any]]:
    return [_candidate(one) for one in (*found.candidates, *found.references)]


@_rows.register
def _(found: RunReport) -> list[dict[str, Any]]:
    names = found.cluster.names
    return [
        {
            "segment": s,
            "device": names[int(found.plan.placement[s])],
            "groups": len(found.plan.segments[s].groups),
            "measured_s": float(took),
        }
        for s, took in enumerate(found.segment_s)
    ]


@_rows.register
def _(found: ProfileReport) -> list[dict[str, Any]]:
    rows = []
    for group in found.to_dict()["groups"]:
        for device in found.costs.cluster.names:
            times = {column: group[of][device] for column, of in _TIMES.items()}
            rows.append({"group": group["name"], "kind": group["kind"], "ops": group["ops"], "device": device} | times)
    return rows


_TIMES = {"measured_s": "seconds", "cut_s": "cut_s", "load_s": "load_s"}


def _candidate(one: Candidate) -> dict[str, Any]:
    measured = one.measured
    return {
        "name": one.name,
        "placer": one.placer,
        "segments": one.segments,
        "simulated_s": one.simulated_s,
        "measured_s": None if measured is None else measured.median,
        "ci_low_s": None if measured is None else measured.ci_low,
        "ci_high_s": None if measured is None else measured.ci_high,
        "race": one.race,
        "failed": one.failed,
    }


def frame(found: object) -> Any:
    """Return a result as a pandas table."""
    return import_extra("A table", "report", "pandas").DataFrame(_rows(found))


def html(found: object) -> str:
    """Return a result as HTML for a notebook: a sentence, and a table with at most 12 rows."""
    rows = _rows(found)
    lines = [f"<p>{escape(_sentence(found))}</p>", _table(rows[:_MAX_ROWS])]
    if len(rows) > _MAX_ROWS:
        lines.append(f"<p>and {len(rows) - _MAX_ROWS} more in to_dataframe()</p>")
    return "\n".join(lines)


def _sentence(found: object) -> str:
    if isinstance(found, Recording):
        return decision(found)
    if isinstance(found, Optimized):
        return f"{name_of(found.chosen.name)} is chosen: {found.reason}."
    if isinstance(found, RunReport):
        shares = ", ".join(f"{name_of(name)} {percent(share)}" for name, share in found.utilization.items())
        return f"A request takes {seconds(found.latency.median)}, median of {len(found.latency.samples)} runs; busy: {shares}."
    return f"{type(found).__name__} of {name_of(getattr(found, 'model', ''))}"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(_heading(title))}</th>" for title in rows[0])
    body = "".join(f"<tr>{''.join(f'<td>{escape(_cell(title, row[title]))}</td>' for title in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _is_time(title: str) -> bool:
    return title.endswith("_s") and not title.endswith("per_s")


def _heading(title: str) -> str:
    """Return a heading without the unit of times, which cells have."""
    return (title.removesuffix("_s") if _is_time(title) else title).replace("_", " ")


def _cell(title: str, value: Any) -> str:
    if value is None or value == "":
        return NOTHING
    if _is_time(title):
        return signed_seconds(value)
    return f"{value:.3g}" if isinstance(value, float) else name_of(value)
