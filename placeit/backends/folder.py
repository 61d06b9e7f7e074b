"""Folders with a model as hubs have them: a model file with the files of its tokenizer."""

from __future__ import annotations

from pathlib import Path

__all__ = ["NAMES", "TOKENIZER", "in_folder", "model_in", "tokenizer_folder"]

TOKENIZER = "tokenizer.json"
"""Name of the file of a tokenizer."""

NAMES = ("openvino_model.xml", "openvino/openvino_model.xml", "model.onnx", "onnx/model.onnx")
"""Files of models in such folders; the first that exists is taken."""


def model_in(folder: Path) -> Path | None:
    """Return the model file of a folder: one with a name that optimum and hubs use, or else a GGUF file; None without one."""
    return next((folder / name for name in NAMES if (folder / name).is_file()), min(folder.glob("*.gguf"), default=None))


def in_folder(path: Path) -> Path:
    """Return the model file if a path is a folder with a model, else the path itself."""
    return (model_in(path) if path.is_dir() else None) or path


def tokenizer_folder(path: Path) -> Path:
    """Return the folder with the tokenizer of a model file: its own, or the one above if that is where hubs keep it."""
    above = path.parent.parent
    kept_above = any(above / name == path for name in NAMES) and not (path.parent / TOKENIZER).is_file()
    return above if kept_above and (above / TOKENIZER).is_file() else path.parent
