"""Compiled models on disk: found again, damaged ones recognised, and nothing that depends on the folder."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from small_models import inception_like

from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.devices import compiled
from placeit.devices.compiled import VARIABLE, CompiledModels
from placeit.devices.host import allowed_cores
from placeit.devices.openvino import compile_model, openvino_core

CORE = allowed_cores()[0]
DEVICE = Device(f"CPU@{CORE}", address=Address("CPU", (CORE,)))
CONFIG: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32"}


def outputs(program: Any) -> list[np.ndarray]:
    request = program.create_infer_request()
    for i, value in enumerate(inception_like().random_inputs(1).values()):
        request.get_input_tensor(i).data[...] = value
    request.infer()
    return [np.array(request.get_output_tensor(i).data) for i in range(len(program.outputs))]


def compiled_in(folder: Path, config: dict[str, Any] = CONFIG) -> Any:
    """Compile as a new process would."""
    return CompiledModels(folder).compile(openvino_core(), inception_like().ov_model, "CPU", config)


def from_cache(program: Any) -> bool:
    return bool(program.get_property("LOADED_FROM_CACHE"))


def test_a_model_is_compiled_once(tmp_path: Path) -> None:
    first, second = compiled_in(tmp_path), compiled_in(tmp_path)
    assert (from_cache(first), from_cache(second)) == (False, True)
    for a, b in zip(outputs(first), outputs(second), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not from_cache(compiled_in(tmp_path, CONFIG | {"INFERENCE_NUM_THREADS": 1}))


def flipped(data: bytes) -> bytes:
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 64]) + data[len(data) // 2 + 1 :]


@pytest.mark.parametrize(
    "damage",
    [flipped, lambda _: b"", lambda data: data[: len(data) // 2], lambda data: bytes(len(data)), lambda data: data + b"x"],
)
def test_a_damaged_entry_is_compiled_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes]
) -> None:
    expected = outputs(compiled_in(tmp_path))
    (blob,) = tmp_path.glob("*/*.blob")
    blob.write_bytes(damage(blob.read_bytes()))
    again = compiled_in(tmp_path)
    assert not from_cache(again)
    assert "is damaged; it is compiled again" in caplog.text
    for a, b in zip(expected, outputs(again), strict=True):
        np.testing.assert_array_equal(a, b)
    assert from_cache(compiled_in(tmp_path))


@pytest.mark.parametrize("content", [None, b"", b"\xff\x00"])
def test_an_entry_without_its_digest_is_compiled_again(tmp_path: Path, content: bytes | None) -> None:
    compiled_in(tmp_path)
    (seal,) = tmp_path.glob("*/*.sha256")
    seal.unlink()
    if content is not None:
        seal.write_bytes(content)
    assert not from_cache(compiled_in(tmp_path))


def test_what_is_beyond_the_bound_goes(tmp_path: Path) -> None:
    compiled_in(tmp_path)
    CompiledModels(tmp_path, most_bytes=10)
    assert not [*tmp_path.glob("*/*.blob"), *tmp_path.glob("*/*.sha256")]


def test_a_folder_that_cannot_be_used_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    assert outputs(compiled_in(tmp_path / "file" / "cache"))
    assert caplog.text.count("continuing without") == 1


def test_a_model_that_cannot_be_compiled_is_no_fault_of_the_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    models = CompiledModels(tmp_path)
    with caplog.at_level(logging.WARNING), pytest.raises(RuntimeError):
        models.compile(openvino_core(), inception_like().ov_model, "NO_SUCH_DEVICE", CONFIG)
    assert "continuing without" not in caplog.text


def test_the_environment_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled._opened.cache_clear()
    monkeypatch.setenv("PLACEIT_CACHE", str(tmp_path))
    for value in ("", "0"):
        monkeypatch.setenv(VARIABLE, value)
        compile_model(inception_like().ov_model, DEVICE, "f32")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv(VARIABLE, "1")
    assert not from_cache(compile_model(inception_like().ov_model, DEVICE, "f32"))
    assert from_cache(compile_model(inception_like().ov_model, DEVICE, "f32"))
    assert list(tmp_path.glob("compiled/*/*.sha256"))
    monkeypatch.setenv(VARIABLE, str(tmp_path / "other"))
    compile_model(inception_like().ov_model, DEVICE, "f32")
    assert list((tmp_path / "other").glob("*/*.blob"))
    counted = compile_model(inception_like().ov_model, DEVICE, "f32", PERF_COUNT=True)
    assert isinstance(counted, ov.CompiledModel)
    assert len(list((tmp_path / "other").glob("*/*.blob"))) == 1
