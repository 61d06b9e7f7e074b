"""Open the placements, bundles and models that commands run."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from placeit.cli.command import was_given
from placeit.cli.nodes import Compress
from placeit.cli.options import CheckedOptions, Logits, Precision, SessionOptions
from placeit.cli.values import parse_pairs
from placeit.core.errors import DeviceError, PlacementError, UsageError, naming
from placeit.report import as_json

if TYPE_CHECKING:
    from placeit.application import Application
    from placeit.backends.bundle.model import BundleModel
    from placeit.core.graph import OpGraph
    from placeit.core.placement import Placement
    from placeit.profiler.costs import Progress
    from placeit.session import Session
    from placeit.workbench import Workbench

__all__ = [
    "PLACEMENT",
    "PlacementOption",
    "RematchOption",
    "Target",
    "find_target",
    "open_application",
    "open_session",
    "profile_if_needed",
    "read_placement",
]

_log = logging.getLogger("placeit")

PLACEMENT = typer.Option("--placement", "-p", metavar="FILE", help="Placement, as 'placeit optimize' writes it.")
PlacementOption = Annotated[Path, PLACEMENT]
RematchOption = Annotated[
    str | None,
    typer.Option(
        "--rematch",
        metavar="OLD=NEW|auto",
        help="For a bundle: devices to use instead of those that it names, as in GPU=CPU@0,CPU@0=CPU@1; auto: by kind.",
    ),
]


def read_placement(path: Path, graph: OpGraph) -> Placement:
    """Read a placement and check that it covers a model. Raises FileError or PlacementError, naming the file."""
    from placeit.core.placement import Placement

    placement = Placement.load(path)
    with naming(path):
        placement.for_ops(graph.names, placement.device_names, graph.structure, graph.hash)
    return placement


@contextlib.contextmanager
def open_session(
    options: SessionOptions, files: Sequence[Path], *, by_segments: bool = False, only: Sequence[str] = ()
) -> Iterator[tuple[Session, list[Placement]]]:
    """Open a model on the devices of the command line, or else on the devices that the placements name.

    Where the command line says nothing, precision, compression and input shapes are taken from the placements. Groups are split
    where a placement divides them; with ``by_segments``, they are split by the placements' segments, if all have segments.
    Nothing is profiled yet. ``only`` has the names of the devices that the model may use; empty for all.

    Raises:
        FileError, PlacementError: a placement cannot be read, or does not fit the model and the devices (names the file).
    """
    from placeit.core.placement import Placement
    from placeit.devices.clusterfile import discover
    from placeit.devices.plain import whole_devices

    placements = [Placement.load(path) for path in files]
    options = _with_conditions(options, files, placements)
    named = list(dict.fromkeys(name for placement in placements for name in placement.device_names))
    several = [name for placement in placements if len(placement.device_names) > 1 for name in placement.device_names]
    options.reach(named)
    with contextlib.suppress(DeviceError, UsageError):  # a placement on a plain device names what other placements share
        found, onnx = discover(list(dict.fromkeys(several))), options.model.suffix.lower() == ".onnx"
        plain_names = {device.name for device in whole_devices(found, onnx=onnx)}
        named = [name for name in named if name not in plain_names]
    try:
        cluster = discover(named if options.devices is None and named else options.devices, precision=options.precision.value)
    except (DeviceError, UsageError) as error:
        if options.devices is not None or not named:
            raise
        raise type(error)(
            f"{error} The placement names the devices {', '.join(named)}: say with --devices which they are (the cluster file)."
        ) from error
    cluster = cluster.only(only) if only else cluster
    by_segments = by_segments and all(placement.segments is not None for placement in placements)
    with options.session(cluster, placements[0].graph_hash if placements else "") as session:
        for path, placement in zip(files, placements, strict=True):
            with naming(path):
                for one in placement.every:
                    session.home_of(placement).divide(one, by_segments=by_segments)
        for path, placement in zip(files, placements, strict=True):
            with naming(path):
                for one in placement.every:
                    session.home_of(placement).placing.groups_of(one)
        yield session, placements


def _with_conditions(options: SessionOptions, files: Sequence[Path], placements: Sequence[Placement]) -> SessionOptions:
    """Return the options, with the conditions of the placements in place of options that are not on the command line."""
    found = [placement.conditions for placement in placements if placement.conditions is not None]
    if not found or any(other != found[0] for other in found):
        return options
    first = found[0]
    for what, value, known_values in (
        ("precision", first.precision, Precision),
        ("compression", first.compression, Compress),
        ("logits", first.logits, Logits),
    ):
        if value not in set(known_values):
            raise PlacementError(f"{files[0]}: '{what}' is '{value}', and not one of {', '.join(known_values)}.")
    if not _differs(files[0], "precision", first.precision, options.precision):
        options = replace(options, precision=Precision(first.precision))
    if not _differs(files[0], "compress", first.compression, options.compress):
        options = replace(options, compress=Compress(first.compression))
    if not (options.input_shape or options.batch or options.context) and options.model.suffix.lower() in (".onnx", ".xml"):
        shapes = [f"{name}:{','.join(map(str, shape))}" for name, shape in first.shapes.items() if shape and 0 not in shape]
        options = replace(options, input_shape=shapes or None)
    if not was_given("logits"):
        options = replace(options, logits=Logits(first.logits))
    if options.state is None and first.state:
        options = replace(options, state=[f"{name}={output}" for name, output in first.state.items()])
    return options


def _differs(file: Path, option: str, stored: str, value: str) -> bool:
    """Return whether an option on the command line differs from the placement's, and log a warning if so."""
    if not was_given(option) or stored == value:
        return False
    _log.warning("%s was found with --%s %s, and runs with --%s %s.", file, option, stored, option, value)
    return True


def profile_if_needed(session: Session, chosen: Placement, progress: Progress | None, *, costs: bool = False) -> Workbench:
    """Profile the session that runs a placement, unless its plan needs no costs, and return that session.

    With ``costs``, the session has costs afterwards in any case, to place the model again later.
    """
    home = session.home_of(chosen)
    planned = all(one.segments is not None for one in chosen.every)
    if not (planned and (home.recall() or not costs)):
        home.profile(progress=progress)
    return home


@dataclass(frozen=True)
class Target:
    """What a command runs: a placement of a model, a bundle, or a whole model.

    Attributes:
        path: path of the placement or the bundle, or else of the whole model.
        replicated: whether requests are served by replicas.
        data: facts for JSON.
        open: returns a context manager that yields the session that runs it, and the placement on its devices.
        devices: devices to run the whole model on, if there is no placement.
    """

    path: Path
    replicated: bool
    data: dict[str, Any]
    open: Callable[[], contextlib.AbstractContextManager[tuple[Session, Placement]]]
    devices: tuple[str, ...] = ()


_FIXED_BY_BUNDLE = ("placement", "input_shape", "batch", "state", "logits", "context", "trust", "max_groups", "precision")
"""Options that cannot be given with a bundle, since it was built with their values."""


def find_target(options: CheckedOptions, placement: Path | None, rematch: str | None, only: Sequence[str] = ()) -> Target:
    """Return the placement, bundle or model that the options of a command name.

    Args:
        options: options of the model, or of a bundle in its place.
        placement: the placement file; None for a bundle, and for the whole model on the devices of the options.
        rematch: the option ``--rematch``, for a bundle.
        only: names of the devices that a model with a placement may use; empty for all.

    Raises:
        UsageError: an option is missing, or does not go with a bundle or with a placement.
        FileError, PlacementError: a file cannot be read, or has other content.
    """
    from placeit.backends.bundle.files import is_bundle
    from placeit.backends.bundle.manifest import MANIFEST
    from placeit.core.placement import Placement

    bundled = is_bundle(options.model)
    if not bundled and rematch is not None:
        raise UsageError("--rematch is about the devices that a bundle names: for a placement, --devices says which they are.")
    exists = options.model.is_file() or (options.model / MANIFEST).is_file()
    for option in _FIXED_BY_BUNDLE if bundled and exists else ():
        if was_given(option):
            name = option.replace("_", "-")
            raise UsageError(f"{options.model} is a bundle, built with its own --{name}: leave that out, or build it anew.")
    data: dict[str, Any] = {"model": str(options.model), **as_json.files({"placement": placement}), "differences": []}
    if bundled:
        return _bundled(options, rematch, data)
    if placement is None:
        return _whole_model(options, data)

    @contextlib.contextmanager
    def opened() -> Iterator[tuple[Session, Placement]]:
        with open_session(options, [placement], by_segments=True, only=only) as (session, [chosen]):
            yield session, chosen

    return Target(placement, bool(Placement.load(placement).replicas), data, opened)


def _whole_model(options: CheckedOptions, data: dict[str, Any]) -> Target:
    """Return the target for a whole model, as one segment on one device or on each of several devices."""
    from placeit.backends import check_path
    from placeit.core.placement import Placement
    from placeit.devices.clusterfile import discover

    check_path(options.model)
    if options.devices is None and options.ray_address is None:
        raise UsageError("Give --placement; or 'placeit run' takes --devices alone, to benchmark the model, as in -d CPU.")
    cluster = discover(options.reach(), precision=options.precision.value)

    @contextlib.contextmanager
    def opened() -> Iterator[tuple[Session, Placement]]:
        import numpy as np

        with options.session(cluster) as session:
            graph, nothing = session.model.graph, np.zeros(len(session.model.graph), np.int32)
            yield session, Placement(graph.names, nothing, cluster.names, graph.hash, nothing)

    return Target(options.model, replicated=False, data=data, open=opened, devices=cluster.names)


def _bundled(options: CheckedOptions, rematch: str | None, data: dict[str, Any]) -> Target:
    from placeit.backends.bundle.model import open_bundle

    model = open_bundle(options.model)

    @contextlib.contextmanager
    def opened() -> Iterator[tuple[Session, Placement]]:
        with open_application(options, model, rematch) as app:
            data["differences"] = list(app.differences)
            yield app.session, app.placement

    return Target(options.model, bool(model.manifest.placement.replicas), data, opened)


@contextlib.contextmanager
def open_application(options: CheckedOptions, model: BundleModel, rematch: str | None) -> Iterator[Application]:
    """Open a bundle on its devices, and log how they differ from those that it was built with.

    Args:
        options: options of the bundle.
        model: the bundle.
        rematch: the option ``--rematch``.

    Raises:
        DeviceError: a device is missing, or is on a node of a cluster that does not run; none is started for a bundle.
        UsageError, PlacementError: as by :meth:`placeit.Application.load`.
    """
    from placeit.application import Application

    mapping = _parse_rematch(rematch)
    named = [*(device.address for device in model.manifest.devices), *(mapping.values() if isinstance(mapping, dict) else ())]
    options.reach(named, start=options.devices is not None or isinstance(mapping, dict))
    inputs = options.arrays(model)
    with Application(model, rematch=mapping, devices=options.devices, inputs=inputs, tolerance=options.tolerance) as app:
        for line in app.differences:
            _log.warning("%s was built elsewhere. %s.", options.model, line)
        yield app


def _parse_rematch(text: str | None) -> Literal["auto"] | dict[str, str] | None:
    if text is None or text.strip() == "auto":
        return None if text is None else "auto"
    return parse_pairs("--rematch", text.split(","), "OLD=NEW, such as GPU=CPU@0, or auto")
