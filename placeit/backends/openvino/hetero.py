"""Export a placement for use without placeit: an OpenVINO IR in which every node has an affinity."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from placeit.backends.openvino.graph import constant_nodes
from placeit.backends.openvino.ir import write_ir
from placeit.backends.openvino.model import OpenVinoModel
from placeit.core.errors import FileError, PlacementError
from placeit.core.telemetry import import_openvino
from placeit.devices.openvino import openvino_core

__all__ = ["HOW_TO_RUN", "export_hetero"]

openvino = import_openvino()

_KEY = "user_dataaffinity"
"""The key that OpenVINO writes to a file as ``<user_data name="affinity">`` and reads back; a plain "affinity" is lost."""

HOW_TO_RUN = f"""\
core = openvino.Core()
model = core.read_model("{{path}}")
for node in model.get_ordered_ops():
    info = node.get_rt_info()
    info["affinity"] = info["{_KEY}"].astype(str)
compiled = core.compile_model(model, "{{device}}")
"""
"""Python that runs an exported model without placeit; fill in ``path`` and ``device`` with ``str.format``."""

_HETERO_DEVICE = re.compile(r"[A-Z][A-Z0-9_]*(\.\w+)?")


def export_hetero(
    model: OpenVinoModel, placement: Mapping[str, str], path: str | Path, *, devices: Mapping[str, str] | None = None
) -> str:
    """Write a model as OpenVINO IR whose nodes have their device as affinity, and return the device to compile it for.

    In a file, OpenVINO keeps the affinity of a node as user data, which its ``HETERO`` device ignores. :data:`HOW_TO_RUN` shows
    how to pass it on. ``HETERO`` refuses a model in which only some nodes have an affinity, so constants get the affinity of
    an op that reads them. It runs its sub-models one after the other: branches on two devices do not overlap, as they do in
    placeit. The file is read back and its affinities are compared before it is moved into place.

    Args:
        model: the model.
        placement: device name by op name; every op of ``model.graph``.
        path: the ``.xml`` to write; the weights go beside it as ``.bin``.
        devices: OpenVINO's device name for each name that OpenVINO does not know (``{"CPU@0": "CPU"}``).

    Raises:
        PlacementError: the placement does not cover the model, or names an op that does not exist or a device that OpenVINO
            does not have.
        FileError: the files cannot be written.
    """
    path = Path(path)
    if path.suffix != ".xml":
        raise FileError(f"Cannot write {path}: an OpenVINO IR is written to a file that ends in .xml.")
    names = _openvino_names(model, placement, devices or {})
    copy = model.ov_model.clone()
    expected = _set_affinities(copy, {node: names[placement[op]] for node, op in model.view.op_of.items()})
    write_ir(copy, path, lambda xml, weights: _verify(xml, weights, expected, path))
    return "HETERO:" + ",".join(dict.fromkeys(names[placement[op]] for op in model.graph.names))


def _openvino_names(model: OpenVinoModel, placement: Mapping[str, str], devices: Mapping[str, str]) -> dict[str, str]:
    missing = [op for op in model.graph.names if op not in placement]
    if missing:
        raise PlacementError(
            f"The placement does not cover op '{missing[0]}' of {model.path} ({len(missing)} of {len(model.graph)} missing)."
        )
    unknown = [op for op in placement if op not in model.graph.index]
    if unknown:
        raise PlacementError(f"The placement belongs to another model: {model.path} has no op '{unknown[0]}'.")
    names: dict[str, str] = {}
    for op, device in placement.items():
        names[device] = devices.get(device, device)
        if not _HETERO_DEVICE.fullmatch(names[device]):
            if len(set(placement.values())) == 1:
                raise PlacementError(
                    f"The whole model is placed on '{device}', which is not a device of OpenVINO: nothing is divided, "
                    f"and the file runs there as it is. Or say which device stands for it (--map {device}=CPU)."
                )
            raise PlacementError(
                f"Op '{op}' is placed on '{device}', which is not a device of OpenVINO, and HETERO knows no others: say "
                f"which it stands for (--map {device}=CPU), or place the model on whole devices."
            )
    for sharers in model.together:
        used = {names[placement[op]] for op in sharers}
        if len(used) > 1:
            raise PlacementError(
                f"Ops '{sharers[0]}' and '{sharers[1]}' need one device, not {sorted(used)}: they share state, a tensor "
                "whose size depends on the data, or nodes of the model."
            )
    return names


def _set_affinities(model: Any, affinity: Mapping[str, str]) -> dict[str, str]:
    """Set the affinity of every node, and return the affinities by friendly name.

    Args:
        model: an ``openvino.Model``; it is changed.
        affinity: affinities of the nodes that are not constant, by friendly name.
    """
    constant = constant_nodes(model)
    expected: dict[str, str] = {}
    for node in reversed(model.get_ordered_ops()):
        name = node.get_friendly_name()
        if name in constant:
            readers = (port.get_node().get_friendly_name() for output in node.outputs() for port in output.get_target_inputs())
            expected[name] = expected[min(readers)]
        else:
            expected[name] = affinity[name]
        node.get_rt_info()[_KEY] = expected[name]
    return expected


def _verify(xml: Path, weights: Path, expected: Mapping[str, str], path: Path) -> None:
    written = openvino_core().read_model(str(xml), str(weights))
    found = {node.get_friendly_name(): node.get_rt_info() for node in written.get_ordered_ops()}
    for name, device in expected.items():
        if name not in found or _KEY not in found[name] or found[name][_KEY].astype(str) != device:
            raise FileError(
                f"Cannot write {path}: OpenVINO {openvino.__version__} did not keep the device of node '{name}'. Nothing was "
                "written there."
            )
