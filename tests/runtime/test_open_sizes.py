"""Models whose inputs have ranges of sizes: one placement, one set of programs, any size in range."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import cast

import numpy as np
import onnx
import onnx.parser
import openvino as ov
import pytest
from numpy.typing import NDArray

import placeit.runtime.devices.openvino as driver
from examples.decoder import TINY, write_decoder
from placeit.backends import load
from placeit.backends.base import Sample
from placeit.core.errors import DeviceError, ExecutionError, ModelError, SequenceError, UsageError
from placeit.core.placement import Placement
from placeit.core.sizes import LARGEST, SizeRange
from placeit.devices.openvino import openvino_core
from placeit.measuring.check import OutputDifference, other_inputs
from placeit.runtime.devices.host_buffer import HostBuffer
from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.slots import States
from placeit.runtime.spans import Timed, blended
from placeit.session import Session
from placeit.workbench.options import Inputs
from placeit.workbench.sizes import at_sizes
from tests.open_models import (
    LENGTHS,
    OPEN,
    TWO,
    WIDTH,
    Arrays,
    Shapes,
    assert_close,
    at_one_size,
    attention,
    convolutions,
    divided,
    onnx_attention,
    onnx_recurrent,
    values,
)

ops = ov.opset13


@contextmanager
def opened(path: Path, shapes: Shapes, parts: int) -> Iterator[PlanExecutor]:
    """Open a model in parts on one core."""
    with ExitStack() as stack:
        session = stack.enter_context(Session(path, TWO[0], inputs=Inputs(shapes=shapes), cache=None))
        yield stack.enter_context(session.executor(session.plan_of(divided(session, parts))))


@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_every_size_in_range_is_what_a_program_for_that_size_computes(
    tmp_path: Path, parts: int, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(driver, "native_openvino", lambda: None)
    path = attention(tmp_path)
    with Session(path, TWO[:1] if TWO[0] == TWO[1] else TWO, inputs=Inputs(shapes=OPEN), cache=None) as session:
        plan = session.plan_of(divided(session, parts))
        assert len(plan.segments) == parts
        with session.executor(plan) as executor:
            assert executor.native == native
            for length in LENGTHS:
                inputs = values(length)
                assert_close(executor.run(inputs), at_one_size(path, inputs))


def test_requests_of_different_sizes_are_served_side_by_side(tmp_path: Path) -> None:
    path = attention(tmp_path)
    with Session(path, TWO[0], inputs=Inputs(shapes=OPEN), cache=None) as session, ExitStack() as stack:
        server = stack.enter_context(session.serve(divided(session, 3), in_flight=3))
        asked = [values(length, seed) for seed, length in enumerate(LENGTHS * 3)]
        answers = [server.submit(inputs) for inputs in asked]
        for inputs, answer in zip(asked, answers, strict=True):
            assert_close(answer.result(60), at_one_size(path, inputs))


def test_a_tensor_that_outgrows_its_memory_gets_more(tmp_path: Path) -> None:
    path = attention(tmp_path)
    shapes = dict.fromkeys(OPEN, (1, "1..3000@2"))
    with opened(path, shapes, 3) as executor:
        for length in (2, 700, 5):
            inputs = values(length)
            assert_close(executor.run(inputs), at_one_size(path, inputs))


def test_images_of_any_size_cross_borders_with_their_channels_last(tmp_path: Path) -> None:
    rng, path = np.random.default_rng(0), convolutions(tmp_path)
    shapes = {"image": (1, 3, "8..64@16", "8..64@16")}
    with Session(path, TWO[0], inputs=Inputs(shapes=shapes), cache=None) as session:
        assert session.model.channels_last
        with session.executor(session.plan_of(divided(session, 3))) as executor:
            for height, width in ((16, 16), (8, 64), (31, 9)):
                inputs: Arrays = {"image": rng.standard_normal((1, 3, height, width)).astype(np.float32)}
                assert_close(executor.run(inputs), at_one_size(path, inputs))


def test_sizes_out_of_range_are_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    path = attention(tmp_path)
    with opened(path, dict.fromkeys(OPEN, (1, "2..64@16")), 2) as executor:
        for length in (1, 65):
            with pytest.raises(UsageError, match=r"The input 'ids' is int64 \[1, \d+\]; .* expects int64 \[1, 2..64@16\]"):
                executor.run(values(length))
        with pytest.raises(UsageError, match=r"\[2, 16\]"):
            executor.run({"ids": np.zeros((2, 16), np.int64), "mask": np.zeros((2, 16), np.float32)})
        inputs = values(20)
        assert_close(executor.run(inputs), at_one_size(path, inputs))


def test_the_graph_has_the_typical_sizes(tmp_path: Path) -> None:
    path = attention(tmp_path)
    model, fixed = load(path, input_shapes=OPEN), load(path, input_shapes={"ids": [1, 16], "mask": [1, 16]})
    assert [spec.shape for spec in model.outputs] == [spec.shape for spec in fixed.outputs] == [(1, 16, 8), (1, 8)]
    assert model.outputs[0].limits == ((1, 1), (1, 64), (8, 8))
    assert model.outputs[1].limits is None
    assert model.graph.flops.sum() == pytest.approx(fixed.graph.flops.sum())
    assert model.graph.hash != fixed.graph.hash
    longer = load(path, input_shapes={"ids": (1, "1..64@64"), "mask": (1, SizeRange(1, 64))})
    assert longer.outputs[0].shape == (1, 64, 8)


@pytest.mark.parametrize("device", ["CPU", "ort:CPU"])
def test_a_placement_fits_every_range_of_sizes(device: str, tmp_path: Path) -> None:
    path, core = onnx_attention(tmp_path), TWO[0].removeprefix("CPU")
    with Session(path, device + core, inputs=Inputs(shapes=OPEN), cache=None) as session:
        divided(session, 2).save(tmp_path / "placement.json")
    placement = Placement.load(tmp_path / "placement.json")
    longer = Inputs(shapes={"ids": ("1..2", "2..100@80"), "mask": ("1..2", "2..100@80")})
    with Session(path, device + core, inputs=longer, cache=None) as session:
        assert len(session.model.graph) == len(placement)
        session.divide(placement, by_segments=True)
        with session.executor(session.plan_of(placement)) as executor:
            inputs = values(100)
            assert_close(executor.run(inputs), at_one_size(path, inputs))


def test_what_is_measured_on_gives_the_typical_size_if_nothing_else_does(tmp_path: Path) -> None:
    path, shapes = attention(tmp_path), {"ids": (3, 24), "mask": (3, 24)}
    free = load(path, input_shapes=dict.fromkeys(OPEN, ("1..4", "1..64")), sample_shapes=shapes)
    assert free.inputs[0].shape == (3, 24)
    fixed = load(path, input_shapes=dict.fromkeys(OPEN, ("1..4@2", "1..64@16")), sample_shapes=shapes)
    assert fixed.inputs[0].shape == (2, 16)
    with pytest.raises(UsageError, match=r"'ids' has the shape \[3, 24\], which is not within \[1..4, 1..8\]"):
        load(path, input_shapes=dict.fromkeys(OPEN, ("1..4", "1..8")), sample_shapes=shapes)


def test_typical_sizes_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="typical sizes of the inputs do not fit each other"):
        load(attention(tmp_path), input_shapes={"ids": (1, "1..64@16"), "mask": (1, "1..64@17")})


@pytest.mark.parametrize(
    "text",
    [
        "4",
        "4..",
        "..4",
        "5..4",
        "0..4",
        "1..4@5",
        "1..4@0",
        "2..4@1",
        "1...4",
        "1..4@",
        "a..b",
        "1..4@2x0",
        "1..4@2/",
        "1..4@2/5",
        f"1..{'9' * 5000}",
    ],
)
def test_ranges_that_make_no_sense(text: str) -> None:
    with pytest.raises(UsageError, match=r"make no sense|Cannot read the sizes"):
        SizeRange.parse(text)


@pytest.mark.parametrize("sizes", ["1..64@16", "1..@16x3/2"])
def test_a_placement_keeps_the_range_that_it_was_found_for(tmp_path: Path, sizes: str) -> None:
    path, file = attention(tmp_path), tmp_path / "placement.json"
    shapes: Shapes = {"ids": (1, sizes), "mask": (1, sizes)}
    with Session(path, TWO[0], inputs=Inputs(shapes=shapes), cache=None) as session:
        session.placement(np.zeros(len(session.grouping.groups), np.int32)).save(file)
    conditions = Placement.load(file).conditions
    assert conditions is not None
    assert conditions.shapes == shapes


@pytest.mark.parametrize("most", [64, LARGEST])
@pytest.mark.parametrize("typical", [(), (16,)])
def test_a_range_is_read_as_it_is_written(most: int, typical: tuple[int, ...]) -> None:
    assert SizeRange.parse(str(SizeRange(1, most, typical))) == SizeRange(1, most, typical)


def test_sizes_that_are_too_large_are_named() -> None:
    with pytest.raises(UsageError, match=r"The sizes 1\.\.2147483648@2 make no sense"):
        SizeRange.parse("1..2147483648@2")


def test_without_tensors_of_the_binding_the_c_library_refuses_open_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    native = driver.native_openvino()
    assert native is not None
    assert native.takes_tensors
    x = ops.parameter([-1, 2], ov.Type.f32)
    model = ov.Model([ops.result(ops.relu(x))], [x], "open")
    assert native.compile(model, "CPU", {}).outputs == ((None, np.dtype(np.float32)),)
    monkeypatch.setattr(native, "takes_tensors", False)
    with pytest.raises(DeviceError, match="a shape is not fixed"):
        native.compile(model, "CPU", {})


SEVERAL: Shapes = {"ids": (1, "1..64@8x3/40"), "mask": (1, "1..64@8/40")}


def test_several_typical_sizes_are_one_graph_of_means(tmp_path: Path) -> None:
    path = attention(tmp_path)
    model, *apart = (load(path, input_shapes=shapes) for shapes in (SEVERAL, at(8), at(40)))
    for name in ("flops", "tensor_bytes"):
        short, long = (getattr(one.graph, name).sum() for one in apart)
        assert getattr(model.graph, name).sum() == pytest.approx(0.75 * short + 0.25 * long)
    assert [sample.share for sample in model.sample_requests()] == [0.75, 0.25]
    assert [sample.inputs["ids"].shape for sample in model.sample_requests()] == [(1, 8), (1, 40)]
    assert model.graph.hash not in (apart[0].graph.hash, apart[1].graph.hash)
    assert model.inputs[1].sizes(model.times) == [1, "1..64@8x3/40"]
    given = model.with_inputs(values(20))
    assert [sample.inputs["ids"].shape for sample in given.sample_requests()] == [(1, 20)]


def at(length: int) -> Shapes:
    return dict.fromkeys(OPEN, (1, f"1..64@{length}"))


def test_a_rival_that_opens_the_file_is_timed_on_all_of_them_too(tmp_path: Path) -> None:
    rival = load(onnx_attention(tmp_path), input_shapes=SEVERAL).whole_file("onnx")
    assert rival.formats == {"onnx"}
    found = [(sample.share, sample.inputs["ids"].shape) for sample in rival.sample_requests()]
    assert found == [(0.75, (1, 8)), (0.25, (1, 40))]
    given = rival.with_inputs(values(20)).sample_requests()
    assert [(sample.share, sample.inputs["ids"].shape) for sample in given] == [(1.0, (1, 20))]


def test_an_executor_is_timed_on_all_of_them(tmp_path: Path) -> None:
    path = attention(tmp_path)
    with Session(path, TWO[0], inputs=Inputs(shapes=SEVERAL), cache=None) as session:
        plan = session.plan_of(divided(session, 3))
        with session.executor(plan) as executor:
            assert executor.time() > 0
            spans = sorted((s, finish - start) for _, ran, _ in executor.last_run() for s, start, finish in ran)
            assert [s for s, _ in spans] == list(range(3))
            np.testing.assert_allclose(executor.segment_seconds(), [taken for _, taken in spans])
            np.testing.assert_allclose(executor.segment_seconds(last=True), [taken for _, taken in spans])
            assert executor.outputs()["tokens"].shape == (1, 40, WIDTH)
            executor.set_requests([Sample(values(5))])
            assert executor.time() > 0
            assert executor.outputs()["tokens"].shape == (1, 5, WIDTH)


def test_spans_of_several_requests_are_means_by_their_shares() -> None:
    short = Timed(0.75, 2.0, 100.0, [(0, 100.0, 101.0), (1, 101.0, 102.0)], [(4, 0, 1, 101.0, 101.5)])
    long = Timed(0.25, 6.0, 200.0, [(0, 200.0, 204.0), (1, 204.0, 206.0)], [(4, 0, 1, 204.0, 205.0)])
    ran, moved = blended([short, long])
    assert ran == [(0, 200.0, 201.75), (1, 201.75, 203.0)]
    assert moved == [(4, 0, 1, 201.75, 202.375)]


@pytest.mark.parametrize(
    "shapes",
    [
        {"ids": (1, "1..64@8/40"), "mask": (1, "1..64@8/16/40")},
        {"ids": (1, "1..64@8x3/40"), "mask": (1, "1..64@8/40x2")},
    ],
)
def test_typical_sizes_that_do_not_go_together(tmp_path: Path, shapes: Shapes) -> None:
    with pytest.raises(UsageError, match="do not go together"):
        load(attention(tmp_path), input_shapes=shapes)


def test_requests_of_one_text_are_timed_as_one_sequence(tmp_path: Path) -> None:
    file = write_decoder(TINY, tmp_path / "decoder.xml")
    shapes: Shapes = {"input_ids": (1, "1..64@9/1x3"), "attention_mask": (1, "1..64@9/10"), "position_ids": (1, "1..64@9/1")}
    with Session(file, TWO[0], inputs=Inputs(shapes=shapes), cache=None) as session:
        assert [sample.share for sample in session.model.sample_requests()] == [0.25, 0.75]
        plan = session.plan_of(divided(session, 2))
        with session.executor(plan) as executor, session.executor(plan, in_flight=3) as several:
            tokens = np.arange(10)[None]
            whole = {"input_ids": tokens, "attention_mask": np.ones_like(tokens), "position_ids": tokens}
            at_once = executor.run(whole)["logits"]
            first, last = ({name: value[:, part] for name, value in whole.items()} for part in (slice(9), slice(9, 10)))
            last["attention_mask"] = np.ones_like(tokens)
            executor.set_requests([Sample(first, 0.5), Sample(last, 0.5)])
            for _ in range(2):  # the second time, too, it begins with the initial state
                assert executor.time() > 0
                # OpenVINO keeps keys and values in 8 bits
                np.testing.assert_allclose(executor.outputs()["logits"], at_once, rtol=0, atol=0.01)
            assert executor.max_overlapping == 1
            assert several.max_overlapping == 3
            executor.set_requests([Sample(first, 0.0), Sample(last, 1.0)])
            for passes in range(3):  # from the second on, it begins in the middle of the text
                executor.time()
                assert (executor.uncounted == 1) == (passes > 0)
                np.testing.assert_allclose(executor.outputs()["logits"], at_once, rtol=0, atol=0.01)
            reached: dict[int, States | None] = {}
            executor.set_requests([Sample(first, 0.0), Sample(last, 1.0)], reached)
            executor.time()
            assert executor.uncounted > 1
            other = session.plan_of(divided(session, 1))
            for states in (reached, {1: dict.fromkeys("ab")}):  # the second are of another form
                with session.executor(other) as begins_there:
                    begins_there.set_requests([Sample(first, 0.0), Sample(last, 1.0)], states)
                    begins_there.time()
                    assert (begins_there.uncounted == 1) == (states is reached)
                    np.testing.assert_allclose(begins_there.outputs()["logits"], at_once, rtol=0, atol=0.01)
            several.set_requests([Sample(first, 0.0), Sample(last, 1.0)])
            for count in (1, 3, 7):  # sequences, of which three run at once
                assert several.times(count) > 0
                for request in range(min(count, 3)):
                    found = several.outputs(request=request)["logits"]
                    np.testing.assert_allclose(found, at_once, rtol=0, atol=0.01)
            alone = executor.run({name: value[:, -1:] for name, value in last.items()})["logits"]
            assert np.abs(alone - at_once).max() > 0.1
            assert_close(executor.run(whole), {"logits": at_once})


class Linear:
    """An executor whose times are linear in the length of a text."""

    def __init__(self, segments: int) -> None:
        self.segments, self.lengths = segments, list[int]()

    def set_requests(self, requests: Sequence[Sample], reached: object = None) -> None:
        self.lengths.append(requests[0].inputs["ids"].shape[1])

    def time(self, *, timeout: float | None = None) -> float:
        return 0.5 + float(self.segment_seconds().sum())

    def segment_seconds(self, *, last: bool = False) -> NDArray[np.float64]:
        return np.array([1.0 + (s + 1) * self.lengths[-1] for s in range(self.segments)])


def test_between_measured_sizes_the_simulator_is_exact_where_times_are_linear(tmp_path: Path) -> None:
    with Session(attention(tmp_path), TWO[0], inputs=Inputs(shapes=SEVERAL), cache=None) as session:
        plan = session.plan_of(divided(session, 3))
        executor = Linear(len(plan.segments))
        found = at_sizes(session.model, cast("PlanExecutor", executor), plan)
    assert executor.lengths == [1, 8, 40, 64, 3, 18, 51]
    assert [one.shapes["mask"] for one in found] == [(1, n) for n in (1, 3, 8, 18, 40, 51, 64)]
    assert [one.simulated_s is None for one in found] == [True, False] * 3 + [True]
    for one in found[1::2]:
        assert one.simulated_s == pytest.approx(one.measured_s)


def test_sizes_for_whose_inputs_there_is_no_memory_are_left_out(tmp_path: Path) -> None:
    class Small(Linear):
        def set_requests(self, requests: Sequence[Sample], reached: object = None) -> None:
            super().set_requests(requests, reached)
            if self.lengths[-1] > 40:
                raise MemoryError

    with Session(attention(tmp_path), TWO[0], inputs=Inputs(shapes=SEVERAL), cache=None) as session:
        plan = session.plan_of(divided(session, 3))
        found = at_sizes(session.model, cast("PlanExecutor", Small(len(plan.segments))), plan)
    assert [one.shapes["mask"] for one in found] == [(1, n) for n in (1, 3, 8, 18, 40)]


def test_a_run_tells_what_other_sizes_take(tmp_path: Path) -> None:
    with Session(attention(tmp_path), TWO[0], inputs=Inputs(shapes=OPEN), cache=None) as session:
        report = session.run(divided(session, 2), runs=2)
        assert [one.shapes["ids"] for one in report.sizes] == [(1, n) for n in (1, 4, 16, 32, 64)]
        assert report.outputs["tokens"].shape == (1, 16, WIDTH)
        given = session.run(divided(session, 2), runs=2, inputs=values(20))
        assert not given.sizes
        assert given.outputs["tokens"].shape == (1, 20, WIDTH)
    with Session(attention(tmp_path), TWO[0], inputs=Inputs(shapes=dict.fromkeys(OPEN, (1, 9))), cache=None) as session:
        assert not session.run(divided(session, 2), runs=2).sizes


@pytest.mark.parametrize("output", ["tokens", "pooled"])
def test_a_device_that_ignores_the_shape_of_a_request_is_found(
    tmp_path: Path, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep_shape(buffer: HostBuffer, value: NDArray[np.generic]) -> None:
        buffer.array()[...] = np.resize(value, buffer.array().shape)

    model = openvino_core().read_model(attention(tmp_path))
    path = tmp_path / "one.xml"
    kept = [result for result in model.get_results() if output in result.input_value(0).get_names()]
    ov.save_model(ov.Model(kept, model.get_parameters()), path, compress_to_fp16=False)
    for broken in (False, True):
        if broken:
            monkeypatch.setattr(HostBuffer, "fill", keep_shape)
        with Session(path, TWO[0], inputs=Inputs(shapes=OPEN), cache=None) as session:
            with session.executor(session.plan_of(divided(session, 2))) as executor:
                inputs = session.model.sample_inputs()
                assert OutputDifference.between(executor.run(inputs), session.reference(inputs)).max_rel < 1e-4
                found = session.reference.check(executor)
            assert (found.wrong(session.tolerance) is not None) == broken
            assert found.not_checked is None
            first, second = session.reference.output_check().runs
            assert first[0]["ids"].shape[1] > second[0]["ids"].shape[1] == 16


@pytest.mark.parametrize(
    ("sizes", "given", "others"),
    [
        ("1..64@16", None, {*range(17, 33), 1}),  # random ones up to twice as many, and the least
        ("1..64@16", 40, {*range(41, 65), 1}),
        ("3..16@16", None, {*range(3, 16)}),
        ("16..17@16", None, {16, 17}),
        ("1..2147483647@2", None, {3, 4, 1}),
    ],
)
def test_outputs_are_checked_at_other_sizes_in_range(tmp_path: Path, sizes: str, given: int | None, others: set[int]) -> None:
    model = load(attention(tmp_path), input_shapes=dict.fromkeys(OPEN, (1, sizes)))
    inputs = model.sample_inputs() if given is None else values(given)
    found = [*other_inputs(model, inputs, given=given is not None)]
    assert found[0]["ids"].shape[1] not in (1, inputs["ids"].shape[1])
    for one in found:
        assert one["ids"].shape == one["mask"].shape
        assert one["ids"].shape[1] in others | {inputs["ids"].shape[1], model.inputs[0].shape[1]}
        assert one["ids"].dtype == np.int64
        if given:
            assert {*one["ids"].flat} <= {*inputs["ids"].flat} | {*range(50)}


def test_sizes_in_range_that_contradict_each_other_are_told(tmp_path: Path) -> None:
    model = load(attention(tmp_path), input_shapes=OPEN)
    for length in (1, 16, 64):
        model.check_sizes({"ids": (1, length), "mask": (1, length)})
    model.check_sizes({"ids": (1, 9), "mask": (1, 1)})  # one mask for all tokens
    with pytest.raises(UsageError, match=TORN):
        model.check_sizes({"ids": (1, 9), "mask": (1, 8)})


TORN = r"do not fit each other: 'ids' \[1, 9\], 'mask' \[1, 8\]"


def test_sizes_that_contradict_each_other_are_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    """OpenVINO's CPU plugin itself goes on to fail at sizes that it has run before, once a shape could not be inferred."""
    path = attention(tmp_path)
    torn = {"ids": values(9)["ids"], "mask": values(8)["mask"]}
    with Session(path, TWO[0], inputs=Inputs(shapes=OPEN), cache=None) as session:
        with session.serve(divided(session, 2), in_flight=1) as server:
            for length in (16, 5, 5):
                inputs = values(length)
                assert_close(server.submit(inputs).result(60), at_one_size(path, inputs))
                with pytest.raises(UsageError, match=TORN):
                    server.submit(torn)
        with session.executor(session.plan_of(divided(session, 1))) as executor, pytest.raises(UsageError, match=TORN):
            executor.run(torn)


def step(tokens: int, length: int, places: int | None = None) -> dict[str, NDArray[np.generic]]:
    """Inputs of a decoder: tokens, at the end of a text of a length that the mask has."""
    count = tokens if places is None else places
    return {
        "input_ids": np.arange(tokens)[None] + 7,
        "attention_mask": np.ones((1, length), np.int64),
        "position_ids": np.arange(length - count, length)[None],
    }


@pytest.mark.parametrize("parts", [1, 2])
def test_sequences_go_on_after_requests_of_wrong_sizes(tmp_path: Path, parts: int) -> None:
    """OpenVINO's CPU plugin does not find them, or in the middle of a run, after which it fails at sizes that it has run."""
    file = write_decoder(TINY, tmp_path / "decoder.xml")
    shapes: Shapes = {"input_ids": (1, "1..64@5/1"), "attention_mask": (1, "1..64@5/6"), "position_ids": (1, "1..64@5/1")}
    with (
        Session(file, TWO[:parts], inputs=Inputs(shapes=shapes), cache=None) as session,
        session.serve(divided(session, 2)) as server,
        server.sequence() as one,
        server.sequence() as other,
    ):
        first, second = one.run(step(5, 5))["logits"], one.run(step(1, 6))["logits"]
        other.run(step(5, 5))
        with pytest.raises(UsageError, match="do not fit each other"):
            one.run(step(5, 11, places=4))
        for wrong in (step(3, 5), step(1, 4), step(1, 9)):  # with 6 tokens before them
            with pytest.raises(ExecutionError, match="attention_mask"):
                one.run(wrong)
            with pytest.raises(SequenceError):
                one.run(step(1, 7))
            one.reset()
            np.testing.assert_allclose(one.run(step(5, 5))["logits"], first, rtol=0, atol=1e-5)
            np.testing.assert_allclose(one.run(step(1, 6))["logits"], second, rtol=0, atol=1e-5)
        np.testing.assert_allclose(other.run(step(1, 6))["logits"], second, rtol=0, atol=1e-5)


@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
@pytest.mark.parametrize("devices", [["{}"], ["ort:{}"], ["{}", "ort:{}"]], ids=["OpenVINO", "ONNX Runtime", "both"])
def test_a_size_that_follows_from_a_value_is_open_where_the_value_comes_from_outside(
    tmp_path: Path, devices: list[str], native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenVINO knows the shape of the zeros in the whole model only."""
    if not native:
        monkeypatch.setattr(driver, "native_openvino", lambda: None)
    path = onnx_recurrent(tmp_path)
    inputs, where = Inputs(shapes={"x": (1, SizeRange(2, 32, (9,)), WIDTH)}), [one.format(TWO[0]) for one in devices]
    with Session(path, where, inputs=inputs, cache=None) as session:
        for parts in range(1, len(session.grouping.groups) + 1):
            with session.executor(session.plan_of(divided(session, parts))) as executor:
                for length in (9, 2, 32):
                    given = {"x": np.random.default_rng(length).standard_normal((1, length, WIDTH)).astype(np.float32)}
                    assert_close(executor.run(given), at_one_size(path, given))


@pytest.mark.parametrize("devices", [["ort:{}"], ["ort:{}", "{}"]], ids=["alone", "beside OpenVINO"])
def test_onnx_runtime_runs_every_size_in_range(tmp_path: Path, devices: list[str]) -> None:
    path = onnx_attention(tmp_path)
    places = [name.format(place) for name, place in zip(devices, TWO, strict=False)]
    with Session(path, places, inputs=Inputs(shapes=OPEN), cache=None) as session:
        plan = session.plan_of(divided(session, 5))
        assert len(plan.segments) == 5
        with session.executor(plan, in_flight=2) as executor:
            for length in (*LENGTHS, *LENGTHS):  # outputs of known sizes are written in place
                inputs = values(length)
                assert_close(executor.run(inputs), at_one_size(path, inputs))
            assert session.reference.check(executor).max_rel < 1e-4


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_onnx_runtime_keeps_outputs_of_fixed_and_of_open_sizes_apart(tmp_path: Path, parts: int) -> None:
    """Also where both have the same size just now."""
    path = tmp_path / "mixed.onnx"
    text = """<ir_version: 8, opset_import: ["": 17]>
    mixed (float[1,t,8] x, float[1,4,8] c) => (float[1,t,8] y, float[1,4,8] z)
    { a = Relu (x)
      top = ReduceMax <axes = [1], keepdims = 1> (a)
      b = Add (c, top)
      y = Tanh (a)
      z = Tanh (b) }"""
    onnx.save(onnx.parser.parse_model(text), path)
    inputs = Inputs(shapes={"x": [1, "1..16@4", 8], "c": [1, 4, 8]})
    with ExitStack() as stack:
        session = stack.enter_context(Session(path, f"ort:{TWO[0]}", inputs=inputs, cache=None))
        executor = stack.enter_context(session.executor(session.plan_of(divided(session, parts))))
        for length in (4, 9, 4, 1):
            x, c = np.random.default_rng(length).standard_normal((2, 1, 16, 8)).astype(np.float32)
            given = {"x": x[:, :length], "c": c[:, :4]}
            assert_close(executor.run(given), at_one_size(path, given))


def test_values_of_a_tensor_may_be_sizes_for_onnx_runtime(tmp_path: Path) -> None:
    """Where a segment begins with the shape of a tensor, and makes another of that shape."""
    path = tmp_path / "spread.onnx"
    text = """<ir_version: 8, opset_import: ["": 17]>
    spread (float[n] x) => (float[m] y)
    { size = Shape (x)
      twice = Add (size, size)
      zeros = ConstantOfShape (twice)
      y = Cos (zeros) }"""
    onnx.save(onnx.parser.parse_model(text), path)
    with ExitStack() as stack:
        session = stack.enter_context(Session(path, f"ort:{TWO[0]}", inputs=Inputs(shapes={"x": ["1..64@16"]}), cache=None))
        plan = session.plan_of(divided(session, len(session.grouping.groups)))
        executor = stack.enter_context(session.executor(plan))
        for length in LENGTHS:
            found = executor.run({"x": np.zeros(length, np.float32)})
            np.testing.assert_array_equal(found["y"], np.ones(2 * length, np.float32))


@pytest.mark.two_cores
def test_what_users_would_run_is_raced_against_at_open_sizes_too(tmp_path: Path) -> None:
    path = onnx_attention(tmp_path)
    with Session(path, TWO, inputs=Inputs(shapes=OPEN), cache=None) as session:
        rivals = {device.name: device for cluster in session.setup.elsewhere for device in cluster.devices}
        assert rivals.keys() == {"CPU", "ort:CPU", "throughput:CPU"}
        for device in rivals.values():
            home = session.alone(device)
            with home.executor(home.plan_of(divided(home, 1))) as executor:
                for length in LENGTHS:
                    inputs = values(length)
                    assert_close(executor.run(inputs), at_one_size(path, inputs))
