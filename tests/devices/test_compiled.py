"""Compiled models on disk: found again, damaged ones recognised, and nothing that depends on the folder."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from placeit import _core
from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.devices import compiled
from placeit.devices.compiled import VARIABLE, CompiledModels, is_kept
from placeit.devices.host import allowed_cores
from placeit.devices.openvino import compile_model, compile_properties, openvino_core, target_name
from tests.small_models import inception_like, random_model

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
    CompiledModels(tmp_path, max_bytes=10)
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


@pytest.fixture
def _slow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let the CPU pass for a device that compiles slowly."""
    monkeypatch.setenv("PLACEIT_CACHE", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(compiled, "compiles_slowly", lambda _: True)


@pytest.mark.usefixtures("_slow")
def test_what_compiles_slowly_is_kept_unless_that_is_turned_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (compile_model(inception_like().ov_model, DEVICE, "f32", PERF_COUNT=True) for _ in range(2))
    assert (from_cache(first), from_cache(second)) == (False, True)
    assert list(tmp_path.glob("compiled/*/*.sha256"))
    monkeypatch.setenv(VARIABLE, "0")
    assert not from_cache(compile_model(inception_like().ov_model, DEVICE, "f32", PERF_COUNT=True))


@pytest.mark.usefixtures("_slow")
def test_what_is_kept_is_known_by_its_structure_device_and_configuration() -> None:
    target, config = target_name(DEVICE), compile_properties(DEVICE, "f32")
    assert not is_kept(target, config, lambda: "a segment")
    compile_model(inception_like().ov_model, DEVICE, "f32", identity="a segment")
    assert is_kept(target, config, lambda: "a segment")
    assert not is_kept(target, config, lambda: "another one")
    assert not is_kept(target, config | {"INFERENCE_NUM_THREADS": 7}, lambda: "a segment")
    compiled._device_key.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "_property", lambda *_: "another driver")
        assert not is_kept(target, config, lambda: "a segment")
    compiled._device_key.cache_clear()
    assert is_kept(target, config, lambda: "a segment")


def test_a_cpu_does_not_compile_slowly() -> None:
    assert not compiled.compiles_slowly("CPU")
    assert not compiled.compiles_slowly("MULTI:CPU")
    assert not compiled.compiles_slowly("NO_SUCH_DEVICE")


def test_a_file_that_was_never_finished_is_replaced_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    compiled_in(tmp_path)
    (blob,) = tmp_path.glob("*/*.blob")
    blob.write_bytes(blob.read_bytes()[:100])
    blob.with_suffix(".sha256").unlink()
    assert not from_cache(compiled_in(tmp_path))
    assert not caplog.text


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    configs = [CONFIG | {"INFERENCE_NUM_THREADS": threads} for threads in (1, 2)]
    for config in configs:
        compiled_in(tmp_path, config)
    for age, blob in enumerate(sorted(tmp_path.glob("*/*.blob"), key=lambda blob: blob.stat().st_mtime)):
        os.utime(blob, (1e9 + age, 1e9 + age))
    assert from_cache(compiled_in(tmp_path, configs[0]))  # which is older, and now the last used
    size = sum(blob.stat().st_size for blob in tmp_path.glob("*/*.blob"))
    CompiledModels(tmp_path, max_bytes=size - 1)
    assert [from_cache(compiled_in(tmp_path, config)) for config in configs] == [True, False]


def test_the_bound_holds_while_files_are_written_and_for_each_of_them(tmp_path: Path) -> None:
    models = CompiledModels(tmp_path)
    models.compile(openvino_core(), inception_like().ov_model, "CPU", CONFIG)
    (blob,) = tmp_path.glob("*/*.blob")
    models = CompiledModels(tmp_path, max_bytes=1.5 * blob.stat().st_size)
    models.compile(openvino_core(), inception_like().ov_model, "CPU", CONFIG | {"INFERENCE_NUM_THREADS": 1})
    assert len([*tmp_path.glob("*/*.blob")]) == len([*tmp_path.glob("*/*.sha256")]) == len([*tmp_path.iterdir()]) == 1
    models = CompiledModels(tmp_path / "small", max_bytes=1000)
    models.compile(openvino_core(), inception_like().ov_model, "CPU", CONFIG)
    assert not [*tmp_path.glob("small/*")]


def test_two_threads_that_want_one_model_compile_it_once(tmp_path: Path) -> None:
    models = CompiledModels(tmp_path)
    with ThreadPoolExecutor(2) as pool:
        made = pool.map(
            lambda _: models.compile(openvino_core(), inception_like().ov_model, "CPU", CONFIG, "a segment"), range(2)
        )
        assert sorted(map(from_cache, made)) == [False, True]


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is in it is run."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    (tmp_path / "link").symlink_to("shared")
    for name in ("shared", "link"):
        caplog.clear()
        assert not from_cache(compiled_in(tmp_path / name))
        assert not from_cache(compiled_in(tmp_path / name))
        assert f"Cannot keep compiled models in {tmp_path / 'shared'}" in caplog.text
    assert list((tmp_path / "shared").iterdir()) == []


def test_only_compiled_models_are_deleted(tmp_path: Path) -> None:
    for folder in ("mine", "0" * 16):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "large.blob").write_bytes(bytes(1000))
    (tmp_path / ("1" * 16)).symlink_to("mine")
    CompiledModels(tmp_path, max_bytes=10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1" * 16, "mine"]
    assert (tmp_path / "mine" / "large.blob").exists()


def test_a_home_folder_that_there_is_not_costs_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, "~nobody-has-this-name/models")
    for _ in range(2):
        assert not is_kept("CPU", {}, lambda: "")
    assert len(caplog.records) == 1
    assert "set HOME" in caplog.text


def test_kernels_of_one_core_are_compiled_for_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    arenas: list[str] = []
    inside = _core.in_arena_of_one

    def noted(library: str, function: Callable[[], Any]) -> Any:
        arenas.append(library)
        return inside(library, function)

    monkeypatch.setattr(_core, "in_arena_of_one", noted)
    model = random_model(0, 3).ov_model
    for cores, expected in (((0,), 1), ((0, 1), 0)):
        compile_model(model, Device("a", address=Address("CPU", cores)), "f32")
        assert len(arenas) == expected
        arenas.clear()


@pytest.mark.parametrize("library", [*Path(ov.__file__).parent.glob("libs/libtbb.so.*"), Path("/no/such/library")])
def test_what_runs_in_an_arena_returns_and_raises_as_ever(library: Path) -> None:
    assert _core.in_arena_of_one(str(library), threading.get_ident) == threading.get_ident()
    with pytest.raises(KeyError, match="no"):
        _core.in_arena_of_one(str(library), lambda: {}["no"])
