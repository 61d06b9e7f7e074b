"""Joined steps on devices that fail or are lost: what each text gets of them, and how the server goes on."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from placeit.backends.openvino.reader import load
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import PlaceitError, StateLostError
from placeit.devices.host import allowed_cores
from placeit.planning.coarsen import coarsen
from placeit.planning.segments import Costs, Segmenter
from placeit.runtime.devices.kinds import device_kind
from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.runtime import Runtime
from placeit.serving.server import Replacement, Server
from placeit.serving.stepping import Steps
from placeit.workbench.recovery import Recovery
from tests.runtime.test_faults import CORES, Troubled
from tests.serving.test_adapting import Bench
from tests.serving.test_stepping import BEAMS, PROMPTS, Plain, Served, held, runs, step
from tests.small_texts import write_folder
from tests.text_steps import feed


class Paging(Troubled):
    """A device of this kind that keeps caches in blocks."""

    pages = True


@pytest.mark.parametrize("kind", [Troubled, Paging])
def test_a_device_that_fails_loses_the_states_that_it_steps_and_those_with_inputs_are_computed_anew(
    kind: type[Troubled], tmp_path: Path
) -> None:
    folder = write_folder(tmp_path, exact=True)
    device = Device("a", "openvino", Address("CPU", CORES[:1]), all_cores=allowed_cores())
    troubled = kind(device_kind(device).open(device, "f32"))
    model = load(folder / "openvino_model.xml", context=64)
    grouping = coarsen(model.graph, keep_together=model.together, co_locate=False)
    with Runtime(model, grouping, Cluster((device,), {}), devices=[troubled]) as runtime:
        groups = len(grouping.groups)
        plan = Segmenter(grouping, Costs.zero(groups, runtime.cluster)).plan(np.zeros(groups, np.int32))
        rules = Steps.of(model, 1e-3)
        with Server([runtime.executor(plan)], steps=rules) as server:
            texts = [Served(server, folder, prompt, recompute=k == 0) for k, prompt in enumerate(PROMPTS)]
            step(server, texts[:3], 20)

            def fail() -> None:
                troubled.trouble = int
                raise RuntimeError("put in")

            with held(server):
                answers = [text.submit([30 + k]) for k, text in enumerate(texts[:2])]
                troubled.trouble = fail
            for answer in answers:
                assert "put in" in str(answer.exception(60))
            for text in texts[1:3] if kind is Troubled else texts[1:2]:  # one of them had no step, but a row
                with pytest.raises(StateLostError, match="put in"):
                    text.sequence.run(text.inputs([40]))
            assert runs(server, lambda: step(server, [texts[0], texts[3]], 40))
            assert server.repeated == 0


def test_steps_that_fail_on_a_lost_device_while_others_still_run_on_another_end_with_its_error(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, exact=True)
    bench = Bench(load(folder / "openvino_model.xml", context=64))
    groups = len(bench.runtime.grouping.groups)
    halves = bench.segmenter.plan((np.arange(groups) >= groups // 2).astype(np.int32))
    begun, noticed = threading.Event(), threading.Event()

    def replace_lost(lost: PlanExecutor, left: Sequence[PlanExecutor], why: PlaceitError) -> tuple[PlanExecutor, Replacement]:
        noticed.set()
        return Recovery(bench.runtime, bench.costs, None)(lost, left, why)

    def first_on_a() -> None:
        bench.device(0).trouble = second_on_a

    def second_on_a() -> None:
        assert begun.wait(60)
        bench.device(0).lose()
        bench.device(0).trouble()

    def first_on_b() -> None:
        bench.device(1).trouble = int
        begun.set()
        assert noticed.wait(60)

    executors, rules = [bench.runtime.executor(halves)], Steps.of(bench.model, 1e-3)
    with bench.runtime, Server(executors, replace=replace_lost, steps=rules) as server:
        texts = [Served(server, folder, prompt) for prompt in PROMPTS]
        assert runs(server, lambda: step(server, texts, 20)) == {2: 2}
        with held(server):
            answers = [text.submit([30]) for text in texts]
            bench.device(0).trouble, bench.device(1).trouble = first_on_a, first_on_b
        for answer in answers:
            assert "a is lost" in str(answer.exception(60))
        with server.sequence() as sequence:
            np.testing.assert_allclose(
                sequence.run(feed([1, 2, 3], 0) | BEAMS)["logits"][0, -1],
                Plain(folder / "openvino_model.xml").run([1, 2, 3]),
                atol=1e-4,
            )
        assert [replacement.devices for replacement in server.replacements] == [("b",)]
