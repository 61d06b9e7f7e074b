"""The fleet file of the examples, and changes of it."""

from __future__ import annotations

from pathlib import Path

__all__ = ["FLEET", "write_fleet"]

FLEET = Path(__file__).parents[2] / "examples" / "fleet.yaml"


def write_fleet(path: Path, old: str, new: str) -> Path:
    """Write the fleet of a server and two boxes, with a part of the file replaced."""
    text = FLEET.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path
