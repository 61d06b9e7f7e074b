"""Models whose inputs have ranges of sizes: one placement, one set of programs, any size in range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

import placeit.runtime.devices.openvino as driver
from placeit.backends import load
from placeit.backends.base import Sample
from placeit.core.errors import DeviceError, ModelError, UsageError
from placeit.core.placement import Placement
from placeit.core.sizes import SizeRange
from placeit.devices.host import allowed_cores
from placeit.devices.openvino import openvino_core
from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.spans import Timed, blended
from placeit.session import Session
from placeit.workbench.options import Inputs
from placeit.workloads.decoder import TINY, write_decoder

ops = ov.opset13
Arrays = dict[str, NDArray[np.generic]]
Shapes = Mapping[str, Sequence[int | str | SizeRange]]
OPEN: Shapes = {"ids": (1, "1..64@16"), "mask": (1, "1..64@16")}
PLACES = [str(core) for core in allowed_cores()[:2]]
TWO = [f"CPU@{PLACES[0]}", f"CPU@{PLACES[-1]}"]
WIDTH = 8


def attention(folder: Path) -> Path:
    """Write an encoder of two layers of attention, whose reshapes compute their shapes at run time, as exporters write it."""
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> ov.Output:
        return ops.constant(rng.standard_normal(shape).astype(np.float32) / 3)

    ids = ops.parameter(ov.PartialShape([-1, -1]), ov.Type.i64, name="ids")
    mask = ops.parameter(ov.PartialShape([-1, -1]), ov.Type.f32, name="mask")
    x = ops.gather(weight(50, WIDTH), ids, ops.constant(0))
    for _ in range(2):
        sizes = ops.shape_of(x)
        batch, length = (ops.gather(sizes, ops.constant([i]), ops.constant(0)) for i in (0, 1))
        heads = ops.concat([batch, length, ops.constant([2]), ops.constant([WIDTH // 2])], 0)
        q, k, v = (
            ops.transpose(ops.reshape(ops.matmul(x, weight(WIDTH, WIDTH), False, False), heads, False), [0, 2, 1, 3])
            for _ in range(3)
        )
        bias = ops.unsqueeze(ops.multiply(ops.subtract(mask, ops.constant(np.float32(1))), np.float32(9)), [1, 2])
        scores = ops.softmax(ops.add(ops.matmul(q, k, False, True), bias), -1)
        flat = ops.concat([batch, length, ops.constant([WIDTH])], 0)
        seen = ops.reshape(ops.transpose(ops.matmul(scores, v, False, False), [0, 2, 1, 3]), flat, False)
        x = ops.add(x, ops.matmul(seen, weight(WIDTH, WIDTH), False, False))
        x = ops.add(x, ops.gelu(ops.matmul(x, weight(WIDTH, WIDTH), False, False), "erf"))
    pooled = ops.reduce_mean(x, ops.constant([1]))
    for port, name in ((ids, "ids"), (mask, "mask"), (x, "tokens"), (pooled, "pooled")):
        port.output(0).set_names({name})
    model = ov.Model([ops.result(x), ops.result(pooled)], [ids, mask], "encoder")
    path = folder / "encoder.xml"
    ov.save_model(model, path, compress_to_fp16=False)
    return path


def values(length: int, seed: int = 0) -> Arrays:
    rng = np.random.default_rng([length, seed])
    mask = np.ones((1, length), np.float32)
    mask[:, length - length // 4 :] = 0
    return {"ids": rng.integers(0, 50, (1, length)), "mask": mask}


def at_one_size(path: Path, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
    """Run plain OpenVINO, compiled for exactly these sizes."""
    model = openvino_core().read_model(path)
    model.reshape({name: list(value.shape) for name, value in inputs.items()})
    compiled = openvino_core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    answer = compiled(dict(inputs))
    return {min(port.get_names()): np.array(answer[port]) for port in compiled.outputs}


def divided(session: Session, parts: int) -> Placement:
    """Place runs of groups on the devices in turn, a segment each."""
    groups = len(session.grouping.groups)
    part = np.arange(groups) * parts // groups
    placement = session.placement(part % len(session.cluster))
    segments = part[session.grouping.group_of].astype(np.int32)
    return Placement(placement.op_names, placement.devices, placement.device_names, placement.graph_hash, segments)


@contextmanager
def opened(path: Path, shapes: Shapes, parts: int) -> Iterator[PlanExecutor]:
    """Open a model in parts on one core."""
    with ExitStack() as stack:
        session = stack.enter_context(Session(path, TWO[0], inputs=Inputs(shapes=shapes), cache=None))
        yield stack.enter_context(session.executor(session.plan_of(divided(session, parts))))


def assert_close(found: Mapping[str, NDArray[np.generic]], wanted: Arrays) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].shape == value.shape
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-4)


LENGTHS = (16, 3, 64, 1, 40, 64, 2)  # below, above and at the typical size; longer and shorter in turn


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
    rng = np.random.default_rng(0)
    image = ops.parameter(ov.PartialShape([1, 3, -1, -1]), ov.Type.f32, name="image")
    image.output(0).set_names({"image"})
    x = image
    for i in range(4):
        kernel = ops.constant(rng.standard_normal((4, 3 if i == 0 else 4, 3, 3)).astype(np.float32))
        x = ops.relu(ops.convolution(x, kernel, [1, 1], [1, 1], [1, 1], [1, 1]))
    x.output(0).set_names({"features"})
    path = tmp_path / "features.xml"
    ov.save_model(ov.Model([ops.result(x)], [image], "features"), path, compress_to_fp16=False)
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
    ],
)
def test_ranges_that_make_no_sense(text: str) -> None:
    with pytest.raises(UsageError, match=r"make no sense|Cannot read the sizes"):
        SizeRange.parse(text)


def test_a_placement_keeps_the_range_that_it_was_found_for(tmp_path: Path) -> None:
    path, file = attention(tmp_path), tmp_path / "placement.json"
    with Session(path, TWO[0], inputs=Inputs(shapes=OPEN), cache=None) as session:
        session.placement(np.zeros(len(session.grouping.groups), np.int32)).save(file)
    conditions = Placement.load(file).conditions
    assert conditions is not None
    assert conditions.shapes == {"ids": (1, "1..64@16"), "mask": (1, "1..64@16")}


def test_devices_of_a_runtime_for_fixed_sizes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="runs a model at one size"):
        Session(attention(tmp_path), f"torch:{TWO[0]}", inputs=Inputs(shapes=OPEN), cache=None)


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
        with session.executor(session.plan_of(divided(session, 2))) as executor:
            tokens = np.arange(10)[None]
            whole = {"input_ids": tokens, "attention_mask": np.ones_like(tokens), "position_ids": tokens}
            at_once = executor.run(whole)["logits"]
            first, last = ({name: value[:, part] for name, value in whole.items()} for part in (slice(9), slice(9, 10)))
            last["attention_mask"] = np.ones_like(tokens)
            executor.set_requests([Sample(first, 0.5), Sample(last, 0.5)])
            for _ in range(2):  # the second time, too, it begins with the initial state
                assert executor.time() > 0
                # OpenVINO keeps keys and values in 8 bits
                np.testing.assert_allclose(executor.outputs()["logits"], at_once[:, 9:], rtol=0, atol=0.01)
            alone = executor.run({name: value[:, -1:] for name, value in last.items()})["logits"]
            assert np.abs(alone - at_once[:, 9:]).max() > 0.1
            assert_close(executor.run(whole), {"logits": at_once})
