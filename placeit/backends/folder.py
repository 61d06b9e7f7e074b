"""Folders of model hubs: a model file with the files of its tokenizer."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["NAMES", "TOKENIZER", "in_folder", "is_folder", "model_in", "tokenizer_folder"]

TOKENIZER = "tokenizer.json"
"""Name of the file of a tokenizer."""

NAMES = ("openvino_model.xml", "openvino/openvino_model.xml", "model.onnx", "onnx/model.onnx")
"""Files of models in such folders; the first that exists is taken."""


def model_in(folder: Path) -> Path | None:
    """Return the model file of a folder: a file with a name that optimum and hubs use, else a GGUF file, else None."""
    return next((folder / name for name in NAMES if (folder / name).is_file()), min(folder.glob("*.gguf"), default=None))


def is_folder(path: str | Path) -> bool:
    """Return whether a path is a folder; False for a path that the system refuses, because it is too long for example."""
    return os.path.isdir(path)  # noqa: PTH112 (Path.is_dir raises for some paths)


def in_folder(path: Path) -> Path:
    """Return the model file if a path is a folder with a model, else the path itself."""
    return (model_in(path) if is_folder(path) else None) or path


def tokenizer_folder(path: Path) -> Path:
    """Return the folder with the tokenizer of a model file: the file's folder, or its parent if the tokenizer is there."""
    above = path.parent.parent
    in_subfolder = any(above / name == path for name in NAMES) and not (path.parent / TOKENIZER).is_file()
    return above if in_subfolder and (above / TOKENIZER).is_file() else path.parent
