"""Conversion of models between file formats."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from placeit.backends.base import Model
from placeit.backends.openvino.ir import write_ir
from placeit.core.errors import ModelError, UsageError

if TYPE_CHECKING:
    from placeit.backends.torch.model import TorchModel

__all__ = ["convert"]


@runtime_checkable
class _Program(Protocol):
    """A model that can be converted to a PyTorch program, such as a tensor program."""

    def as_module(self) -> TorchModel:
        """Return the model as a PyTorch program."""
        ...


def convert(model: Model, path: Path) -> None:
    """Write a whole model as ONNX (``.onnx``) or OpenVINO IR (``.xml``, its weights beside it as ``.bin``).

    A PyTorch model or a tensor program can be written in both formats. A model that OpenVINO has read can be written as IR
    only.

    Raises:
        UsageError: the path has another suffix.
        ModelError: the model cannot be written in this format.
        FileError: the file cannot be written.
    """
    from placeit.backends.openvino.model import OpenVinoModel

    if path.suffix not in (".onnx", ".xml"):
        raise UsageError(f"Cannot write {path}: a model is written as ONNX (.onnx) or OpenVINO IR (.xml).")
    if isinstance(model, OpenVinoModel):
        if path.suffix == ".onnx":
            raise ModelError(f"OpenVINO reads {model.path}, and it cannot write ONNX files: write an IR (.xml).")
        write_ir(model.ov_model, path)
        return
    from placeit.backends.torch import export
    from placeit.backends.torch.model import TorchModel

    program = model.as_module() if isinstance(model, _Program) else model
    if not isinstance(program, TorchModel):
        raise ModelError(f"{model.path} has a format that placeit cannot convert to another one.")
    (export.write_onnx if path.suffix == ".onnx" else export.write_ir)(program, path)
