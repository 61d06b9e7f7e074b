"""Models that come with packages."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks._architectures.sample import Sample
from placeit.core.errors import UsageError

__all__ = ["LIGHT", "PACKAGED", "Packaged"]

Inputs = Callable[[], Mapping[str, NDArray[np.generic]]]


@dataclass(frozen=True)
class Packaged:
    """A model file of an installed package. Calling it returns the file.

    Attributes:
        package: name of the package.
        file: path of the file in the package.
        shapes: sizes of the inputs that the file leaves open.
        inputs: meaningful inputs; None for random inputs.
    """

    package: str
    file: str
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    inputs: Inputs | None = None

    def __call__(self, folder: Path | None = None) -> Sample:  # noqa: ARG002 (nothing is written)
        """Find the file. Raises UsageError if the package is not installed."""
        found = importlib.util.find_spec(self.package)
        if found is None or found.origin is None:
            raise UsageError(
                f"The model {Path(self.file).name} comes with the package {self.package}, which is not installed: "
                f"pip install {self.package.replace('_', '-')}."
            )
        return Sample(Path(found.origin).parent / self.file, self.shapes, None if self.inputs is None else self.inputs())


def _voice(*, rate: bool = True) -> dict[str, NDArray[np.generic]]:
    """Make a second of a tone that swells, cut to the length that silero-vad takes, with its state and sampling rate."""
    at = np.arange(576) / 16000
    sound = (0.4 * np.sin(2 * np.pi * 220 * at) * at / at[-1])[None].astype(np.float32)
    given: dict[str, NDArray[np.generic]] = {"input": sound, "state": np.zeros((2, 1, 128), np.float32)}
    return given | {"sr": np.array(16000, np.int64)} if rate else given


_VOICE = {"input": (1, 576), "state": (2, 1, 128), "sr": ()}
_SILERO, _OCR = "silero_vad", "rapidocr_onnxruntime"

PACKAGED: Mapping[str, Packaged] = {
    "text_detector": Packaged(_OCR, "models/ch_PP-OCRv4_det_infer.onnx", {"x": (1, 3, 320, 320)}),
    "text_recognizer": Packaged(_OCR, "models/ch_PP-OCRv4_rec_infer.onnx", {"x": (1, 3, 48, 320)}),
    "text_direction": Packaged(_OCR, "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": (1, 3, 48, 192)}),
    "file_type": Packaged("magika", "models/standard_v3_3/model.onnx", {"bytes": (1, 2048)}),
    "voice_if": Packaged(_SILERO, "data/silero_vad.onnx", _VOICE, _voice),
    "voice_rate": Packaged(_SILERO, "data/silero_vad_16k_op15.onnx", _VOICE, _voice),
    "voice_half": Packaged(_SILERO, "data/silero_vad_half.onnx", dict(list(_VOICE.items())[:2]), lambda: _voice(rate=False)),
    "voice_static": Packaged(_SILERO, "data/silero_vad_openvino_16k.onnx", {}, lambda: _voice(rate=False)),
    "voice_sequence": Packaged(_SILERO, "data/silero_vad_16k_sequence.onnx", {"input": (4, 576)}),
}
"""Small real models, trained."""

LIGHT: Mapping[str, Packaged] = {
    f"light_{name}": Packaged("onnx", f"backend/test/data/light/light_{name}.onnx")
    for name in ("densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet")
}
"""Graphs of published networks, IR version 3, with one value in all weights of a kind."""
