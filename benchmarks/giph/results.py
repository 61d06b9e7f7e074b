"""The results of a run as files that people read: tables, figures, and how to make them again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.giph.bench import PARTS
from benchmarks.giph.figures import Figures
from benchmarks.giph.jobs import Setup

__all__ = ["write_results"]


def write_results(folder: Path, command: str, setup: Setup, result: dict[str, Any], figures: Figures) -> None:
    """Write ``report.md`` and ``report.json`` beside the figures."""
    seeds = list(range(setup.seed, setup.seed + setup.sizes.seeds))
    text = json.dumps({"command": command, "seeds": seeds, **result}, indent=1, allow_nan=False)
    (folder / "report.json").write_text(text + "\n", encoding="utf-8")
    machine = result["machine"]
    where = (
        f"Commit {result['commit']}; seeds {', '.join(map(str, seeds))}; {machine['cpu']}, {machine['cores']} cores, Python "
        f"{machine['python']}, torch {machine['libraries'].get('torch')}. The same figures, and the versions of all libraries, "
        "are in [report.json](report.json)."
    )
    lines = [
        "# GiPH's experiments",
        "",
        f"    {command}",
        "",
        where,
        "",
        "An SLR (schedule length ratio) is a makespan over the least that the critical path can take; less is better.",
        "",
        "## Claims",
        "",
        *_table([{name: claim[name] for name in ("name", "value", "unit", "target", "holds")} for claim in result["claims"]]),
    ]
    for part, module in PARTS.items():
        rows = [{k: v for k, v in row.items() if k != "part"} for row in result["rows"] if row["part"] == part]
        if not rows:
            continue
        title, _, text = str(module.__doc__).strip().partition("\n\n")
        lines += [f"## {title.rstrip('.')}", "", text.strip(), ""]
        while rows:
            same = next((i for i, row in enumerate(rows) if list(row) != list(rows[0])), len(rows))
            lines += _table(rows[:same])
            rows = rows[same:]
        lines += [line for name in figures.drawn.get(part, ()) for line in (f"![{name}]({name}.svg)", "")]
    (folder / "report.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


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
