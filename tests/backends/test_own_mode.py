"""A model in OpenVINO's own modes: it runs there as OpenVINO runs it, and its outputs can be checked."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

from examples.decoder import TINY, write_decoder
from placeit.backends import load
from placeit.backends.openvino.own_mode import OwnModeRunner
from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.devices.host import allowed_cores
from placeit.devices.own_modes import OwnMode
from tests.small_models import inception_like

CPU = Device("CPU", address=Address("CPU"), all_cores=allowed_cores())
CORE = Device("CPU@0", address=Address("CPU", (allowed_cores()[0],)))


SIZES = {"input_ids": [1, "1..64@9/1"], "attention_mask": [1, "1..64@9/10"], "position_ids": [1, "1..64@9/1"]}


def mode(target: str, device: Device = CPU, *, steady: bool = False) -> OwnMode:
    return OwnMode(target, target, (device,), steady)


@pytest.mark.parametrize("device", [CPU, CORE])
@pytest.mark.parametrize(
    ("target", "steady"), [("AUTO:CPU", False), ("HETERO:CPU", False), ("MULTI:CPU", True), ("BATCH:CPU", True), ("CPU", True)]
)
def test_it_computes_what_the_model_computes_in_every_request(target: str, steady: bool, device: Device) -> None:
    model = inception_like()
    reference = model.reference(CPU, "f32")
    with contextlib.closing(OwnModeRunner(model, mode(target, device, steady=steady), "f32")) as runner:
        assert runner.used == ("CPU",)
        assert runner.time() > 0
        assert runner.time() > 0
        for seed in (1, 2):
            inputs = model.random_inputs(seed)
            runner.set_inputs(inputs)
            for outputs in runner.written():
                for value in outputs.values():
                    value[...] = np.nan
            runner.run_all()
            expected = reference(inputs)
            for outputs in runner.written():
                assert outputs.keys() == expected.keys()
                for name, value in expected.items():
                    np.testing.assert_allclose(outputs[name], value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("target", "steady"), [("AUTO:CPU", False), ("CPU", True)])
def test_requests_of_several_typical_sizes_are_timed_as_one_sequence(tmp_path: Path, target: str, steady: bool) -> None:
    path = write_decoder(TINY, tmp_path / "decoder.xml")
    model = load(path, input_shapes=SIZES)
    first, last = (sample.inputs for sample in model.sample_requests())
    steps = model.reference(CPU, "f32")
    whole = {name: np.concatenate([first[name], last[name]], 1) for name in ("input_ids", "position_ids")}
    expected = steps(whole | {"attention_mask": last["attention_mask"]})["logits"]
    with contextlib.closing(OwnModeRunner(model, mode(target, steady=steady), "f32")) as runner:
        for _ in range(2):  # the second time, too, it begins with the initial state
            assert runner.time() > 0
            for outputs in runner.written():
                np.testing.assert_allclose(outputs["logits"], expected, atol=0.01)  # caches have 8 bits


def test_many_requests_of_one_typical_size_each_start_from_the_initial_state(tmp_path: Path) -> None:
    sizes = {name: [1, "1..64@9"] for name in SIZES}
    model = load(write_decoder(TINY, tmp_path / "decoder.xml"), input_shapes=sizes)
    expected = model.reference(CPU, "f32")(model.sample_inputs())["logits"]
    with contextlib.closing(OwnModeRunner(model, mode("CPU", steady=True), "f32")) as runner:
        for _ in range(2):
            assert runner.time() > 0
            for outputs in runner.written():
                np.testing.assert_allclose(outputs["logits"], expected, atol=0.01)  # caches have 8 bits


def test_what_openvino_cannot_compile_is_an_error_that_names_it() -> None:
    with pytest.raises(DeviceError, match=r"OpenVINO cannot compile inception-like for NOTHING:CPU: .*NOTHING"):
        OwnModeRunner(inception_like(), mode("NOTHING:CPU"), "f32")
