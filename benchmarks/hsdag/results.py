"""The results of runs as files that people read; parts that were not run stay as the folder has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks._results import table
from benchmarks.hsdag.parts import PARTS
from placeit.core.files import write_text

__all__ = ["write_results"]


def write_results(folder: Path, command: str, seed: int, result: dict[str, Any], note: str) -> None:
    """Write ``report.md`` and ``report.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"parts": {}, "claims": [], "rows": []}
    origin = {"command": command, "commit": result["commit"], "seed": seed, "machine": result["machine"], "note": note}
    told = {row["part"] for row in result["rows"]}
    parts = {part: origin if part in told else before["parts"].get(part) for part in PARTS}
    both = {
        kind: [entry for part in PARTS for entry in (result if part in told else before)[kind] if entry["part"] == part]
        for kind in ("claims", "rows")
    }
    merged = {"benchmark": result["benchmark"], "parts": {part: of for part, of in parts.items() if of}, **both}
    write_text(path, json.dumps(merged, indent=1, allow_nan=False) + "\n")
    write_text(folder / "report.md", _text_of(merged))


def _text_of(merged: dict[str, Any]) -> str:
    lines = [
        "# HSDAG's experiments",
        "",
        "Real runs on one core of a CPU and on one that is slowed on purpose (`slowdown` times); columns named after the paper",
        "have its figures, on other devices. The versions of all libraries are in [report.json](report.json).",
        "",
        "## Claims",
        "",
        *table([{name: value for name, value in claim.items() if name != "unit"} for claim in merged["claims"]]),
    ]
    for part, origin in merged["parts"].items():
        title, _, text = str(PARTS[part].__doc__).strip().partition("\n\n")
        machine = origin["machine"]
        lines += [f"## {title.rstrip('.')}", "", " ".join(text.split()), "", f"    {origin['command']}", ""]
        lines += [
            f"Commit {origin['commit']}; seed {origin['seed']}; {machine['cpu']}, {machine['cores']} cores, Python "
            f"{machine['python']}, OpenVINO {machine['libraries'].get('openvino')}. {origin['note']}".rstrip(),
            "",
        ]
        lines += table([{k: v for k, v in row.items() if k != "part"} for row in merged["rows"] if row["part"] == part])
    return "\n".join(lines).rstrip() + "\n"
