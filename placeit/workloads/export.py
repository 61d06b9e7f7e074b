"""Generated problems as files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from placeit.errors import FileError
from placeit.files import write_text
from placeit.workloads.datasets import Case

__all__ = ["INDEX", "export_cases"]

INDEX = "index.json"
"""Name of the file that lists the others."""


def export_cases(cases: Iterable[Case], folder: Path, name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Write each problem as a file of its own (:meth:`placeit.problem.Problem.to_json`), and an index of them.

    Args:
        cases: what to write; it must end.
        folder: where; made if it is not there, and else empty.
        name: files are called ``name-000.json`` and so on.
        facts: what to say in the index about all of them, such as kind and seed.

    Returns:
        The index: ``facts``, and for each problem its file, its size and what was drawn for it.

    Raises:
        FileError: the folder holds something, or cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = any(folder.iterdir())
    except OSError as error:
        raise FileError(f"Cannot write to the folder {folder}: {error.strerror or error}. Choose another place.") from error
    if taken:
        raise FileError(f"The folder {folder} is not empty; name a new one, so that old and new problems do not mix.")
    problems = []
    for number, case in enumerate(cases):
        problem, file = case.problem, f"{name}-{number:03d}.json"
        problem.to_json(folder / file)
        size = {"ops": len(problem), "edges": len(problem.edges), "devices": problem.devices}
        problems.append({"file": file, **size, "parameters": case.parameters})
    index = {"format": "placeit-problems", "version": 1, **facts, "problems": problems}
    write_text(folder / INDEX, json.dumps(index, indent=1, allow_nan=False) + "\n")
    return index
