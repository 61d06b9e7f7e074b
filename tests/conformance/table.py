"""Kinds of devices, places, features, and the cells in which a feature is an error instead, with the reason that users get."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import pytest

from placeit.core.cluster import Cluster
from placeit.devices.host import allowed_cores
from placeit.testing.features import FEATURES, Models, onnx_models
from tests.conformance import stand_ins

__all__ = ["CELLS", "KINDS", "PLACES", "Cell", "Kind", "cell"]

HERE, NODE = PLACES = ("this process", "a node")
ONE, OTHER = allowed_cores()[0], allowed_cores()[-1]

_TRIED_OFTEN = "OpenVINO, core set"
_OWN_MACHINE = "can be used on their own machine only"
_NO_NVIDIA_GPU = "finds no NVIDIA GPU 'cuda:0' on this machine"
_NO_NPU = "There is no device 'NPU' on this machine"
_TORCH_ONLY = "only. A warning has the reason"
_STREAM_SIZES = "runs a model at one size"


@dataclass(frozen=True)
class Kind:
    """A row of the table.

    Attributes:
        label: its name in the page.
        here: two devices of this process, at least one of which is of this kind; or a function that returns a cluster of them.
        there: a device of the kind on the node, without the node's name.
        models: writes the models that the kind runs.
        precisions: the precisions that it computes in, of ``f32`` and ``f16``.
        marks: of its tests.
        prepared: a context that provides hardware that is missing.
        stands_in: what stands in for missing hardware; empty if the hardware is there.
        reasons: by place and feature, a part of the error that users get where the feature does not work.
    """

    label: str
    here: tuple[str, str] | Callable[[], Cluster]
    there: str
    models: Callable[[Path], Models] = onnx_models
    precisions: tuple[str, ...] = ("f32", "f16")
    marks: tuple[pytest.MarkDecorator, ...] = ()
    prepared: Callable[[], AbstractContextManager[object]] = nullcontext
    stands_in: str = ""
    reasons: Mapping[tuple[str, str], str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """A feature of a kind in a place; ``reason`` is a part of the error where it does not work, else empty."""

    kind: Kind
    place: str
    feature: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.kind.label}, {self.place}, {self.feature}"

    @property
    def marks(self) -> tuple[pytest.MarkDecorator, ...]:
        """The marks of its test: a session on a node takes seconds to open, so most cells of nodes are not tested each time."""
        if self.kind.marks or self.place == HERE or self.feature == "run":
            return self.kind.marks
        return (pytest.mark.slow if self.kind.label == _TRIED_OFTEN else pytest.mark.nightly,)


def _reasons(on_nodes: str = "", **reasons: str) -> dict[tuple[str, str], str]:
    """Return the reasons of a kind; in the names of features, underscores stand for spaces.

    Args:
        on_nodes: why it is not on nodes at all.
        **reasons: why features do not work, in both places.
    """
    named = {name.replace("_", " "): reason for name, reason in reasons.items()}
    here = {(HERE, feature): reason for feature, reason in named.items()}
    there = dict.fromkeys(FEATURES, on_nodes) if on_nodes else named
    return here | {(NODE, feature): reason for feature, reason in there.items()}


KINDS = (
    Kind("OpenVINO, whole CPU", ("CPU", f"CPU@{ONE}"), "CPU", reasons=_reasons()),
    Kind(_TRIED_OFTEN, (f"CPU@{ONE}", f"CPU@{OTHER}"), f"CPU@{ONE}", reasons=_reasons()),
    Kind(
        "OpenVINO's throughput mode",
        ("throughput:CPU", f"CPU@{ONE}"),
        "throughput:CPU",
        reasons=_reasons(_OWN_MACHINE),
    ),
    Kind(
        "Intel GPU",
        ("GPU.0", "GPU.1"),
        "GPU.0",
        marks=(pytest.mark.intel_gpu,),
        stands_in="OpenVINO's plugin on emulated GPUs",
        reasons=_reasons(),
    ),
    Kind(
        "NPU",
        ("NPU", f"CPU@{ONE}"),
        "NPU",
        precisions=("f16",),
        prepared=stand_ins.npu,
        stands_in="recorded answers of a plugin",
        reasons=_reasons(_NO_NPU),
    ),
    Kind(
        "ONNX Runtime, CPU",
        (f"ort:CPU@{ONE}", f"ort:CPU@{OTHER}"),
        f"ort:CPU@{ONE}",
        precisions=("f32",),
        reasons=_reasons(),
    ),
    Kind(
        "ONNX Runtime, NVIDIA GPU",
        stand_ins.ort_gpus,
        "ort:cuda:0",
        precisions=("f32",),
        prepared=stand_ins.streams,
        stands_in="PyTorch's CPU with streams",
        reasons=_reasons(
            _NO_NVIDIA_GPU,
            sequences="ONNX Runtime keeps no state on GPUs",
            sequences_of_a_bundle="ONNX Runtime keeps no state on GPUs",
            open_sizes=_STREAM_SIZES,
        ),
    ),
    Kind(
        "PyTorch, CPU",
        (f"torch:CPU@{ONE}", f"torch:CPU@{OTHER}"),
        f"torch:CPU@{ONE}",
        models=stand_ins.torch_models,
        reasons=_reasons(),
    ),
    Kind(
        "PyTorch and OpenVINO, CPU",
        (f"torch:CPU@{ONE}", f"openvino:CPU@{OTHER}"),
        f"openvino:CPU@{ONE}",
        models=stand_ins.torch_models,
        reasons=_reasons(sequences=_TORCH_ONLY, sequences_of_a_bundle=_TORCH_ONLY, open_sizes=_TORCH_ONLY),
    ),
    Kind(
        "PyTorch's compiler, CPU",
        (f"inductor:CPU@{ONE}", f"torch:CPU@{OTHER}"),
        f"inductor:CPU@{ONE}",
        models=stand_ins.torch_models,
        marks=(pytest.mark.slow, pytest.mark.timeout(1800)),  # segments are compiled
        reasons=_reasons(_OWN_MACHINE, open_sizes=_STREAM_SIZES),
    ),
    Kind(
        "PyTorch, NVIDIA GPU",
        stand_ins.torch_gpus,
        "torch:cuda:0",
        models=stand_ins.torch_models,
        prepared=stand_ins.streams,
        stands_in="PyTorch's CPU with streams",
        reasons=_reasons(
            _NO_NVIDIA_GPU,
            sequences="streams of an accelerator, which keep no state from one request to the next",
            sequences_of_a_bundle="streams of an accelerator, which keep no state from one request to the next",
            open_sizes=_STREAM_SIZES,
        ),
    ),
    Kind(
        "a plug-in's kind",
        ("sleep:0", "sleep:1"),
        "sleep:0",
        prepared=stand_ins.plug_in,
        reasons=_reasons(),
    ),
)

CELLS = tuple(
    Cell(kind, place, feature, kind.reasons.get((place, feature), ""))
    for kind, place, feature in product(KINDS, PLACES, FEATURES)
)


def cell(kind: Kind, place: str, feature: str) -> Cell:
    """Return a cell of the table."""
    return next(one for one in CELLS if (one.kind, one.place, one.feature) == (kind, place, feature))
