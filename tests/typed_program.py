"""A program that uses the public interface; ``make types`` checks it, as a user's type checker would, and nothing runs it."""

from pathlib import Path
from typing import assert_type

import torch

import placeit


def run_a_bundle(path: Path) -> None:
    with placeit.Application.load(path) as application:
        assert_type(application, placeit.Application)
        application.runn()  # type: ignore[attr-defined]
        assert_type(application.session, placeit.Session)


def load_anything(path: str, module: torch.nn.Module) -> None:
    assert_type(placeit.load(path), placeit.Application | placeit.Model)
    assert_type(placeit.load(module, example=(torch.zeros(1, 8),)), placeit.Model)
    placeit.lod(path)  # type: ignore[attr-defined]


def place(path: str) -> None:
    with placeit.Session(path, "CPU@0,CPU@1") as session:
        found = session.optimize(budget=60)
        assert_type(found, placeit.Optimized)
        assert_type(found.placement, placeit.Placement)
        assert_type(session.run(found.placement), placeit.RunReport)
        found.speeed_up  # type: ignore[attr-defined]  # noqa: B018
        with session.serve(found.placement) as server:
            assert_type(server, placeit.Server)
    assert_type(placeit.optimize(path, "CPU", budget="60s"), placeit.Optimized)
