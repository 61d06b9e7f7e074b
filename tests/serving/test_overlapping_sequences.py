"""Requests of one sequence that are in flight on several devices: each device runs them in order, on the state there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placeit.core.errors import DeviceError, ExecutionError, SequenceError, StateLostError
from placeit.devices.openvino import openvino_core
from placeit.runtime.executor import Executor
from placeit.serving.server import Server
from placeit.session import Session
from placeit.workbench.options import Inputs
from tests.open_models import divided
from tests.serving.test_ort_sequences import ONE, OTHER, onnx_caches
from tests.serving.test_sequences import LANES, LAYERS, Bench, bench, close_to, growing, inputs, rows, split
from tests.stateful_models import SIZE, Caches, Totals

__all__ = ["bench", "growing"]


class Meeting:
    """Has the first segment on device ``b`` wait until device ``a`` has begun a given number of segments."""

    def __init__(self, made: Bench, begun: int, then: Callable[[], object] = int) -> None:
        self._left, self._then, self._met = begun, then, threading.Event()
        self.met: list[bool] = []
        made.devices[0].trouble, made.devices[1].trouble = self._in_a, self._in_b

    def _in_a(self) -> None:
        self._left -= 1
        if not self._left:
            self._met.set()

    def _in_b(self) -> None:
        if not self.met:
            self.met.append(self._met.wait(60))
            self._then()


def test_a_request_enters_a_device_when_the_one_before_has_left_it_for_the_next(bench: Callable[[str], Bench]) -> None:
    made, model = bench("python"), Totals(LAYERS)
    with Server([made.executor()]) as server, server.sequence() as sequence:
        for begun in (2, 2):  # later requests use the slots of the first ones
            meeting = Meeting(made, begun)
            answers = [sequence.submit(inputs(step)) for step in range(6)]
            for step, answer in enumerate(answers):
                close_to(answer.result(60), model.run(inputs(step)["x"]))
            assert meeting.met == [True]
        assert server.stats().outcomes["succeeded"] == 12


@pytest.mark.parametrize("lanes", LANES)
def test_requests_that_are_submitted_at_once_compute_what_the_uncut_model_does(
    bench: Callable[[str], Bench], lanes: str
) -> None:
    made = bench(lanes)
    uncut = (
        openvino_core().compile_model(made.model.ov_model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
    )
    with Server([made.executor()], queue=200) as server, server.sequence() as sequence:
        answers = [sequence.submit(inputs(step)) for step in range(60)]
        others = [server.submit(inputs(step)) for step in range(5)]
        for step, answer in enumerate(answers):
            close_to(answer.result(60), uncut.infer(inputs(step))[0])
        for step, answer in enumerate(others):
            close_to(answer.result(60), Totals(LAYERS).run(inputs(step)["x"]))
        close_to(sequence.fork().run(inputs(7)), uncut.infer(inputs(7))[0])


def test_states_that_grow_are_those_of_single_requests_and_are_measured_in_the_end(growing: Session) -> None:
    model = Caches(LAYERS)
    with growing.serve(split(growing)) as server, server.sequence() as sequence:
        answers = [sequence.submit(rows(2 + step % 5, step)) for step in range(30)]
        for step, answer in enumerate(answers):
            close_to(answer.result(60), model.run(rows(2 + step % 5, step)["x"]))
        exact = []
        for step in range(40):  # one after the other, so that it is measured again, by the 60th request at the latest
            close_to(sequence.run(rows(1, step)), model.run(rows(1, step)["x"]))
            exact.append(sequence.state_bytes == model.state_bytes)
        assert any(exact)
        sequence.reset()
        assert sequence.state_bytes == 0


def test_a_failure_takes_along_the_requests_behind_it_and_a_reset_helps(bench: Callable[[str], Bench]) -> None:
    def fail() -> None:
        raise RuntimeError("put in")

    made = bench("python")
    with Server([made.executor()]) as server, server.sequence() as sequence, server.sequence() as other:
        meeting = Meeting(made, 2, fail)
        answers = [sequence.submit(inputs(step)) for step in range(4)]
        with pytest.raises(ExecutionError, match="put in"):
            answers[0].result(60)
        for answer in answers[1:]:
            with pytest.raises(StateLostError, match="put in"):
                answer.result(60)
        assert meeting.met == [True]
        with pytest.raises(SequenceError, match="not known any more"):
            sequence.fork()
        close_to(other.run(inputs(1)), Totals(LAYERS).run(inputs(1)["x"]))
        sequence.reset()
        model = Totals(LAYERS)
        answers = [sequence.submit(inputs(step)) for step in range(4)]
        for step, answer in enumerate(answers):
            close_to(answer.result(60), model.run(inputs(step)["x"]))
        assert server.repeated == 0


def test_requests_run_one_after_the_other_where_there_is_no_room_for_more_buffers(
    bench: Callable[[str], Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, model, open_slot = bench("native"), Totals(LAYERS), Executor.open_slot

    def full(self: Executor, *, beside: Any = None) -> Any:
        if beside is not None:
            raise DeviceError("There is no room.")
        return open_slot(self)

    monkeypatch.setattr(Executor, "open_slot", full)
    with Server([made.executor()]) as server, server.sequence() as sequence:
        answers = [sequence.submit(inputs(step)) for step in range(8)]
        for step, answer in enumerate(answers):
            close_to(answer.result(60), model.run(inputs(step)["x"]))
        assert server.stats().outcomes["failed"] == 0


def test_a_sequence_that_is_closed_early_frees_all_its_slots(bench: Callable[[str], Bench]) -> None:
    made = bench("native")
    with Server([made.executor()], queue=100) as server:
        for _ in range(5):
            with server.sequence() as sequence:
                answers = [sequence.submit(inputs(step)) for step in range(6)]
                answers[0].result(60)
                sequence.close(drain=False)
            for answer in answers:
                answer.exception(60)
        server.submit(inputs(0)).result(60)
        assert server.stats().sequences == 0


@pytest.mark.two_cores
def test_onnx_runtime_keeps_the_states_of_requests_that_overlap(tmp_path: Path) -> None:
    path, sizes = onnx_caches(tmp_path / "caches.onnx"), Inputs(shapes={"x": (1, "1..16@4", SIZE)})
    for devices in ([f"ort:{ONE}", f"ort:{OTHER}"], [f"ort:{ONE}", OTHER]):
        with (
            Session(path, devices, inputs=sizes, cache=None) as session,
            session.serve(divided(session, 2)) as server,
            server.sequence() as sequence,
        ):
            model = Caches(2)
            assert sequence.line.slot is not None
            assert sequence.line.slot.at_once == 2
            answers = [sequence.submit(rows(1 + step % 3, step)) for step in range(20)]
            for step, answer in enumerate(answers):
                np.testing.assert_allclose(
                    answer.result(60)["y"], model.run(rows(1 + step % 3, step)["x"]), rtol=1e-4, atol=1e-4
                )
