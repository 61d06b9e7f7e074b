"""ONNX files: read by OpenVINO, or else by ONNX Runtime."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from placeit.backends.base import Model
from placeit.backends.openvino.inputs import OpenSizesError, Sizes
from placeit.backends.openvino.model import OpenVinoModel
from placeit.backends.openvino.reader import UNKNOWN_OPS, check_readable, read
from placeit.core.cluster import Cluster
from placeit.core.errors import DeviceError, ModelError
from placeit.core.extras import install
from placeit.devices.onnxruntime import has_onnxruntime

__all__ = ["for_onnxruntime", "load"]

_TOO_LARGE = "more memory than is available"  # no model for any runtime


def load(
    path: str | Path,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    batch: int | None = None,
    sample_shapes: Mapping[str, Sequence[int]] | None = None,
) -> Model:
    """Read an ONNX file by OpenVINO; if that cannot, and ONNX Runtime can, for the devices of ONNX Runtime alone.

    Args:
        path: the file.
        input_shapes: sizes by input name, for inputs that the file leaves open, or to change.
        batch: the first size of every input where the file leaves it open.
        sample_shapes: shapes of the inputs that the model is to run on, by name: the sizes where all else leaves them open.

    Raises:
        UsageError: a sample does not fit an input with open sizes.
        FileError: the file is missing or cannot be read.
        ModelError: it holds no model, a damaged one, or one that neither can read; or a size is left open.
    """
    path, sizes = Path(path), Sizes.of(input_shapes, batch, sample_shapes)
    check_readable(path)
    try:
        return read(path, sizes)
    except OpenSizesError:
        raise
    except ModelError as error:
        if _TOO_LARGE in str(error):
            raise
        if not has_onnxruntime():
            hint = f" ONNX Runtime may be able to run it: install it with `{install('ort')}`, and give -d ort:CPU."
            raise ModelError(f"{error}{hint if UNKNOWN_OPS in str(error) else ''}") from error.__cause__
        from placeit.backends.onnx.model import read_onnx

        why = str(error).removeprefix(f"Cannot read a model from {path}: ").removeprefix(f"{path}: ")
        why = why.replace(UNKNOWN_OPS, "it does not know the ops ").rstrip(".")
        try:
            return read_onnx(path, sizes, why)
        except OpenSizesError:
            raise
        except (ModelError, DeviceError, ValueError, TypeError, LookupError) as other:
            # of a damaged file, OpenVINO says where the damage is
            said = str(other).removeprefix(f"Cannot read a model from {path}: ")
            more = f" Nor does ONNX Runtime: {said}" if UNKNOWN_OPS in str(error) and isinstance(other, ModelError) else ""
            raise ModelError(f"{error}{more}") from error.__cause__


def for_onnxruntime(model: OpenVinoModel, cluster: Cluster, graph: str = "") -> Model:
    """Return a model that OpenVINO has read for a cluster in which ONNX Runtime drives devices.

    Where it drives all of them, and the ONNX file has no tensors at some borders of OpenVINO's graph, the graph is the file's
    own; on a single device the model is run whole, if no other graph is wanted.

    Raises:
        DeviceError: the model does not come from an ONNX file, or the file is not there any more.
    """
    from placeit.backends.onnx.model import read_onnx
    from placeit.backends.onnx.segments import with_onnx

    joined = with_onnx(model)
    if joined.parts.covers or any(device.kind != "ort" for device in cluster.devices):
        return joined
    if len(cluster) == 1 and graph in ("", model.graph.hash):
        return replace(joined.whole_file("onnx"), together=(model.graph.names,))
    with contextlib.suppress(ModelError):
        own = read_onnx(model.path, Sizes({spec.name: spec.shape for spec in model.inputs}))
        return own if model.given is None else own.with_inputs(model.given)
    return joined
