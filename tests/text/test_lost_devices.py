"""Texts whose devices fail, are lost or are left in the middle: they go on, with the tokens that they would have had."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from placeit.backends.openvino.reader import load
from placeit.core.errors import ExecutionError
from placeit.serving.server import Replacement, Server
from placeit.serving.stepping import Steps
from placeit.text.generating import TextModel, Wanted
from placeit.text.sampling import Sampling
from placeit.workbench.recovery import Recovery
from placeit.workbench.texts import Texts
from tests.serving.test_adapting import Bench
from tests.small_texts import write_folder

PROMPTS = [[7] * 90, [1, 2, 3], [13], [7] * 90 + [9] * 20]
WANTED = Wanted(25, sampling=Sampling(seed=1))


@pytest.fixture
def bench(folder: Path) -> Iterator[Bench]:
    made = Bench(load(folder / "openvino_model.xml", context=256))
    yield made
    made.runtime.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("model"), exact=True)


def served(bench: Bench, *, replaced: bool = True) -> Server:
    recovery = Recovery(bench.runtime, bench.costs, None) if replaced else None
    return Server([bench.runtime.executor(bench.plan(0))], replace=recovery, steps=Steps.of(bench.model, 1e-3))


def texts(server: Server, bench: Bench, then: Callable[[], object] = int) -> tuple[list[str], list[str]]:
    """Generate all texts, call a function in their middle, and return their texts and errors."""
    found, errors = [""] * len(PROMPTS), [""] * len(PROMPTS)
    pieces = TextModel(server, bench.model).generate_all(PROMPTS, WANTED, at_once=3)
    for count, (number, piece) in enumerate(pieces):
        found[number] += piece.text
        errors[number] = str(piece.error or "")
        if count == 40:
            then()
    return found, errors


def test_a_device_that_is_lost_costs_texts_time_and_no_token(bench: Bench) -> None:
    with served(bench) as server:
        expected = texts(server, bench)
        assert texts(server, bench, bench.device(0).lose) == expected
        assert [replacement.devices for replacement in server.replacements] == [("b",)]
        assert max(server.stats().steps) > 1
        assert texts(server, bench) == expected


def test_devices_without_room_for_the_longest_text_take_over_where_no_others_are_left(folder: Path) -> None:
    model = load(folder / "openvino_model.xml", context=256)
    texts_of = Texts.of(model, 1)
    assert texts_of is not None
    bench = Bench(replace(model, graph=replace(model.graph, state_bytes=texts_of.bytes())))
    room = [replace(device, memory_bytes=size) for device, size in zip(bench.costs.cluster.devices, (1e9, 150e3), strict=True)]
    bench.costs = replace(bench.costs, cluster=replace(bench.costs.cluster, devices=tuple(room)))
    weights, states = model.graph.bytes_once.sum(), texts_of.bytes().sum()
    assert weights < 150e3 < weights + states
    with served(bench) as server:
        bench.device(0).lose()
        assert texts(server, bench)[1] == [""] * len(PROMPTS)
        assert [replacement.devices for replacement in server.replacements] == [("b",)]
    bench.runtime.close()


def test_texts_go_on_with_their_states_where_a_server_moves_to_other_devices(bench: Bench) -> None:
    with served(bench) as server:
        expected = texts(server, bench)
        prompts = server.stats().outcomes["succeeded"]

        def move() -> None:
            executor = bench.runtime.executor(bench.plan(1))
            assert server.exchange(server.executors, [executor], Replacement("It was told to.", ("b",), 0.0, 0.0, 0.0))

        assert texts(server, bench, move) == expected
        assert server.stats().outcomes == {**server.stats().outcomes, "succeeded": 2 * prompts, "failed": 0}
        assert len(server.replacements) == 1


def test_a_step_that_fails_once_is_made_up_for_and_a_device_that_always_fails_ends_texts_with_its_error(bench: Bench) -> None:
    def fail(times: float) -> Callable[[], None]:
        def trouble() -> None:
            nonlocal times
            times -= 1
            if times >= 0:
                raise RuntimeError("put in")

        return lambda: setattr(bench.device(0), "trouble", trouble)

    with served(bench) as server:
        expected = texts(server, bench)
        assert texts(server, bench, fail(2)) == expected
        found, errors = texts(server, bench, fail(1e9))
        assert all("put in" in error for error in errors)
        assert all(text.startswith(begun) for text, begun in zip(expected[0], found, strict=True))
        fail(0)()
        assert texts(server, bench) == expected


def test_texts_whose_devices_are_lost_for_good_end_with_an_error(bench: Bench) -> None:
    with served(bench, replaced=False) as server:
        _, errors = texts(server, bench, bench.device(0).lose)
        assert all("a is lost" in error for error in errors)
        with pytest.raises(ExecutionError, match="a is lost"):
            server.sequence()
