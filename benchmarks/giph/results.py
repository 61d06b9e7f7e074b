"""The results of runs as files that people read: tables, figures, and how to make them again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.giph.bench import PARTS
from benchmarks.giph.figures import Figures
from benchmarks.giph.jobs import Setup
from placeit.core.files import write_text

__all__ = ["write_results"]


def write_results(folder: Path, command: str, setup: Setup, result: dict[str, Any], figures: Figures, note: str = "") -> None:
    """Write ``report.md`` and ``report.json`` beside the figures; parts that were not run stay as the folder has them."""
    path = folder / "report.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"parts": {}, "claims": [], "rows": []}
    seeds = list(range(setup.seed, setup.seed + setup.sizes.seeds))
    origin = {"command": command, "commit": result["commit"], "seeds": seeds, "machine": result["machine"], "note": note}
    told = {row["part"] for row in result["rows"]}
    parts = {
        part: origin | {"figures": figures.drawn.get(part, [])} if part in told else before["parts"].get(part) for part in PARTS
    }
    both = {
        kind: [entry for part in PARTS for entry in (result if part in told else before)[kind] if entry["part"] == part]
        for kind in ("claims", "rows")
    }
    merged = {"benchmark": result["benchmark"], "parts": {part: of for part, of in parts.items() if of}, **both}
    write_text(path, json.dumps(merged, indent=1, allow_nan=False) + "\n")
    write_text(folder / "report.md", _text_of(merged))


def _text_of(merged: dict[str, Any]) -> str:
    lines = [
        "# GiPH's experiments",
        "",
        "An SLR (schedule length ratio) is a makespan over the least that the critical path can take; less is better. The same",
        "figures, and the versions of all libraries, are in [report.json](report.json).",
        "",
        *_origins(merged["parts"]),
        "## Claims",
        "",
        *_table(
            [{name: claim[name] for name in ("part", "name", "value", "unit", "target", "holds")} for claim in merged["claims"]]
        ),
    ]
    for part, origin in merged["parts"].items():
        rows = [{k: v for k, v in row.items() if k != "part"} for row in merged["rows"] if row["part"] == part]
        title, _, text = str(PARTS[part].__doc__).strip().partition("\n\n")
        lines += [f"## {title.rstrip('.')}", "", text.strip(), ""]
        while rows:
            same = next((i for i, row in enumerate(rows) if list(row) != list(rows[0])), len(rows))
            lines += _table(rows[:same])
            rows = rows[same:]
        lines += [line for name in origin["figures"] for line in (f"![{name}]({name}.svg)", "")]
    return "\n".join(lines).rstrip() + "\n"


def _origins(parts: dict[str, Any]) -> list[str]:
    """Say how each part was made; parts of one run together."""
    runs: dict[str, list[str]] = {}
    for part, origin in parts.items():
        machine = origin["machine"]
        where = (
            f"Commit {origin['commit']}; seeds {', '.join(map(str, origin['seeds']))}; {machine['cpu']}, "
            f"{machine['cores']} cores, Python {machine['python']}, torch {machine['libraries'].get('torch')}."
        )
        text = f"    {origin['command']}\n\n{where} {origin['note']}".rstrip()
        runs.setdefault(text, []).append(part)
    return [line for text, names in runs.items() for line in (f"{', '.join(names)}:", "", text, "")]


def _table(rows: list[dict[str, Any]]) -> list[str]:
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
