"""The sample plug-in as it would be installed."""

from __future__ import annotations

import tomllib
from pathlib import Path

PACKAGE = Path(__file__).parent / "plugin_package"


def install_sample(folder: Path) -> list[str]:
    """Write what installing the sample plug-in would write, and return what belongs on the path of Python then."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = folder / "placeit_round_robin-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: placeit-round-robin\nVersion: 1.0\n", encoding="utf-8")
    groups = project["entry-points"].items()
    lines = [line for group, points in groups for line in (f"[{group}]", *(f"{name} = {at}" for name, at in points.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [str(PACKAGE), str(folder)]
