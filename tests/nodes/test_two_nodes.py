"""Models of open sizes, and models with state, on two nodes and in this process."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from examples.decoder import TINY, write_decoder
from placeit.backends.openvino.model import OpenVinoModel
from placeit.core.errors import PlaceitError, SequenceError
from placeit.core.narrowing import narrowed
from placeit.devices import discover
from placeit.devices.host import allowed_cores
from placeit.devices.openvino import openvino_core
from placeit.planning.coarsen import coarsen
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.runtime.devices.base import DoneCallback, Instance
from placeit.runtime.devices.kinds import device_kind
from placeit.runtime.nodes.actor import DeviceActor
from placeit.runtime.nodes.device import NodeDevice, NodeLink
from placeit.runtime.nodes.wire import Frame, Kind
from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.runtime import Runtime
from placeit.serving.sequence import Sequence
from placeit.serving.server import Server
from placeit.session import Session
from placeit.text.generating import TextModel, Wanted
from placeit.text.sampling import Sampling
from placeit.workbench.options import Inputs
from tests.open_models import LENGTHS, OPEN, Arrays, assert_close, at_one_size, attention, divided, values
from tests.runtime.test_faults import Troubled
from tests.small_texts import write_folder
from tests.stateful_models import SIZE, Totals, totals
from tests.text_steps import generate

pytest.importorskip("ray")
from placeit.devices.nodes import connection, local

TIMEOUT_S = 240.0  # for an answer: nodes are separate processes, and cores may be busy
CORES = allowed_cores()
DEVICES = [f"head/CPU@{CORES[0]}", f"edge1/CPU@{CORES[-1]}", f"CPU@{CORES[0]}"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[local.LocalCluster]:
    file = tmp_path_factory.mktemp("cluster") / "cluster.json"
    started = local.start(local.names(2), file)
    try:
        yield started
    finally:
        connection.disconnect()
        started.stop(file)
    assert started.pids() == []


@pytest.fixture
def connected(cluster: local.LocalCluster) -> Iterator[None]:
    connection.connect(cluster.address, token=cluster.token)
    yield
    connection.disconnect()


def opened(path: Path) -> Session:
    return Session(path, DEVICES, inputs=Inputs(shapes=OPEN), cache=None)


@pytest.mark.parametrize(("compress", "worst"), [("none", 1e-4), ("int8", 0.1)])
def test_requests_of_all_sizes_are_served_side_by_side(
    cluster: local.LocalCluster, compress: connection.Compression, worst: float, tmp_path: Path
) -> None:
    path = attention(tmp_path)
    connection.connect(cluster.address, token=cluster.token, compress=compress)
    with opened(path) as session, session.serve(divided(session, 6), in_flight=3) as server:
        asked = [values(length, seed) for seed, length in enumerate(LENGTHS * 2)]
        answers = [server.submit(inputs) for inputs in asked]
        for inputs, answer in zip(asked, answers, strict=True):
            found = answer.result(TIMEOUT_S)
            for name, wanted in at_one_size(path, inputs).items():
                assert found[name].shape == wanted.shape
                np.testing.assert_allclose(found[name], wanted, rtol=worst, atol=worst)
    connection.disconnect()


def test_a_tensor_of_sizes_out_of_range_ends_the_connection_that_it_came_from(connected: None, tmp_path: Path) -> None:
    path = attention(tmp_path)
    inputs: Arrays = values(5)
    with opened(path) as session, session.serve(divided(session, 3)) as server:
        assert_close(server.submit(inputs).result(TIMEOUT_S), at_one_size(path, inputs))
        device = narrowed(NodeDevice, session.runtime.devices[0])
        ahead = next(iter(device.routes.values()))
        number, buffer = ahead.feeds[device][0]
        assert buffer.array().shape == (1, 5)
        device.connection.send(Frame(Kind.DATA, epoch=ahead.epoch + 1, target=number, sizes=(1, 65)), memoryview(b"x"))
        with pytest.raises(PlaceitError, match=f"{DEVICES[0]} is lost"):
            _use_up(server, inputs)


LAYERS = 4


@contextmanager
def stateful() -> Iterator[tuple[Runtime, PlanExecutor]]:
    """Layers with state on two nodes in turn, a segment each."""
    model = totals(LAYERS)
    grouping = coarsen(model.graph, keep_together=model.together, co_locate=False)
    with Runtime(model, grouping, discover(DEVICES)) as runtime, runtime.executor(placed(runtime, [0, 1])) as executor:
        yield runtime, executor


def placed(runtime: Runtime, devices: list[int]) -> Plan:
    where = np.full(len(runtime.grouping.groups), devices[0])
    for name, group in zip(runtime.model.graph.names, runtime.grouping.group_of, strict=True):
        if name[-1].isdigit() and not name.startswith("Assign"):
            where[group] = devices[int(name[-1]) % len(devices)]
    return Segmenter(runtime.grouping, Costs.zero(len(where), runtime.cluster)).plan(where)


def ask(number: int) -> Arrays:
    return {"x": np.random.default_rng(number).standard_normal((1, SIZE)).astype(np.float32)}


def check(found: Mapping[str, NDArray[np.generic]], wanted: NDArray[np.generic]) -> None:
    (value,) = found.values()
    np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-5)


def test_sequences_keep_their_states_on_nodes(connected: None) -> None:
    with stateful() as (runtime, executor), Server([executor], queue=200) as server:
        assert {segment.device for segment in executor.plan.segments} == {0, 1}
        whole = narrowed(OpenVinoModel, runtime.model).ov_model
        request = openvino_core().compile_model(whole, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
        with server.sequence() as plain:
            for step in range(20):
                check(plain.run(ask(step), timeout=TIMEOUT_S), request.infer(ask(step))[0])
        models = [Totals(LAYERS) for _ in range(3)]
        sequences, answers = [server.sequence() for _ in models], []
        for step in range(30):
            k = step % 3
            answers.append((sequences[k].submit(ask(step)), models[k].run(ask(step)["x"])))
            if k == 0:  # one of no sequence starts from the initial state
                answers.append((server.submit(ask(step)), Totals(LAYERS).run(ask(step)["x"])))
        for answer, wanted in answers:
            check(answer.result(TIMEOUT_S), wanted)
        fork, forked = sequences[0].fork(timeout=TIMEOUT_S), models[0].fork()
        sequences[0].reset()
        models[0].reset()
        for step in range(5):
            check(fork.run(ask(step), timeout=TIMEOUT_S), forked.run(ask(step)["x"]))
            check(sequences[0].run(ask(-step % 9), timeout=TIMEOUT_S), models[0].run(ask(-step % 9)["x"]))
            check(sequences[1].run(ask(step), timeout=TIMEOUT_S), models[1].run(ask(step)["x"]))


def test_a_request_enters_a_node_when_the_one_before_has_left_it_for_another_device(
    connected: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, ended, waited = discover(DEVICES[1:]), threading.Semaphore(0), list[bool]()
    start = NodeDevice.start

    def counted(device: NodeDevice, instance: Instance, done: DoneCallback) -> None:
        def report(*ran: Any) -> None:
            ended.release()
            done(*ran)

        start(device, instance, report)

    def hold() -> None:
        """Keep the first request on the last device until a second segment has ended on the node."""
        if not waited:
            waited.append(all(ended.acquire(timeout=TIMEOUT_S) for _ in range(2)))

    monkeypatch.setattr(NodeDevice, "start", counted)
    here = Troubled(device_kind(cluster.devices[1]).open(cluster.devices[1], "f32"))
    model = totals(LAYERS)
    grouping = coarsen(model.graph, keep_together=model.together, co_locate=False)
    there = NodeDevice(cluster.devices[0], "f32")
    links = {(0, 1): NodeLink(there, here), (1, 0): NodeLink(here, there)}
    with (
        Runtime(model, grouping, cluster, devices=[there, here], transports=links) as runtime,
        runtime.executor(placed(runtime, [0, 1])) as executor,
        Server([executor], queue=100) as server,
        server.sequence() as sequence,
    ):
        here.trouble = hold
        assert sequence.at_once == 2
        for _ in range(2):
            expected = Totals(LAYERS)
            answers = [sequence.submit(ask(step)) for step in range(30)]
            for step, answer in enumerate(answers):
                check(answer.result(TIMEOUT_S), expected.run(ask(step)["x"]))
            assert waited == [True]
            sequence.reset()


def test_states_move_to_other_nodes_and_to_this_process_and_back(connected: None) -> None:
    model, states = Totals(LAYERS), dict[str, Any]()
    with stateful() as (runtime, _):
        for devices in ([0, 1], [1, 0], [2], [0, 1]):
            with runtime.executor(placed(runtime, devices)) as home, Server([home]) as server, server.sequence() as sequence:
                slot = sequence.line.slot
                assert slot is not None
                if states:
                    slot.set_states(states)
                for step in range(3):
                    check(sequence.run(ask(step), timeout=TIMEOUT_S), model.run(ask(step)["x"]))
                states = slot.states()
                assert slot.state_bytes().total() == LAYERS * SIZE * 4


def test_what_belongs_to_a_closed_sequence_is_released_on_its_nodes(connected: None) -> None:
    with stateful() as (runtime, executor), Server([executor]) as server:
        device = narrowed(NodeDevice, runtime.devices[0])

        def held(actor: DeviceActor) -> tuple[int, int]:
            return len(actor._lane._slots), len(actor._copies)

        def count() -> tuple[int, int]:
            return connection.ray_module().get(device._actor.__ray_call__.remote(held))

        before = count()
        gc.collect()
        gc.disable()  # memory of nodes does not wait until this process collects garbage
        try:
            with server.sequence() as sequence:
                check(sequence.run(ask(0), timeout=TIMEOUT_S), Totals(LAYERS).run(ask(0)["x"]))
                with sequence.fork(timeout=TIMEOUT_S):
                    assert count()[0] == before[0] + 2
            while count() != before:  # it is told, and not waited for
                time.sleep(0.05)
        finally:
            gc.enable()


def test_a_decoder_on_two_nodes_generates_the_text_of_the_whole(connected: None, tmp_path: Path) -> None:
    path = write_decoder(TINY, tmp_path / "decoder.xml")
    whole = openvino_core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
    shapes = {"input_ids": [1, "1..16@9/1"], "attention_mask": [1, "1..128@9/10"], "position_ids": [1, "1..16@9/1"]}
    with (
        Session(path, DEVICES[:2], inputs=Inputs(shapes=shapes), cache=None) as session,
        session.serve(divided(session, 2)) as server,
    ):
        for prompt in ([3, 1, 4, 1, 5], [2, 7]):
            with server.sequence() as sequence:
                text, _ = generate(lambda inputs: sequence.run(inputs, timeout=TIMEOUT_S), prompt, 24)
            whole.reset_state()
            assert text == generate(lambda inputs: {"logits": whole.infer(inputs)[0]}, prompt, 24)[0]


def test_sequences_on_a_node_that_dies_are_told_and_others_go_on(connected: None) -> None:
    with stateful() as (runtime, executor), runtime.executor(placed(runtime, [2])) as here, Server([executor, here]) as server:
        models = [Totals(LAYERS) for _ in range(4)]
        sequences = [server.sequence(recompute=k == 2) for k in range(4)]  # in turn on the nodes and in this process
        for sequence, model in zip(sequences, models, strict=True):
            for step in range(3):
                check(sequence.run(ask(step), timeout=TIMEOUT_S), model.run(ask(step)["x"]))
        os.kill(narrowed(NodeDevice, runtime.devices[1]).pid, signal.SIGKILL)
        with pytest.raises(SequenceError, match=f"(?s)state of sequence 1 is not known.*{DEVICES[1]} is lost"):
            _use_up(sequences[0], ask(3))
        for k in (1, 2, 3):
            check(sequences[k].run(ask(3), timeout=TIMEOUT_S), models[k].run(ask(3)["x"]))
        sequences[0].reset()
        models[0].reset()
        check(sequences[0].run(ask(4), timeout=TIMEOUT_S), models[0].run(ask(4)["x"]))


@pytest.mark.slow
def test_texts_go_on_with_equal_tokens_when_one_of_their_nodes_dies(connected: None, tmp_path: Path) -> None:
    path = write_folder(tmp_path, exact=True) / "openvino_model.xml"
    prompts, wanted = [[1, 2, 3], [7] * 150, [13], [9] * 20], Wanted(30, sampling=Sampling(0))
    with Session(path, DEVICES, inputs=Inputs(context=256), cache=None) as session:
        session.profile(budget_s=1)
        with session.serve(divided(session, 2), on_loss="replace") as server:
            assert [stepping.why for stepping in server.stepping] == [None]
            model = TextModel(server, session.model)

            def texts() -> Iterator[tuple[int, str]]:
                for number, piece in model.generate_all(prompts, wanted):
                    assert piece.error is None
                    yield number, piece.text

            expected, found = [""] * len(prompts), [""] * len(prompts)
            for number, text in texts():
                expected[number] += text
            for count, (number, text) in enumerate(texts()):
                found[number] += text
                if count == 40:
                    os.kill(narrowed(NodeDevice, session.runtime.devices[1]).pid, signal.SIGKILL)
            assert found == expected
            assert max(server.stats().steps) > 1
            (replacement,) = server.replacements
            assert f"{DEVICES[1]} is lost" in replacement.why


@pytest.mark.slow
def test_a_prompt_whose_node_dies_while_two_chunks_are_in_flight_gives_equal_tokens(
    connected: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, started, start = write_folder(tmp_path, exact=True) / "openvino_model.xml", list[NodeDevice](), NodeDevice.start

    def killing(device: NodeDevice, instance: Instance, done: DoneCallback) -> None:
        started.append(device)
        if started.count(device) == 2 and device.name == DEVICES[1]:
            os.kill(device.pid, signal.SIGKILL)
        start(device, instance, done)

    with Session(path, DEVICES, inputs=Inputs(context=400), cache=None) as session:
        session.profile(budget_s=1)
        texts = []
        for placement in (session.placement(np.full(len(session.grouping.groups), 2)), divided(session, 2)):
            with session.serve(placement, on_loss="replace") as server:
                model = TextModel(server, session.model)
                if texts:
                    monkeypatch.setattr(NodeDevice, "start", killing)
                texts.append("".join(piece.text for piece in model.generate([7] * 300, Wanted(20, sampling=Sampling(0)))))
                replaced = len(server.replacements)
        assert replaced == 1
        assert texts[1] == texts[0]


def _use_up(asked: Server | Sequence, inputs: Arrays) -> None:
    while True:
        asked.submit(inputs).result(TIMEOUT_S)
