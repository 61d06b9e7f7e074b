"""Clients run sequences of requests, by the names that they give them, over each protocol."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from examples.decoder import TINY, write_decoder
from placeit.core.errors import ExecutionError
from placeit.core.placement import Placement
from placeit.serve.client_sequences import Asked, Sequences
from placeit.serve.network import NetworkServer, Options
from placeit.serve.refusal import RefusedError
from placeit.serve.repository import Repository
from placeit.serve.served_model import ServedModel
from placeit.serve.service import Service
from placeit.serve.sources import Opened, Source
from placeit.serving.answers import Answer
from placeit.session import Session
from placeit.workbench.options import Inputs
from tests.open_models import TWO, divided

SIZES = {"input_ids": (1, "1..64@8"), "attention_mask": (1, "1..64@8"), "position_ids": (1, "1..64@8")}


@pytest.fixture
def decoder(tmp_path: Path) -> Iterator[tuple[Session, Placement]]:
    path = write_decoder(TINY, tmp_path / "decoder.xml")
    with Session(path, TWO[0], inputs=Inputs(shapes=SIZES), cache=None) as session:
        yield session, divided(session, 2)


@pytest.fixture
def served(decoder: tuple[Session, Placement]) -> Iterator[tuple[NetworkServer, ServedModel]]:
    session, placement = decoder
    with session.serve(placement) as server:
        model = ServedModel("decoder", server, session.model.inputs, session.model.outputs)
        with NetworkServer([model], Options(port=0, grpc_port=0)) as network:
            yield network, model


@pytest.fixture(params=["http", "grpc"])
def ask(request: pytest.FixtureRequest, served: tuple[NetworkServer, ServedModel]) -> Iterator[Any]:
    """Runs tokens of a text that follow ``past`` others, and returns the logits of the last one."""
    network, _ = served
    triton = tritonclient.http if request.param == "http" else tritonclient.grpc
    port = network.port if request.param == "http" else network.grpc_port
    with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:

        def run(tokens: list[int], past: int = 0, **sequence: Any) -> np.ndarray:
            inputs = []
            for name, values in arrays(tokens, past).items():
                inputs.append(triton.InferInput(name, values.shape, "INT64"))
                inputs[-1].set_data_from_numpy(values)
            return client.infer("decoder", inputs, **sequence).as_numpy("logits")[0, -1]

        yield run


def arrays(tokens: list[int], past: int = 0) -> dict[str, np.ndarray]:
    values = {
        "input_ids": tokens,
        "attention_mask": [1] * (past + len(tokens)),
        "position_ids": range(past, past + len(tokens)),
    }
    return {name: np.array([one], np.int64) for name, one in values.items()}


def test_texts_of_several_clients_go_on_side_by_side(served: tuple[NetworkServer, ServedModel], ask: Any) -> None:
    texts = {7: [3, 1, 4, 1, 5], "of another client": [2, 7, 1, 8, 2]}
    for place in range(5):
        for name, tokens in texts.items():
            ends = {"sequence_start": place == 0, "sequence_end": place == 4}
            found = ask(tokens[place : place + 1], place, sequence_id=name, **ends)
            np.testing.assert_allclose(found, ask(tokens[: place + 1]), atol=0.02)  # OpenVINO keeps caches in 8 bits
    assert len(served[1].sequences) == 0
    with pytest.raises(InferenceServerException, match="no sequence 7"):
        ask([1], 5, sequence_id=7)


def test_a_sequence_that_is_begun_again_begins_anew(served: tuple[NetworkServer, ServedModel], ask: Any) -> None:
    ask([3, 1, 4], sequence_id=9, sequence_start=True)
    again = ask([2, 7], sequence_id=9, sequence_start=True)
    np.testing.assert_array_equal(again, ask([2, 7]))
    ask([1], 2, sequence_id=9, sequence_end=True)
    assert len(served[1].sequences) == 0


def test_a_last_request_that_is_refused_can_be_sent_again(served: tuple[NetworkServer, ServedModel], ask: Any) -> None:
    ask([3, 1, 4], sequence_id=9, sequence_start=True)
    with pytest.raises(InferenceServerException, match="time limit of this request is over"):
        ask([1], 3, sequence_id=9, sequence_end=True, timeout=1)
    np.testing.assert_allclose(ask([1], 3, sequence_id=9, sequence_end=True), ask([3, 1, 4, 1]), atol=0.02)
    assert len(served[1].sequences) == 0


def test_one_that_nobody_goes_on_with_is_closed(served: tuple[NetworkServer, ServedModel]) -> None:
    server, kept = served[1].server, list[Any]()

    def submit(sequence: Any) -> Any:
        kept.append(sequence)
        return server.submit(arrays([1]))

    async def forgotten() -> None:
        sequences = Sequences(server, idle_s=0.01)
        await sequences.submit(Asked("x", start=True, end=False), {}, submit)
        while len(sequences):
            await asyncio.sleep(0.01)
        with pytest.raises(RefusedError, match=r"none of its requests has come for 0\.01 s"):
            await sequences.submit(Asked("x", start=False, end=False), {}, submit)
        assert kept[0].line.closed

    asyncio.run(forgotten())


def test_a_request_that_is_sent_again_is_answered_once(served: tuple[NetworkServer, ServedModel], ask: Any) -> None:
    tokens = [3, 1, 4, 1, 5]
    for place, token in enumerate(tokens):
        options = {"sequence_id": 9, "sequence_start": place == 0, "sequence_end": place == 4, "request_id": f"step {place}"}
        found = ask([token], place, **options)
        np.testing.assert_array_equal(ask([token], place, **options), found)  # after the end as well
    np.testing.assert_allclose(found, ask(tokens), atol=0.02)
    assert served[1].server.stats().outcomes["succeeded"] == 6
    assert len(served[1].sequences) == 0


def test_a_repeated_request_is_known_by_its_bytes_which_are_not_kept(served: tuple[NetworkServer, ServedModel]) -> None:
    sequences, answers = served[1].sequences, [Answer(), Answer()]
    submitted = iter(answers)
    first = np.array([np.nan] * (1 << 15), np.float32)  # whose digest another thread computes
    kept = weakref.ref(first)

    async def twice(inputs: dict[str, np.ndarray]) -> Answer:
        return await sequences.submit(Asked(7, start=True, end=False, request="a"), inputs, lambda _: next(submitted))

    async def check() -> None:
        nonlocal first
        again = first.copy()
        assert await twice({"x": first}) is answers[0]
        del first
        while kept() is not None:
            await asyncio.sleep(0.001)
        answers[0].set_result({"y": np.zeros(1 << 10)})
        assert await twice({"x": again}) is answers[0]
        assert await twice({"x": again[:-1]}) is answers[1]
        answers[1].set_result({"y": np.zeros(1 << 20)})
        await asyncio.sleep(0)  # until the answer, which is too large to be kept, is forgotten
        with pytest.raises(
            RefusedError, match="has run, and its answer was not kept, as it has more than 1048576 bytes, or others came later"
        ):
            await twice({"x": again[:-1]})
        sequences.close()

    asyncio.run(check())


def test_answers_of_many_sequences_are_kept_as_far_as_they_are_few_bytes(served: tuple[NetworkServer, ServedModel]) -> None:
    sequences, answers = served[1].sequences, [Answer() for _ in range(17)]

    async def ask(name: int) -> Answer:
        return await sequences.submit(Asked(name, start=True, end=False, request="a"), {}, lambda _: answers[name - 1])

    async def check() -> None:
        for name, answer in enumerate(answers, 1):
            await ask(name)
            answer.set_result({"y": np.zeros(1 << 20, np.uint8)})
            await asyncio.sleep(0)
        with pytest.raises(RefusedError, match="has run, and its answer was not kept"):
            await ask(1)
        assert [await ask(name) for name in range(2, 18)] == answers[1:]
        sequences.close()

    asyncio.run(check())


def test_a_request_that_waits_for_its_turn_keeps_its_sequence_open_and_its_deadline(
    served: tuple[NetworkServer, ServedModel],
) -> None:
    server, ending = served[1].server, [Answer(), Answer()]
    model = ServedModel("decoder", server, [*served[1].inputs.values()], [*served[1].outputs.values()], idle_s=0.01)
    service = Service([model])

    async def behind(answer: Answer, timeout_s: float | None) -> Any:
        """Have a request wait for the one that ends its sequence, until its idle time is over, and long after."""
        await model.sequences.submit(Asked(7, start=True, end=True), {}, lambda _: answer)
        with service.accepted("decoder") as call:
            running = asyncio.ensure_future(service.run(call, arrays([1]), timeout_s, None, Asked(7, start=False, end=False)))
            await asyncio.sleep(0.1)
            answer.cancel()
            return await running

    async def check() -> None:
        assert "logits" in await behind(ending[0], None)
        arrived = server.stats().arrived
        with pytest.raises(RefusedError, match="time limit of this request is over"):
            await behind(ending[1], 0.05)
        assert server.stats().arrived == arrived

    asyncio.run(check())


def test_requests_that_follow_one_that_begins_a_sequence_wait_for_it(served: tuple[NetworkServer, ServedModel]) -> None:
    sequences, server, order = served[1].sequences, served[1].server, list[int]()

    def submit(place: int) -> Callable[[Any], Any]:
        def submitting(_: Any) -> Any:
            order.append(place)
            return server.submit(arrays([1]))

        return submitting

    async def at_once() -> None:
        asked = [Asked(7, start=place == 0, end=place == 3) for place in range(4)]
        await asyncio.gather(*(sequences.submit(one, {}, submit(place)) for place, one in enumerate(asked)))
        while len(sequences):
            await asyncio.sleep(0.01)

    asyncio.run(at_once())
    assert order == [0, 1, 2, 3]


def test_a_last_request_that_did_not_run_leaves_the_sequence_open(served: tuple[NetworkServer, ServedModel]) -> None:
    sequences, server, given_up = served[1].sequences, served[1].server, Answer()
    given_up.cancel()

    async def ending() -> None:
        await sequences.submit(Asked(7, start=True, end=False), {}, lambda _: server.submit(arrays([1])))
        for answer, left in ((given_up, 1), (server.submit(arrays([1])), 0)):
            await sequences.submit(Asked(7, start=False, end=True), {}, lambda _, answer=answer: answer)
            await asyncio.wrap_future(server.submit(arrays([1])))
            while len(sequences) > left:
                await asyncio.sleep(0.01)
            assert len(sequences) == left

    asyncio.run(ending())


def test_a_request_that_waits_for_a_last_one_that_fails_logs_nothing(
    served: tuple[NetworkServer, ServedModel], caplog: pytest.LogCaptureFixture
) -> None:
    sequences, server, last = served[1].sequences, served[1].server, Answer()

    async def ask() -> None:
        await sequences.submit(Asked(7, start=True, end=True), {}, lambda _: last)
        following = asyncio.ensure_future(
            sequences.submit(Asked(7, start=False, end=False), {}, lambda _: server.submit(arrays([1])))
        )
        await asyncio.sleep(0.05)
        assert not following.done()
        last.set_exception(ExecutionError("A device was lost."))
        await asyncio.wrap_future(await following)

    asyncio.run(ask())
    gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_a_state_that_was_lost_is_said_until_the_sequence_begins_again(
    served: tuple[NetworkServer, ServedModel], ask: Any
) -> None:
    ask([3, 1, 4], sequence_id=9, sequence_start=True)
    (line,) = served[1].server.sequences.open_lines
    line.failed(ExecutionError("A device was lost."))
    with pytest.raises(InferenceServerException, match=r"sequence is lost: A device was lost\. Begin it again") as caught:
        ask([1], 3, sequence_id=9)
    assert caught.value.status() in ("503", "StatusCode.UNAVAILABLE")
    np.testing.assert_array_equal(ask([2, 7], sequence_id=9, sequence_start=True), ask([2, 7]))


def test_a_sequence_goes_on_with_the_model_that_was_replaced(decoder: tuple[Session, Placement], tmp_path: Path) -> None:
    session, placement = decoder

    def opener(source: Source, name: str, version: str) -> Opened:
        server = session.serve(placement)
        inputs = [replace(spec, dtype="int32") if source.path.read_text() else spec for spec in session.model.inputs]
        model = ServedModel(name, server, inputs, session.model.outputs, version)
        return Opened(model, server.close)

    def ask(tokens: list[int], past: int, kind: str = "INT64", **sequence: Any) -> np.ndarray:
        inputs = []
        for name, values in arrays(tokens, past).items():
            inputs.append(tritonclient.http.InferInput(name, values.shape, kind))
            inputs[-1].set_data_from_numpy(values.astype(kind.lower()))
        return client.infer("decoder", inputs, **sequence).as_numpy("logits")[0, -1]

    (tmp_path / "decoder.placeit").touch()
    with ExitStack() as stack:
        repository = Repository(opener, tmp_path, control=True)
        stack.callback(repository.close)
        repository.open_folder()
        network = stack.enter_context(NetworkServer([], Options(port=0, grpc_port=None), repository))
        client = stack.enter_context(tritonclient.http.InferenceServerClient(f"127.0.0.1:{network.port}"))
        ask([3, 1, 4], 0, sequence_id=9, sequence_start=True)
        client.load_model("decoder")
        (now,) = network.models
        assert len(now.sequences) == 0
        np.testing.assert_allclose(ask([1], 3, sequence_id=9, sequence_end=True), ask([3, 1, 4, 1], 0), atol=0.02)
        while repository.models != [now]:
            time.sleep(0.01)
        ask([3, 1, 4], 0, sequence_id=9, sequence_start=True)
        (tmp_path / "decoder").mkdir()
        (tmp_path / "decoder" / "2.placeit").touch()
        client.load_model("decoder")
        assert now not in network.models
        np.testing.assert_allclose(ask([1], 3, sequence_id=9), ask([3, 1, 4, 1], 0), atol=0.02)  # which version 2 answers
        ask([2], 0, sequence_id=8, sequence_start=True)
        (tmp_path / "decoder" / "2.placeit").write_text("other types")
        client.load_model("decoder")
        with pytest.raises(InferenceServerException, match="replaced by one with other tensors: begin the sequence again"):
            ask([1], 1, sequence_id=8, kind="INT32")
        client.unload_model("decoder")  # which closes the sequences
        while repository.models:
            time.sleep(0.01)
