"""The results of a benchmark as files for people: tables, figures, and the commands that make them again."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from placeit.core.files import write_text

__all__ = ["Origin", "add_options", "table", "write_results"]


@dataclass(frozen=True)
class Origin:
    """The origin of results.

    Attributes:
        command: the command that gives the same figures.
        seeds: seeds of everything random.
        note: other information, such as other load on the machine.
        figures: names of the figures of each part.
    """

    command: str
    seeds: Sequence[int]
    note: str = ""
    figures: Mapping[str, Sequence[str]] = field(default_factory=dict)


def add_options(options: argparse.ArgumentParser) -> None:
    """Add the options for keeping results."""
    options.add_argument(
        "--results",
        type=Path,
        metavar="DIR",
        help="write report.md, report.json and any figures there; of parts that are not run, what is there stays",
    )
    options.add_argument(
        "--note", default="", metavar="TEXT", help="say this beside the results, such as what else was running"
    )


def write_results(folder: Path, head: str, parts: Mapping[str, object], result: Mapping[str, Any], origin: Origin) -> None:
    """Write ``report.md`` and ``report.json`` beside the figures. Parts that were not run stay as they are in the folder.

    Args:
        folder: folder for the files.
        head: beginning of the text: a title, and information about all parts.
        parts: all parts; the docstring of each is its title and its text.
        result: the benchmark's ``--json`` object; each row and each claim names its ``part``.
        origin: origin of the parts that were run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"parts": {}, "claims": [], "rows": []}
    shared = {"command": origin.command, "commit": result["commit"], "seeds": list(origin.seeds)}
    shared |= {"machine": result["machine"], "note": origin.note}
    told = {row["part"] for row in result["rows"]}
    origins = {
        part: shared | {"figures": list(origin.figures.get(part, []))} if part in told else before["parts"].get(part)
        for part in parts
    }
    both = {
        kind: [entry for part in parts for entry in (result if part in told else before)[kind] if entry["part"] == part]
        for kind in ("claims", "rows")
    }
    merged = {"benchmark": result["benchmark"], "parts": {part: of for part, of in origins.items() if of}, **both}
    write_text(path, json.dumps(merged, indent=1, allow_nan=False) + "\n")
    write_text(folder / "report.md", _text_of(head, parts, merged))


def _text_of(head: str, parts: Mapping[str, object], merged: dict[str, Any]) -> str:
    claims = [
        {name: claim[name] for name in ("part", "name", "value", "unit", "target", "holds")} for claim in merged["claims"]
    ]
    lines = [*head.splitlines(), "", *_origins(merged["parts"]), "## Claims", "", *table(claims)]
    for part, origin in merged["parts"].items():
        rows = [{k: v for k, v in row.items() if k != "part"} for row in merged["rows"] if row["part"] == part]
        title, _, text = str(parts[part].__doc__).strip().partition("\n\n")
        lines += [f"## {title.rstrip('.')}", "", text.strip(), ""]
        while rows:
            same = next((i for i, row in enumerate(rows) if list(row) != list(rows[0])), len(rows))
            lines += table(rows[:same])
            rows = rows[same:]
        lines += [line for name in origin["figures"] for line in (f"![{name}]({name}.svg)", "")]
    return "\n".join(lines).rstrip() + "\n"


def _origins(parts: dict[str, Any]) -> list[str]:
    """State how each part was made. Parts that were run together are listed together."""
    runs: dict[str, list[str]] = {}
    for part, origin in parts.items():
        machine = origin["machine"]
        where = (
            f"Commit {origin['commit']}; seeds {', '.join(map(str, origin['seeds']))}; {machine['cpu']}, "
            f"{machine['cores']} cores, Python {machine['python']}, torch {machine['libraries'].get('torch')}, "
            f"OpenVINO {machine['libraries'].get('openvino')}."
        )
        text = f"    {origin['command']}\n\n{where} {origin['note']}".rstrip()
        runs.setdefault(text, []).append(part)
    return [line for text, names in runs.items() for line in (f"{', '.join(names)}:", "", text, "")]


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table in Markdown, followed by an empty line."""
    if not rows:
        return ["none", ""]
    head = [name.replace("_", " ") for name in rows[0]]
    body = [[_text(value) for value in row.values()] for row in rows]
    return ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *body)] + [""]


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
