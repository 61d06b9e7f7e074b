"""Requests in flight on the CPU and Intel GPUs: none is lost, none is answered with another's outputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.intel_gpu import answers, on_all, placed
from placeit.devices.host import allowed_cores
from placeit.session import Session


def test_requests_at_a_rate_on_a_mixed_placement_are_all_answered_rightly(session: Session) -> None:
    assert answers(session, on_all(session), 100, rate=50.0) == (0, 0)


def test_replicas_on_a_gpu_and_a_core_answer_what_the_cpu_does(mlp: Path, gpu: str) -> None:
    with Session(mlp, (gpu, f"CPU@{allowed_cores()[0]}"), cache=None) as session:
        on_gpu, on_core = (placed(session, [device] * 4) for device in (0, 1))
        assert answers(session, replace(on_gpu, replicas=(on_core,)), 100, rate=50.0) == (0, 0)
