"""Files of PyTorch programs that are missing, damaged, of a GPU, or harmful."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from placeit.backends.torch.model import load
from placeit.core.errors import FileError, ModelError
from tests.torch_models import X


@pytest.mark.parametrize("content", [b"", b"no archive", None])
def test_a_file_that_holds_no_program_is_a_model_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "bad.pt2"
    if content is None:
        torch.save(nn.Linear(2, 2).state_dict(), path)
    else:
        path.write_bytes(content)
    with pytest.raises(ModelError, match=r"bad\.pt2: it is damaged, or no program that.*torch\.export\.save\("):
        load(path)


def rewritten(path: Path, old: bytes, new: bytes, where: str) -> Path:
    """Write a program whose files of some name are changed."""
    torch.export.save(torch.export.export(nn.Linear(3, 4), (X,)), path)
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in files.items():
            archive.writestr(name, data.replace(old, new) if where in name else data)
    return path


def test_a_program_of_a_gpu_is_to_be_exported_on_the_cpu(tmp_path: Path) -> None:
    path = rewritten(tmp_path / "gpu.pt2", b'"type": "cpu"', b'"type": "cuda"', "weights_config")
    if torch.cuda.is_available():
        pytest.skip("needs a machine without an NVIDIA GPU")
    with pytest.raises(ModelError, match=r"gpu\.pt2: it was exported on a GPU.*module\.cpu\(\)"):
        load(path)


def test_a_damaged_program_is_a_model_error(tmp_path: Path) -> None:
    for where in ("weights_config", "model.json", "weight_0"):
        with pytest.raises(ModelError, match=r"bad\.pt2: it is damaged"):
            load(rewritten(tmp_path / "bad.pt2", b"", b"\xff", where))


def test_a_missing_file_is_a_file_error(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"none\.pt2"):
        load(tmp_path / "none.pt2")


class Harmful:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.path, "ran")


def test_nothing_in_a_file_is_unpickled_but_tensors(tmp_path: Path) -> None:
    path, harm = tmp_path / "harmful.pt2", tmp_path / "harm"
    torch.export.save(torch.export.export(nn.Linear(3, 4), (X,)), path)
    stream = io.BytesIO()
    torch.save((Harmful(harm),), stream, pickle_module=pickle)
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    (examples,) = (name for name in files if "sample_inputs" in name)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in files.items():
            archive.writestr(name, stream.getvalue() if name == examples else data)
    with pytest.raises(ModelError):
        load(path)
    assert not harm.exists()
