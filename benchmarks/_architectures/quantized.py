"""Models in shorter types, made from other models by ONNX Runtime's tools."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from benchmarks._architectures.sample import Make, Sample
from placeit.core.telemetry import import_onnxruntime

__all__ = ["dynamic_int8", "half_of", "static_int8"]

_CALIBRATING = 4  # number of inputs to calibrate on


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    import_onnxruntime()  # before its tools, which import it
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


class _Drawn:
    """Inputs to calibrate on."""

    def __init__(self, path: Path) -> None:
        self._random, self._left = np.random.default_rng(0), _CALIBRATING
        self._shapes = {
            value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in onnx.load(path).graph.input
        }

    def get_next(self) -> dict[str, NDArray[np.float32]] | None:
        self._left -= 1
        if self._left < 0:
            return None
        return {name: self._random.standard_normal(shape).astype(np.float32) for name, shape in self._shapes.items()}


def static_int8(make: Make) -> Make:
    """Return a function that makes a model in ``int8`` with ``QuantizeLinear`` and ``DequantizeLinear``, scales by channel."""

    def write(source: Path, path: Path) -> None:
        from onnxruntime.quantization import QuantFormat, quantize_static  # noqa: TID251
        from onnxruntime.quantization.shape_inference import quant_pre_process  # noqa: TID251

        prepared = path.with_name("prepared.onnx")
        quant_pre_process(source, prepared, skip_symbolic_shape=True)
        quantize_static(prepared, path, _Drawn(prepared), quant_format=QuantFormat.QDQ, per_channel=True)

    return _written(make, "int8.onnx", write)


def dynamic_int8(make: Make) -> Make:
    """Return a function that makes a model with weights in ``int8`` and with values that are quantised at run time."""

    def write(source: Path, path: Path) -> None:
        from onnxruntime.quantization import quantize_dynamic  # noqa: TID251

        quantize_dynamic(source, path)

    return _written(make, "int8.onnx", write)


def half_of(make: Make) -> Make:
    """Return a function that makes a model with weights in float16 that takes and returns float32."""

    def write(source: Path, path: Path) -> None:
        from onnxruntime.transformers.float16 import convert_float_to_float16  # noqa: TID251

        onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True), path)

    return _written(make, "half.onnx", write)


def _written(make: Make, name: str, write: Callable[[Path, Path], None]) -> Make:
    """Return a function that makes a model, and from it another one for the same inputs, under a name."""

    def made(folder: Path) -> Sample:
        sample, path = make(folder), folder / name
        with _quiet():
            write(sample.path, path)
        return Sample(path, sample.shapes, sample.inputs)

    return made
