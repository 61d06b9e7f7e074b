"""Joined steps: tokens of several texts that one run of a decoder computes, and what each text gets of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from examples.decoder import TINY, build_decoder, write_decoder
from placeit.backends.openvino.reader import load
from placeit.core.errors import DeadlineError, PlaceitError, StateLostError, StateMemoryError
from placeit.core.telemetry import import_openvino
from placeit.devices.openvino import openvino_core
from placeit.serving.server import Answer, Server
from placeit.serving.stepping import Steps
from placeit.text.generating import TextModel, Wanted
from placeit.text.sampling import Sampling
from tests.small_texts import served, write_folder
from tests.text_steps import feed

openvino = import_openvino()

BEAMS = {"beam_idx": np.zeros(1, np.int32)}
PROMPTS = [[1, 2, 3], [9, 8, 7, 6, 5, 4, 3, 2, 1], [13], [40, 50, 60, 70]]
Logits = NDArray[np.float32]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with served(folder) as (_, made):
        yield made


class Plain:
    """A text of plain OpenVINO with the uncut model."""

    def __init__(self, path: Path) -> None:
        exact = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
        self._request = openvino_core().compile_model(path, "CPU", exact).create_infer_request()
        self._past = 0

    def run(self, tokens: Sequence[int]) -> Logits:
        inputs = feed(tokens, self._past)
        self._past += len(tokens)
        return np.array(self._request.infer(inputs | BEAMS)["logits"][0, -1])


def fed(server: Server, tokens: Sequence[int], past: int) -> dict[str, Any]:
    """Return the inputs of a server's decoder for tokens that follow ``past`` others."""
    known = server.executors[0].inputs
    return {name: value for name, value in (feed(tokens, past) | BEAMS).items() if name in known}


class Served:
    """A text of a server, beside the text of plain OpenVINO that it has to equal."""

    def __init__(self, server: Server, folder: Path, prompt: Sequence[int], *, recompute: bool = False) -> None:
        self.sequence, self._plain = server.sequence(recompute=recompute), Plain(folder / "openvino_model.xml")
        self._server, self._past = server, 0
        self.check(self.submit(prompt), prompt)

    def inputs(self, tokens: Sequence[int]) -> dict[str, Any]:
        return fed(self._server, tokens, self._past)

    def submit(self, tokens: Sequence[int], **options: Any) -> Answer:
        return self.sequence.submit(self.inputs(tokens), **options)

    def check(self, answer: Answer, tokens: Sequence[int]) -> None:
        """Compare a step with plain OpenVINO's."""
        expected = self._plain.run(tokens)
        np.testing.assert_allclose(answer.result(60)["logits"][0, -1], expected, atol=1e-4)
        self._past += len(tokens)


@contextmanager
def held(server: Server) -> Iterator[None]:
    """Keep a server from beginning requests, so that all that is submitted in the context waits at the same time."""
    here, begun, go = threading.get_ident(), threading.Event(), threading.Event()

    def hold(_: object) -> None:
        if threading.get_ident() != here:  # else the request has ended before it could have a callback
            begun.set()
            go.wait(60)

    while not begun.wait(0.01):
        server.submit(fed(server, [1], 0)).add_done_callback(hold)
    try:
        yield
    finally:
        go.set()


def step(server: Server, texts: Sequence[Served], token: int) -> None:
    """Have texts go on by a token, all at the same time."""
    with held(server):
        answers = [text.submit([token + k]) for k, text in enumerate(texts)]
    for k, (text, answer) in enumerate(zip(texts, answers, strict=True)):
        text.check(answer, [token + k])


def runs(server: Server, act: Callable[[], object]) -> dict[int, int]:
    """Return how many runs of steps something took, by the number of texts in each."""
    before = server.stats().steps
    act()
    return dict(server.stats().steps - before)  # type: ignore[operator]


def test_steps_that_wait_at_the_same_time_are_one_run_and_equal_single_steps(server: Server, folder: Path) -> None:
    texts = [Served(server, folder, prompt) for prompt in PROMPTS]
    assert runs(server, lambda: step(server, texts, 20)) == {4: 1}
    assert runs(server, lambda: step(server, texts[:2], 30)) == {2: 1}  # the others' rows have no step
    assert runs(server, lambda: step(server, texts[3:], 40)) == {1: 1}
    texts[1].sequence.close()
    left = [texts[0], *texts[2:]]
    assert runs(server, lambda: step(server, left, 50)) == {3: 1}
    late = Served(server, folder, [5] * 12)
    assert runs(server, lambda: step(server, [*left, late], 60)) == {4: 1}
    for text in (late, *left):
        text.sequence.close()
    assert (server.stats().sequences, server.stats().state_bytes) == (0, 0)
    assert server.repeated == 0


def write_without_beams(kind: str, path: Path) -> Path:
    """Write the fixture's decoder without the input ``beam_idx``: with caches as inputs, or state of any number of rows."""
    if kind != "state":
        return write_decoder(TINY, path / f"decoder.{kind}", cache="inputs")
    model, ops = build_decoder(TINY, beam_idx=True), openvino.opset13
    inputs = {one.get_friendly_name(): one for one in model.get_parameters()}
    first = ops.gather(inputs["input_ids"], ops.constant(0), ops.constant(1))
    for reader in (port.get_node() for port in inputs["beam_idx"].output(0).get_target_inputs()):
        if reader.get_type_name() == "Gather":
            reader.output(0).replace(reader.input_value(0))
        else:
            reader.input(0).replace_source_output(first.output(0))
    model.remove_parameter(inputs["beam_idx"])
    openvino.save_model(model, path / "decoder.xml", compress_to_fp16=False)
    return path / "decoder.xml"


@pytest.mark.parametrize(("kind", "driver"), [("onnx", ""), ("onnx", "ort:"), ("xml", ""), ("state", "")])
def test_steps_of_decoders_without_beams_are_joined_and_rows_of_texts_that_end_are_dropped(
    kind: str, driver: str, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path, exact=bool(driver) or kind == "state")  # if states are not fused with attention
    with served(write_without_beams(kind, tmp_path), f"{driver}CPU@0,{driver}CPU@1") as (_, server):
        texts = [Served(server, folder, prompt) for prompt in PROMPTS]
        assert runs(server, lambda: step(server, texts, 20)) == {2: 2}
        for place in (3, 0):
            texts.pop(place).sequence.close()
        assert runs(server, lambda: step(server, texts, 30)) == {1: 2}
        texts.append(Served(server, folder, [5] * 12))
        assert runs(server, lambda: step(server, texts, 40)) == {1: 1, 2: 1}


def test_prompts_run_together_with_steps_of_other_texts(server: Server, folder: Path) -> None:
    texts = [Served(server, folder, [7] * 30), Served(server, folder, [5]), Served(server, folder, [6])]
    for parts in ([1], range(33), range(20)), ([2], [3], [4]), ([5, 6], [7], [8]):
        with held(server):
            answers = [text.submit([*tokens]) for text, tokens in zip(texts, parts, strict=True)]
        for text, answer, tokens in zip(texts, answers, parts, strict=True):
            text.check(answer, [*tokens])
    assert server.stats().steps[3] >= 3
    for text in texts:
        text.sequence.close()


def test_the_last_tokens_are_selected_where_another_segment_computes_the_sizes_of_their_values(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    model, ops = build_decoder(replace(TINY, vocabulary=256), beam_idx=True), openvino.opset13
    nodes = model.get_ordered_ops()
    embedded = next(node for node in nodes if node.get_output_partial_shape(0).rank.get_length() == 3).output(0)
    readers = embedded.get_target_inputs()
    sizes, flat_sizes = ops.shape_of(embedded), ops.constant([-1, TINY.width])
    for reader in (*readers, model.get_results()[0].input_value(0).get_node().input(0)):  # as in OPT
        flat = ops.reshape(reader.get_source_output(), flat_sizes, special_zero=False)
        reader.replace_source_output(ops.reshape(flat, sizes, special_zero=False).output(0))
    openvino.save_model(model, folder / "openvino_model.xml", compress_to_fp16=False)
    with served(folder, "CPU@0,CPU@1") as (_, server):
        texts = [Served(server, folder, prompt) for prompt in PROMPTS]
        assert runs(server, lambda: step(server, texts, 20))


def rows(tokens: Sequence[Sequence[int]], hidden: Sequence[int], past: int) -> dict[str, Any]:
    """Return inputs for new tokens of texts, of which ``hidden`` tokens in front of each are padding."""
    new = np.array(tokens)
    mask = np.arange(past + new.shape[1]) >= np.array(hidden)[:, None]
    places = np.maximum(0, np.arange(past, past + new.shape[1]) - np.array(hidden)[:, None])
    return {
        "input_ids": new,
        "attention_mask": mask.astype(np.int64),
        "position_ids": places,
        "beam_idx": np.arange(len(new), dtype=np.int32),
    }


def test_rows_that_are_padded_in_front_are_texts_without_padding(server: Server, folder: Path) -> None:
    first, second = (Plain(folder / "openvino_model.xml") for _ in range(2))
    with server.sequence() as both:
        for tokens, past in (([[0, 0, 1, 2, 3], [4, 5, 6, 7, 8]], 0), ([[9], [10]], 5), ([[11], [12]], 6)):
            logits = both.run(rows(tokens, (2, 0), past))["logits"]
            np.testing.assert_allclose(logits[0, -1], first.run(tokens[0][0 if past else 2 :]), atol=1e-4)
            np.testing.assert_allclose(logits[1, -1], second.run(tokens[1]), atol=1e-4)


def test_beams_select_the_texts_that_go_on(server: Server, folder: Path) -> None:
    first, second = (Plain(folder / "openvino_model.xml") for _ in range(2))
    for text in (first, second):
        text.run([4, 5, 6])
    with server.sequence() as sequence:
        sequence.run(rows([[1, 2, 3], [4, 5, 6]], (0, 0), 0))
        for beams, tokens, past in (([1, 1], [[7], [8]], 3), ([0, 1], [[9], [10]], 4)):
            logits = sequence.run(rows(tokens, (0, 0), past) | {"beam_idx": np.array(beams, np.int32)})["logits"]
            np.testing.assert_allclose(logits[0, -1], first.run(tokens[0]), atol=1e-4)
            np.testing.assert_allclose(logits[1, -1], second.run(tokens[1]), atol=1e-4)


def test_last_tokens_can_be_hidden_and_others_cannot(server: Server, folder: Path) -> None:
    plain = Plain(folder / "openvino_model.xml")
    with server.sequence() as sequence:
        sequence.run(feed([1, 2, 3, 50, 51], 0) | BEAMS)
        plain.run([1, 2, 3])
        for token, past in ((4, 3), (5, 4)):
            inputs = feed([token], past) | BEAMS
            inputs["attention_mask"] = np.array([[1, 1, 1, 0, 0, *[1] * (past - 2)]])
            np.testing.assert_allclose(sequence.run(inputs)["logits"][0, -1], plain.run([token]), atol=1e-4)
        inputs["attention_mask"] = np.array([[1, 0, 1, 0, 0, 1, 1, 1]])
        with pytest.raises(PlaceitError, match="hides a token that later ones have seen"):
            sequence.run(inputs)


def test_texts_are_divided_among_runs_that_keep_two_devices_busy(folder: Path) -> None:
    with served(folder, "CPU@0,CPU@1") as (_, server):
        texts = [Served(server, folder, prompt) for prompt in PROMPTS]
        for token in (20, 30, 40):
            assert runs(server, lambda token=token: step(server, texts, token)) == {2: 2}


def test_a_text_leaves_with_its_state_when_it_is_forked_or_has_more_than_a_token(server: Server, folder: Path) -> None:
    first, second, third = texts = [Served(server, folder, prompt) for prompt in PROMPTS[:3]]
    step(server, texts, 20)
    first.check(first.submit([7, 8]), [7, 8])
    inputs = second.inputs([30])
    with second.sequence.fork() as fork:
        forked = fork.run(inputs)["logits"]
    second.check(second.submit([30]), [30])
    third.sequence.reset()
    reset = third.sequence.run(feed(PROMPTS[0], 0) | BEAMS)["logits"]
    again = Served(server, folder, PROMPTS[1])
    again.check(again.submit([20 + 1]), [20 + 1])
    again.check(expected := again.submit([30]), [30])
    np.testing.assert_allclose(forked, expected.result()["logits"], atol=1e-4)
    np.testing.assert_allclose(reset[0, -1], Plain(folder / "openvino_model.xml").run(PROMPTS[0]), atol=1e-4)
    step(server, [first, again, second], 40)
    for text in (*texts, again):
        text.sequence.close()


def test_a_step_that_cannot_run_ends_alone_and_the_others_go_on(server: Server, folder: Path) -> None:
    texts = [Served(server, folder, prompt) for prompt in PROMPTS]
    step(server, texts, 20)
    wrong = texts[0].inputs([5])
    wrong["attention_mask"] = wrong["attention_mask"][:, 1:]
    with held(server):
        failing = texts[0].sequence.submit(wrong)
        late = texts[1].submit([21], start_within_s=1e-9)
        cancelled = texts[2].submit([22])
        assert cancelled.cancel()
        well = texts[3].submit([23])
    texts[3].check(well, [23])
    assert failing.exception(60) is not None
    assert isinstance(late.exception(60), DeadlineError)
    with pytest.raises(StateLostError):
        texts[0].sequence.run(texts[0].inputs([5]))
    step(server, texts[1:], 30)
    for text in texts:
        text.sequence.close()


@pytest.mark.parametrize(("kind", "driver", "joined"), [("onnx", "ort:", {1: 2}), ("xml", "", {2: 1})])
def test_states_are_not_joined_where_their_padding_has_no_room_and_one_without_room_is_refused(
    kind: str, driver: str, joined: dict[int, int], tmp_path: Path
) -> None:
    column = TINY.layers * 2 * TINY.groups * TINY.head * 4  # bytes of a token
    folder = write_folder(tmp_path, exact=True)
    with served(write_without_beams(kind, tmp_path), f"{driver}CPU@0", state_memory=44.5 * column) as (_, server):
        first, second = texts = [Served(server, folder, [1] * 4) for _ in range(2)]
        for text, tokens in zip(texts, (26, 6), strict=True):
            for _ in range(tokens):
                text.check(text.submit([5]), [5])
        assert runs(server, lambda: step(server, [first, second], 20)) == joined
        assert server.stats().state_bytes == 42 * column
        step(server, [first, second], 30)
        with pytest.raises(StateMemoryError):
            first.sequence.run(first.inputs([5]))
        second.sequence.close()
        first.check(first.submit([5]), [5])


def test_steps_of_a_model_whose_rows_depend_on_each_other_are_not_joined(tmp_path: Path) -> None:
    mixing = build_decoder(replace(TINY, vocabulary=256), beam_idx=True)
    (result,) = mixing.get_results()
    ops, logits = openvino.opset13, result.input_value(0)
    mixed = ops.add(logits, ops.reduce_mean(logits, ops.constant([0, 1]), keep_dims=True))
    result.input(0).replace_source_output(mixed.output(0))
    mixed.output(0).set_names({"logits"})
    openvino.save_model(mixing, tmp_path / "mixing.xml", compress_to_fp16=False)
    with served(tmp_path / "mixing.xml") as (_, server), ExitStack() as stack:
        (stepping,) = server.stepping
        assert stepping.most == 0
        assert str(stepping.why).startswith("the outputs of joined steps differ from the outputs of single steps")
        sequences = [stack.enter_context(server.sequence()) for _ in range(2)]
        for past, tokens in ((0, [1, 2, 3]), (3, [4])):
            answers = [one.submit(feed(tokens, past) | BEAMS) for one in sequences]
            np.testing.assert_array_equal(*(answer.result(60)["logits"] for answer in answers))
        assert not server.stats().steps


def test_decoders_whose_steps_cannot_be_joined_say_why(folder: Path, tmp_path: Path) -> None:
    path = folder / "openvino_model.xml"
    alone = Steps.of(load(write_decoder(TINY, tmp_path / "alone.xml"), context=64), 1e-3)
    single = Steps.of(load(path, context=64, batch=1), 1e-3)
    assert alone is not None
    assert single is not None
    assert alone.why == "the first size of its input 'input_ids' is not open, as with --context and without --batch"
    assert single.why == "the first size of its input 'input_ids' is not open, as with --context and without --batch"


def test_texts_that_are_generated_at_once_share_runs_and_have_the_tokens_of_single_ones(server: Server, folder: Path) -> None:
    model = TextModel(server, load(folder / "openvino_model.xml", context=64))

    def texts(prompts: Sequence[Sequence[int]]) -> list[str]:
        found = [""] * len(prompts)
        for number, piece in model.generate_all(prompts, Wanted(30, sampling=Sampling(temperature=0))):
            found[number] += piece.text
        return found

    expected = [texts([prompt])[0] for prompt in PROMPTS]
    found: list[str] = []

    def at_once() -> None:
        with ThreadPoolExecutor(1) as threads:
            with held(server):
                future = threads.submit(texts, PROMPTS)
                while server.stats().waiting < len(PROMPTS):
                    threading.Event().wait(0.01)
            found.extend(future.result(60))

    counts = runs(server, at_once)
    assert found == expected
    assert max(counts) == len(PROMPTS)
    assert sum(counts.values()) < sum(rows * count for rows, count in counts.items()) / 2
    assert server.stats().sequences == 0


def begun(request: Any) -> float:
    return float(request.begun)


def test_steps_of_a_text_run_between_the_chunks_of_the_prompt_of_another(server: Server, folder: Path) -> None:
    texts, prompt = [Served(server, folder, one) for one in PROMPTS[:2]], Served(server, folder, PROMPTS[2])
    with held(server):
        before = len(server.history.requests())
        chunks = [prompt.sequence.submit(feed([5] * 2, 1 + 2 * number) | BEAMS) for number in range(4)]
        steps = [text.submit([20]) for text in texts]
    for answer in chunks:
        answer.result(60)
    for text, answer in zip(texts, steps, strict=True):
        text.check(answer, [20])
    numbers = [request.sequence for request in sorted(server.history.requests()[before:], key=begun) if request.sequence]
    assert {*numbers[:3]} == {text.sequence.number for text in (*texts, prompt)}  # the first chunk runs with both steps
    assert numbers[3:] == [prompt.sequence.number] * 3
    for text in (*texts, prompt):
        text.sequence.close()
