"""Load ONNX files with OpenVINO, or else with ONNX Runtime."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from placeit.backends.base import Model, fields_of
from placeit.backends.onnx.whole import FromOnnxFile
from placeit.backends.openvino.inputs import OpenSizesError, Sizes
from placeit.backends.openvino.last_logits import LogitsOption
from placeit.backends.openvino.model import OpenVinoModel
from placeit.backends.openvino.reader import UNKNOWN_OPS, check_readable, read
from placeit.backends.openvino.state import StateOption
from placeit.backends.openvino.weights import own_weights
from placeit.core.cluster import Cluster
from placeit.core.errors import DeviceError, ModelError, NoRoomError
from placeit.core.extras import install
from placeit.core.sizes import SizeRange
from placeit.devices.kinds import kind_of
from placeit.devices.onnxruntime import has_onnxruntime, onnxruntime_failure
from placeit.devices.openvino import explaining, supported_nodes

__all__ = ["OpenVinoOnnxModel", "load"]

_TOO_LARGE = "more memory than is available"  # text in errors about a model that no runtime can read


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class OpenVinoOnnxModel(FromOnnxFile):
    """An ONNX file that OpenVINO has read. ONNX Runtime reads it as well for clusters in which it drives devices."""

    @cached_property
    def _weights_copied(self) -> bool:
        """True; the first access copies mapped weights, since OpenVINO uses them from now on, and the file may change."""
        if self.mapped:
            own_weights(self.ov_model)
        return True

    def prepared(self, cluster: Cluster, graph: str = "") -> Model:
        """Return the model, read again for ONNX Runtime if that drives one of the devices. Raises DeviceError."""
        formats = {form for device in cluster.devices for form in kind_of(device).formats}
        if formats != {"onnx"}:
            _ = self._weights_copied
        if "onnx" not in formats:
            return self
        from placeit.backends.onnx.segments import for_onnxruntime

        return for_onnxruntime(self, cluster, graph)


def load(
    path: str | Path,
    *,
    input_shapes: Mapping[str, Sequence[int | str | SizeRange]] | None = None,
    batch: int | None = None,
    sample_shapes: Mapping[str, Sequence[int]] | None = None,
    state: StateOption = None,
    logits: LogitsOption = "last",
    context: int | None = None,
    trust: bool = False,
) -> Model:
    """Read an ONNX file with OpenVINO or, if OpenVINO cannot read or compile it, with ONNX Runtime, for its devices only.

    The arguments are as for :func:`placeit.backends.openvino.reader.load`. In addition, ``trust`` tells whether links of
    external weights may lead to other folders of the Hugging Face cache that the file is in.

    Raises:
        UsageError: a sample does not fit an input with open sizes.
        FileError: the file is missing or cannot be read.
        ModelError: the file holds no model, a damaged one, or one that neither runtime can read; or a size is left open.
    """
    path, sizes = Path(path), Sizes.of(input_shapes, batch, sample_shapes, context)
    check_readable(path, trust=trust)
    try:
        model = read(path, sizes, state, logits)
    except OpenSizesError:
        raise
    except ModelError as error:
        is_unknown = UNKNOWN_OPS in str(error)
        if _TOO_LARGE in str(error) or isinstance(state, Mapping):
            raise
        if not has_onnxruntime():
            hint = f" ONNX Runtime may be able to run it: install it with `{install('ort')}`, and give -d ort:CPU."
            hint = f" ONNX Runtime cannot be used: {why}." if (why := onnxruntime_failure()) else hint
            raise ModelError(f"{error}{hint if is_unknown else ''}") from error.__cause__
        from placeit.backends.onnx.reading import read_onnx

        why = str(error).removeprefix(f"Cannot read a model from {path}: ").removeprefix(f"{path}: ")
        why = why.replace(UNKNOWN_OPS, "it does not know the ops ").rstrip(".")
        try:
            return read_onnx(path, sizes, f"OpenVINO cannot read it: {why}")
        except OpenSizesError:
            raise
        except (ModelError, DeviceError, ValueError, TypeError, LookupError) as other:
            # for a damaged file, OpenVINO says where the damage is
            reason = str(other).removeprefix(f"Cannot read a model from {path}: ")
            hint = f" Nor does ONNX Runtime: {reason}" if is_unknown and isinstance(other, ModelError) else ""
            raise ModelError(f"{error}{hint}") from error.__cause__
    if has_onnxruntime() and not model.states and (why := _why_not_compiled(model)):
        from placeit.backends.onnx.reading import read_onnx

        with contextlib.suppress(ModelError, DeviceError):
            return read_onnx(path, sizes, why)
    return OpenVinoOnnxModel(**fields_of(model))


def _why_not_compiled(model: OpenVinoModel) -> str:
    """Return why OpenVINO's CPU plugin cannot compile the whole model; empty if it can."""
    try:
        with explaining("OpenVINO cannot compile it"):
            supported_nodes(model.ov_model, "CPU")
    except NoRoomError:  # the fault of the machine, not of the model
        return ""
    except DeviceError as error:
        return str(error).rstrip(".")
    return ""
