"""Bundles for tests: of random placements, and edited ones."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from placeit.core.placement import Placement
from placeit.planning.segments import Costs, Segmenter
from placeit.session import Session

__all__ = ["edited", "placed", "rewritten"]


def placed(session: Session, seed: int = 0) -> Placement:
    """A random placement of the groups of a session, with segments; nothing is measured for it."""
    groups = len(session.grouping.groups)
    where = np.random.default_rng(seed).integers(0, len(session.cluster), groups)
    return session.placement(where, Segmenter(session.grouping, Costs.zero(groups, session.cluster)).plan(where))


def together(*placements: Placement) -> Placement:
    """The first of several placements, the others of which are its replicas."""
    first, *others = placements
    return replace(first, replicas=tuple(others))


def rewritten(bundle: Path, path: Path, change: Callable[[dict[str, bytes]], object], **member: Any) -> Path:
    """Pack a bundle anew with other files; ``member`` are attributes of the members."""
    with zipfile.ZipFile(bundle) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name)
            for attribute, value in member.items():
                setattr(info, attribute, value)
            archive.writestr(info, data)
    return path


def edited(bundle: Path, path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Pack a bundle anew with another manifest, whose digest is right."""

    def write(files: dict[str, bytes]) -> None:
        data = json.loads(files["bundle.json"])
        del data["digest"]
        change(data)
        data["digest"] = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
        files["bundle.json"] = json.dumps(data).encode()

    return rewritten(bundle, path, write)
