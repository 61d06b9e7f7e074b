"""Placements over the CPU and Intel GPUs compute what the CPU computes."""

from __future__ import annotations

from pathlib import Path

from benchmarks.intel_gpu import placed, worst_error
from placeit.session import Session
from tests.emulated_gpu.models import convolutions
from tests.recorded_run import check


def test_random_placements_compute_what_the_cpu_computes(session: Session) -> None:
    assert worst_error(session, session, 6) <= 1e-4


def test_convolutions_beside_each_other_on_the_cpu_and_a_gpu_compute_what_the_cpu_computes(gpu: str, tmp_path: Path) -> None:
    with Session(convolutions(tmp_path), ("CPU", gpu), cache=None) as session:
        on_gpu = session.grouping.group_of[session.model.graph.index["right"]]
        report = session.run(placed(session, [int(group == on_gpu) for group in range(len(session.grouping.groups))]), runs=2)
        assert report.failed is None
        assert report.output_error.max_rel <= 1e-4
        assert min(report.utilization.values()) > 0
        recording = session.recording(report)
    check(recording, tmp_path)
    assert {one.device for one in recording.ops} == {"CPU", gpu}
