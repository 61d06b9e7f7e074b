"""A model of some kind with its inputs, and functions that write modules of PyTorch as files."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from examples.models import calibrate, randomise, write_onnx

__all__ = ["Make", "Sample", "exported", "program"]

Make: TypeAlias = Callable[[Path], "Sample"]
"""Writes a model into a folder that holds nothing else. All random draws are from fixed seeds."""


@dataclass(frozen=True)
class Sample:
    """A model file.

    Attributes:
        path: the file.
        shapes: sizes of the inputs that the file leaves open, by name.
        inputs: meaningful inputs, by name; None for inputs that placeit draws.
    """

    path: Path
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    inputs: Mapping[str, NDArray[np.generic]] | None = None


def _built(
    module: Callable[[], nn.Module], inputs: Callable[[], Mapping[str, Tensor]]
) -> tuple[nn.Module, Mapping[str, Tensor]]:
    """Make a module in evaluation mode, with weights drawn anew, and its inputs. The caller's random state is not touched."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        made, given = module(), inputs()
        randomise(made)
        calibrate(made, given.values())
    return made.eval(), given


def exported(
    module: Callable[[], nn.Module],
    inputs: Callable[[], Mapping[str, Tensor]],
    outputs: Sequence[str],
    *,
    axes: Mapping[str, Mapping[int, str]] | None = None,
    half: bool = False,
    given: bool = False,
) -> Make:
    """Return a function that writes a module as ONNX.

    Args:
        module: makes the module.
        inputs: examples of its arguments, in their order, by the names that the file gives them.
        outputs: names of its outputs.
        axes: dimensions that the file leaves open: a name by number, by input.
        half: whether weights and values are float16.
        given: whether the model only makes sense of these inputs.
    """

    def make(folder: Path) -> Sample:
        made, examples = _built(module, inputs)
        if half:
            made = made.half()
            examples = {name: value.half() if value.is_floating_point() else value for name, value in examples.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the tracer warns of values that are constant here
            path = write_onnx(made, folder / "model.onnx", examples, outputs, axes=axes)
        arrays = {name: value.numpy() for name, value in examples.items()}
        shapes = {name: arrays[name].shape for name in axes or {}}
        return Sample(path, shapes, arrays if given else None)

    return make


def program(module: Callable[[], nn.Module], inputs: Callable[[], Mapping[str, Tensor]]) -> Make:
    """Return a function that writes a module as a program of PyTorch, ``.pt2``."""

    def make(folder: Path) -> Sample:
        made, examples = _built(module, inputs)
        path = folder / "model.pt2"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.export.save(torch.export.export(made, tuple(examples.values())), path)
        return Sample(path)

    return make
