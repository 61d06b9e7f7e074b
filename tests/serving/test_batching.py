"""Requests that wait are joined along the open first size of the model, and each gets what it would get alone."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.typing import NDArray

from examples.decoder import TINY, write_decoder
from placeit.backends.base import TensorSpec
from placeit.core.errors import DeadlineError, ExecutionError, UsageError
from placeit.core.placement import Placement
from placeit.devices.host import allowed_cores
from placeit.report.metrics import registry_of
from placeit.serving import batching
from placeit.serving.batching import best_size, why_fixed
from placeit.serving.server import Answer, Server
from placeit.session import Session
from placeit.workbench.options import Inputs
from tests.injected import Failures
from tests.open_models import TWO, divided, onnx_attention
from tests.serving.test_serving_failures import LOOP, SERVING

CORE = f"CPU@{allowed_cores()[0]}"
DEVICES = [CORE, f"ort:{CORE}"]
WIDTH = 8
Shapes = Mapping[str, tuple[int | str, ...]]


def saved(folder: Path, signature: str, body: str, **weights: NDArray[Any]) -> Path:
    """Write an ONNX model, given in ONNX's text format."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> model {signature} {{ {body} }}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in weights.items())
    onnx.checker.check_model(model)
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def perceptron(folder: Path) -> Path:
    """Write a perceptron with two layers, whose batch size is open."""
    weights = np.random.default_rng(0).standard_normal((2, WIDTH, WIDTH)).astype(np.float32)
    body = "a = MatMul (x, v) b = Relu (a) y = MatMul (b, w)"
    return saved(folder, f"(float[n, {WIDTH}] x) => (float[n, {WIDTH}] y)", body, v=weights[0], w=weights[1])


def largest_beyond(folder: Path) -> Path:
    """Write a model that adds to every row by how much the largest value of the batch is above 100."""
    body = """
        most = ReduceMax <axes = [0, 1], keepdims = 1> (x)
        above = Sub (most, hundred)
        beyond = Relu (above)
        y = Add (x, beyond)
    """
    return saved(folder, f"(float[n, {WIDTH}] x) => (float[n, {WIDTH}] y)", body, hundred=np.float32(100))


def centred(folder: Path) -> Path:
    """Write a model that subtracts the mean of the batch."""
    body = "mean = ReduceMean <axes = [0], keepdims = 1> (x) y = Sub (x, mean)"
    return saved(folder, f"(float[n, {WIDTH}] x) => (float[n, {WIDTH}] y)", body)


def rows(count: int = 1, seed: int = 0) -> dict[str, NDArray[Any]]:
    return {"x": np.random.default_rng(seed).standard_normal((count, WIDTH)).astype(np.float32)}


OPEN: Shapes = {"x": ("1..16@1", WIDTH)}


@contextlib.contextmanager
def serving(
    path: Path, device: str = CORE, shapes: Shapes = OPEN, most: int | Literal["auto"] = 16, **options: Any
) -> Iterator[Server]:
    with Session(path, [device], inputs=Inputs(shapes=shapes), cache=None) as session:
        whole = np.zeros(len(session.model.graph), np.int32)
        placement = Placement(session.model.graph.names, whole, session.cluster.names, session.model.graph.hash, whole)
        with session.serve(placement, max_batch=most, **options) as server:
            yield server


@contextlib.contextmanager
def busy(server: Server, inputs: Mapping[str, NDArray[Any]]) -> Iterator[Answer]:
    """Have the device do something else until the block ends, with one request in flight there."""
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        go_on.wait(60)

    server.executors[0]._workers[0].submit(hold)  # type: ignore[attr-defined]
    held.wait(60)
    first = server.submit(inputs)
    while not first.running():
        threading.Event().wait(0.001)
    try:
        yield first
    finally:
        go_on.set()


@pytest.mark.parametrize("device", DEVICES)
def test_requests_that_wait_run_as_one_and_each_gets_its_rows(tmp_path: Path, device: str) -> None:
    given = [rows(1 + k % 2, seed=k) for k in range(8)]  # 12 rows in all
    with serving(perceptron(tmp_path), device) as server:
        alone = [server.submit(one).result(60)["y"] for one in given]
        before = server.stats().batches
        assert before == {1: 4, 2: 4}
        with busy(server, rows()):
            answers = [server.submit(one) for one in given]
        for answer, expected in zip(answers, alone, strict=True):
            np.testing.assert_allclose(answer.result(60)["y"], expected, rtol=1e-4, atol=1e-5)
        assert server.stats().batches == {1: 5, 2: 4, 12: 1}
        assert server.stats().runs == 10
        assert server.stats().outcomes["succeeded"] == 17
        ran = [one for one in server.history.requests() if one.ran]
        assert len(ran) == 10  # the segments of a batch are in the trace, and in the times of devices, once
        assert registry_of(lambda: [({}, server.stats())]).get_sample_value("placeit_batch_rows_sum") == 25


def test_a_batch_has_at_most_as_many_rows_as_were_asked_for(tmp_path: Path) -> None:
    with serving(perceptron(tmp_path), most=5) as server:
        with busy(server, rows()):
            answers = [server.submit(rows(2, seed=k)) for k in range(5)]
        assert [answer.result(60)["y"].shape for answer in answers] == [(2, WIDTH)] * 5
        assert server.stats().batches == {1: 1, 4: 2, 2: 1}


def test_a_placement_on_two_devices_joins_as_well(tmp_path: Path) -> None:
    with (
        Session(perceptron(tmp_path), TWO, inputs=Inputs(shapes=OPEN), cache=None) as session,
        session.serve(divided(session, 2), max_batch=16) as server,
    ):
        expected = [server.submit(rows(seed=k)).result(60)["y"] for k in range(40)]
        answers = [server.submit(rows(seed=k)) for k in range(40)]
        for answer, alone in zip(answers, expected, strict=True):
            np.testing.assert_allclose(answer.result(60)["y"], alone, rtol=1e-4, atol=1e-5)


def test_a_request_that_fails_takes_no_other_one_of_its_batch_along(tmp_path: Path) -> None:
    table = np.arange(4 * WIDTH, dtype=np.float32).reshape(4, WIDTH)
    path = saved(tmp_path, f"(int64[n] ids) => (float[n, {WIDTH}] y)", "y = Gather (table, ids)", table=table)
    with serving(path, DEVICES[1], {"ids": ("1..16@1",)}) as server:
        with busy(server, {"ids": np.zeros(1, np.int64)}):
            answers = [server.submit({"ids": np.array([index])}) for index in (1, 99, 3)]  # the table has 4 rows
        np.testing.assert_array_equal(answers[0].result(60)["y"], table[1:2])
        with pytest.raises(ExecutionError, match="indices"):
            answers[1].result(60)
        np.testing.assert_array_equal(answers[2].result(60)["y"], table[3:4])
        assert server.stats().batches == {1: 3}
        outcomes = server.stats().outcomes
        assert (outcomes["succeeded"], outcomes["failed"]) == (3, 1)


def test_requests_that_differ_in_another_size_are_not_joined(tmp_path: Path) -> None:
    def text(length: int, seed: int) -> dict[str, NDArray[Any]]:
        ids = np.random.default_rng(seed).integers(0, 50, (1, length))
        return {"ids": ids, "mask": np.ones((1, length), np.float32)}

    shapes: Shapes = {"ids": ("1..8@1", "1..64@16"), "mask": ("1..8@1", "1..64@16")}
    with serving(onnx_attention(tmp_path), CORE, shapes, 8) as server:
        given = [text(length, seed) for seed, length in enumerate((5, 9, 5, 9, 9))]
        alone = [server.submit(one).result(60) for one in given]
        before = server.stats().batches
        with busy(server, text(3, 9)):
            answers = [server.submit(one) for one in given]
        for answer, expected in zip(answers, alone, strict=True):
            for name, value in expected.items():
                np.testing.assert_allclose(answer.result(60)[name], value, rtol=1e-4, atol=1e-5)
        made = {size: runs - before.get(size, 0) for size, runs in server.stats().batches.items()}
        assert made == {1: 1, 2: 1, 3: 1}


def test_requests_that_are_cancelled_or_too_late_are_in_no_batch(tmp_path: Path) -> None:
    with serving(perceptron(tmp_path)) as server:
        with busy(server, rows()):
            answers = [server.submit(rows(seed=k)) for k in range(3)]
            late = server.submit(rows(), start_within_s=1e-3)
            assert answers[1].cancel()
            with pytest.raises(DeadlineError):
                late.result(60)
        for k in (0, 2):
            assert answers[k].result(60)["y"].shape == (1, WIDTH)
        assert server.stats().batches == {1: 1, 2: 1}
        assert dict(server.stats().outcomes) == {"succeeded": 3, "failed": 0, "expired": 1, "cancelled": 1, "refused": 0}


def test_a_request_whose_array_gets_another_shape_while_it_waits_fails_alone(tmp_path: Path) -> None:
    with serving(perceptron(tmp_path)) as server:
        changed = rows(2)["x"]
        with busy(server, rows()):
            answers = [server.submit(rows()), server.submit({"x": changed}), server.submit(rows())]
            changed.shape = (1, 2 * WIDTH)
        for k in (0, 2):
            assert answers[k].result(60)["y"].shape == (1, WIDTH)
        with pytest.raises(ExecutionError, match="could not be served"):
            answers[1].result(60)


def test_requests_that_cannot_be_stacked_run_alone(tmp_path: Path) -> None:
    with serving(perceptron(tmp_path)) as server:
        changed = rows()["x"]
        with busy(server, rows()):
            answers = [server.submit(rows()), server.submit({"x": changed}), server.submit(rows())]
            changed.dtype = np.dtype("V4")  # which NumPy stacks with no other type
        for k in (0, 2):
            assert answers[k].result(60)["y"].shape == (1, WIDTH)
        assert answers[1].exception(60) is not None
        assert server.submit(rows()).result(60)["y"].shape == (1, WIDTH)


def test_a_delay_lets_a_request_wait_for_others_but_not_beyond_its_deadline_or_the_end_of_the_server(tmp_path: Path) -> None:
    with serving(perceptron(tmp_path), most=2, batch_delay=3600) as server:
        first = server.submit(rows())
        second = server.submit(rows(seed=1))
        assert [one.result(60)["y"].shape for one in (first, second)] == [(1, WIDTH)] * 2
        assert server.stats().batches == {2: 1}
        assert server.submit(rows(), start_within_s=60).result(60)["y"].shape == (1, WIDTH)
        last = server.submit(rows())
    assert last.result(0)["y"].shape == (1, WIDTH)
    assert server.stats().batches == {2: 1, 1: 2}


def test_a_model_whose_rows_depend_on_each_other_is_found_at_the_start_and_not_joined(tmp_path: Path) -> None:
    with serving(centred(tmp_path)) as server:
        (batches,) = server.batches
        assert batches.most == 0
        assert batches.why is not None
        assert "differ from the outputs of single requests" in batches.why
        with busy(server, rows()):
            answers = [server.submit(rows(seed=k)) for k in range(3)]
        for answer in answers:
            np.testing.assert_array_equal(answer.result(60)["y"], np.zeros((1, WIDTH)))


def test_a_batch_that_differs_from_a_single_run_while_it_serves_ends_joining(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    large = {"x": np.full((1, WIDTH), 1000, np.float32)}
    with serving(largest_beyond(tmp_path)) as server:
        assert server.batches[0].most == 16
        with caplog.at_level(logging.WARNING, "placeit"):
            with busy(server, rows()):
                answers = [server.submit(one) for one in (rows(), large)]
            for answer in answers:
                answer.result(60)
            while not (lines := [record.message for record in caplog.records if "joined" in record.message]):
                threading.Event().wait(0.001)  # the batch is compared after its requests have ended
        (line,) = lines
        assert line.startswith("Requests are not joined any more: the outputs of a batch differ")
        with busy(server, rows()):
            answers = [server.submit(one) for one in (rows(), large)]
        np.testing.assert_array_equal(answers[0].result(60)["y"], rows()["x"])
        answers[1].result(60)
        assert server.stats().runs == 5  # a batch, and four requests that ran alone


def test_auto_measures_batches_and_takes_the_smallest_that_is_nearly_the_fastest(tmp_path: Path) -> None:
    with serving(perceptron(tmp_path), most="auto") as server:
        (batches,) = server.batches
        assert {1, 2} <= set(batches.seconds)
        assert (batches.most in batches.seconds) != (batches.why is not None)
    assert best_size([{1: 1.0, 2: 1.2, 4: 1.6, 8: 3.3}, {1: 2.0, 2: 2.4, 4: 3.2, 8: 6.0}]) == (4, pytest.approx(0.39, abs=0.02))
    assert best_size([{1: 1.0, 2: 1.95, 4: 3.8}])[0] == 1


def test_a_model_with_a_fixed_batch_size_or_with_state_is_not_joined(tmp_path: Path) -> None:
    with serving(perceptron(tmp_path), shapes={"x": (1, WIDTH)}, most="auto") as server:
        assert server.batches[0].most == 0
        assert server.submit(rows()).result(60)["y"].shape == (1, WIDTH)
    with (
        pytest.raises(
            UsageError, match=r"cannot be joined: the first size of its input 'x' is not open.*--input-shape x:1\.\.32"
        ),
        serving(perceptron(tmp_path), shapes={"x": (1, WIDTH)}),
    ):
        pass
    sizes: Shapes = {"input_ids": (1, "1..64@9"), "attention_mask": (1, "1..64@9"), "position_ids": (1, "1..64@9")}
    decoder = write_decoder(TINY, tmp_path / "decoder.xml")
    with pytest.raises(UsageError, match="cannot be joined: it keeps state"), serving(decoder, shapes=sizes):
        pass


def test_a_server_that_joins_requests_neither_refines_nor_replaces_its_placement(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="leave out 'max_batch'"), serving(perceptron(tmp_path), on_loss="replace"):
        pass
    with pytest.raises(UsageError, match="got -1"), serving(perceptron(tmp_path), most=-1):
        pass


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a generator that was hit
def test_a_failure_at_any_call_of_the_loop_fails_one_request_at_most_and_loses_none(tmp_path: Path) -> None:
    failures = Failures((*LOOP, batching), SERVING, lambda where: MemoryError(f"put in: {where}"), 1)
    watched: list[bool] = []
    with contextlib.ExitStack() as stack:
        with failures.watched():
            server = stack.enter_context(serving(perceptron(tmp_path), queue=100))
        right = [server.submit(rows(seed=k)).result(60)["y"] for k in range(4)]
        reached = set[str]()
        for turn in range(500):
            if turn >= 120 and reached >= {"Batch.__init__", "Admitting._together"}:
                break
            before, failed = len(failures.hit), 0
            with failures.armed():
                answers = [server.submit(rows(seed=k % 4)) for k in range(40)]
                wait(answers, 60)
            for k, answer in enumerate(answers):
                error = answer.exception(60)
                failed += error is not None
                if error is None:
                    np.testing.assert_allclose(answer.result()["y"], right[k % 4], rtol=1e-4, atol=1e-5)
            assert failed <= len(failures.hit) - before
            watched.clear()
            while not any(watched):
                server.submit(rows()).add_done_callback(lambda _: watched.append(failures.watch()))
                server.submit(rows()).exception(60)
            reached = {hit.partition(" in ")[0] for hit in failures.hit}
        assert reached >= {"Batch.__init__", "Admitting._together"}
        assert (server.stats().waiting, server.stats().in_flight, server.repeated) == (0, 0, 0)


@pytest.mark.parametrize(
    ("shape", "why"), [((2, 1, 8), "is 2, and not a batch size of 1"), ((), "does not exist: it is a scalar")]
)
def test_no_size_is_to_be_opened_that_is_no_batch_size(shape: tuple[int, ...], why: str) -> None:
    """As for the state of a recurrent network, whose first size is its number of layers."""
    x, state = TensorSpec("x", "x", (1, 4), "float32"), TensorSpec("state", "state", shape, "float32")
    opened = replace(x, limits=((1, 32), (4, 4)))
    for first in (x, opened):
        assert why_fixed([first, state], [first]) == f"the first size of its input 'state' {why}"
    assert "--input-shape x:1..32@1" in (why_fixed([x], [x]) or "")
    assert why_fixed([opened], [opened]) is None


@pytest.mark.parametrize(
    ("shape", "why"), [((-1, WIDTH), None), ((1, WIDTH), "output 'y' is not open: its graph has the size")]
)
def test_a_fixed_batch_size_is_opened_where_the_graph_allows_it(
    tmp_path: Path, shape: tuple[int, int], why: str | None
) -> None:
    """A range in place of the size in the file; batches are compared with single requests all the same."""
    body, half = "r = Reshape (x, s) y = MatMul (r, w)", WIDTH // 2
    weight = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32)
    signature = f"(float[1, 2, {half}] x) => (float[1, {WIDTH}] y)"
    path = saved(tmp_path, signature, body, s=np.array(shape), w=weight)
    for sizes, said in ((None, "input 'x' is not open: give --input-shape x:1..32@1"), ({"x": ("1..16@1", 2, half)}, why)):
        with Session(path, [CORE], inputs=Inputs(shapes=sizes), cache=None) as session:
            session.profile()
            with session.serve(session.placement(np.zeros(len(session.grouping.groups), int)), max_batch="auto") as server:
                (found,) = server.batches
                assert len(found.seconds) > 1 if said is None else said in (found.why or "")  # were right, and timed
