"""JSON of searches in recordings, and summaries of recordings as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from placeit.core.jsonable import jsonable_dict
from placeit.report.kernels import kernels, kinds

if TYPE_CHECKING:
    from pathlib import Path

    from placeit.optimizer.result import Optimized
    from placeit.profiler.recording import Recording

__all__ = ["files", "recording", "search"]

_MAX_KERNELS = 10  # maximum number of kernels in a summary


def search(found: Optimized) -> dict[str, Any]:
    """Return a search as recordings store it: its ``to_dict()``, the samples of each race, learning curves, and events."""
    data = found.to_dict()
    for race, of in zip(data["races"], found.races, strict=True):
        race["samples_s"] = {name: one.samples.tolist() for name, one in of.measured.items()}
    return jsonable_dict(data | {"curves": found.curves, "story": [one.to_dict() for one in found.story]})


def files(paths: Mapping[str, Path | None]) -> dict[str, str | None]:
    """Return fields with the names of files, by their content; None for a file that was not written."""
    return {f"{what}_file": None if path is None else str(path) for what, path in paths.items()}


def recording(found: Recording, placement_file: str | Path, paths: Mapping[str, Path | None]) -> dict[str, Any]:
    """Return a summary of a recording, as ``placeit profile --placement --json`` prints it.

    Args:
        found: the recording.
        placement_file: file of the placement.
        paths: other files by their content; None for a file that was not written.
    """
    path = found.critical_path
    parts = ("latency_s", "computing_s", "cuts_s", "transfers_s", "waiting_s")
    return {
        "model": found.model.path,
        "placement_file": str(placement_file),
        "precision": found.model.precision,
        "runs": len(found.requests),
        "wall_s": found.wall_s,
        "critical_path": None if path is None else {part: getattr(path, part) for part in parts},
        "simulated_s": None if found.predicted is None else found.predicted.makespan_s,
        "states": [dict(vars(one)) for one in found.states],
        "link_use": [dict(vars(one)) for one in found.link_use],
        "kinds": [dict(vars(one)) for one in kinds(found)],
        "kernels": [dict(vars(one)) for one in kernels(found)[:_MAX_KERNELS]],
        "emulated": [device.name for device in found.devices if device.slowdown != 1.0],
    } | files(paths)
