"""A limit on the memory of a GPU holds on every path that leads to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.intel_gpu import placed
from placeit.core.errors import PlacementError
from placeit.optimizer.options import Candidates
from placeit.profiler.cache import Cache
from placeit.session import Session
from placeit.workbench.options import Constraints
from tests.steady import optimize

_LAYER = 64 * 64 * 4  # bytes of weights, of which the model has three


@pytest.fixture
def capped(pair: tuple[str, str], mlp: Path) -> Iterator[Session]:
    """A GPU that has room for one layer, and a core."""
    with Session(mlp, pair, cache=None, constraints=Constraints(memory={pair[0]: 1.5 * _LAYER})) as opened:
        yield opened


@pytest.mark.parametrize("first", [True, False], ids=["the first", "another"])
def test_a_replica_beyond_the_limit_is_refused(capped: Session, gpu: str, first: bool) -> None:
    on_gpu, on_core = (placed(capped, [device] * 4) for device in (0, 1))
    served = replace(on_gpu, replicas=(on_core,)) if first else replace(on_core, replicas=(on_gpu,))
    with pytest.raises(PlacementError, match=f"{gpu} has .* of memory"):
        capped.serve(served)


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_no_candidate_of_a_search_is_beyond_the_limit(
    mlp: Path, pair: tuple[str, str], cost_cache: Path, objective: str
) -> None:
    gpu, _ = pair
    found = optimize(
        mlp,
        pair,
        objective=objective,
        candidates=Candidates(placers=("heft",)),
        budget=5,
        cache=Cache(cost_cache),
        constraints=Constraints(memory={gpu: 1.5 * _LAYER}),
    )
    assert gpu not in {candidate.name for candidate in found.candidates}
    layers = ("stem", "left", "right")
    for candidate in found.candidates:
        for one in candidate.placement.every:
            assert [one.as_dict()[layer] for layer in layers].count(gpu) <= 1, candidate.name
    assert found.chosen.output_error is not None
    assert np.isfinite(found.chosen.output_error.max_rel)
