"""PyTorch programs as ONNX and as OpenVINO IR, for the runtimes that read those."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import openvino
import torch

from placeit.backends.openvino import FAILURES
from placeit.backends.torch import Model
from placeit.backends.torch_program import quiet
from placeit.errors import ModelError
from placeit.files import replacing

__all__ = ["write_ir", "write_onnx"]

_OPSET = 17


def write_onnx(model: Model, path: Path) -> None:
    """Write a PyTorch model as ONNX (opset 17), with the names of its inputs and outputs.

    PyTorch's older exporter does it, which needs nothing but PyTorch itself.

    Raises:
        ModelError: the exporter has no ONNX op for something; its message names it.
        FileError: the file cannot be written.
    """
    examples = model.random_inputs()
    args, kwargs = model.arguments({name: torch.from_numpy(value) for name, value in examples.items()})
    with replacing(path) as temporary, _explaining(f"Cannot write {model.path} as ONNX"), torch.no_grad():
        torch.onnx.export(
            model.program.module(),
            args,
            str(temporary),
            kwargs=kwargs,
            input_names=[spec.name for spec in model.inputs],
            output_names=[spec.name for spec in model.outputs],
            opset_version=_OPSET,
            dynamo=False,
            training=torch.onnx.TrainingMode.PRESERVE,  # an exported program has one mode only, and cannot change it
        )


def write_ir(model: Model, path: Path) -> None:
    """Write a PyTorch model as OpenVINO IR (``.xml``, its weights beside it as ``.bin``), with its names and sizes.

    Raises:
        ModelError: OpenVINO has no op for something; its message names it.
        FileError: the files cannot be written.
    """
    weights = path.with_suffix(".bin")
    shapes = {spec.name: list(spec.shape) for spec in model.inputs}
    with _explaining(f"Cannot convert {model.path} to OpenVINO IR"), torch.no_grad():
        converted = openvino.convert_model(model.program)
        for parameter in converted.get_parameters():
            if not parameter.output(0).get_names() & shapes.keys():
                converted.remove_parameter(parameter)  # a number that the program was exported for, and is part of it
        converted.reshape(shapes)
        for spec, port in zip(model.outputs, converted.outputs, strict=True):
            port.get_tensor().set_names({spec.name})
    with replacing(weights) as temporary_weights, replacing(path) as temporary, _explaining(f"Cannot write {path}"):
        openvino.serialize(converted, str(temporary), str(temporary_weights))


@contextlib.contextmanager
def _explaining(what: str) -> Iterator[None]:
    """Turn what a converter raises into a ModelError of one paragraph, and keep back what it says besides."""
    logger = logging.getLogger()
    level, filters, handlers = logger.level, logger.filters[:], logger.handlers[:]
    try:
        # the ONNX exporter prints the whole program before it raises an error
        with quiet(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    except (*FAILURES, AttributeError) as error:
        lines = [line.strip("- ") for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        reason = next((line for line in lines if "not supported" in line), lines[-1])
        raise ModelError(f"{what}: {reason}") from error
    finally:
        # OpenVINO's converter changes the root logger, and leaves it changed when it fails
        logger.setLevel(level)
        logger.filters[:], logger.handlers[:] = filters, handlers
