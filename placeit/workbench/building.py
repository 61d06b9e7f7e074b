"""Build a bundle: write the segments of a placement, and all that another machine needs to run them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from placeit.backends.base import Arrays, Format
from placeit.backends.bundle.files import SUFFIX, digest_of, write_archive
from placeit.backends.bundle.manifest import MANIFEST, BundledSegment, Manifest, Needed, Port, Sample
from placeit.backends.bundle.model import BundleModel, open_bundle
from placeit.backends.bundle.programs import SegmentFiles
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import DeviceError, FileError
from placeit.core.extras import versions_of
from placeit.core.files import replacing, temporary_folder
from placeit.core.placement import Placement, Serving
from placeit.core.version import __version__
from placeit.core.weights import held_bytes
from placeit.devices.clusterfile import discover
from placeit.planning.contracting import contract
from placeit.runtime.devices.kinds import device_kind
from placeit.runtime.segment_book import SegmentBook
from placeit.workbench.bundled import check_samples, prepare_bundle, renamed
from placeit.workbench.matching import matched
from placeit.workbench.opened import Workbench
from placeit.workbench.options import Constraints
from placeit.workbench.prepared import Prepared
from placeit.workbench.setup import Setup

__all__ = ["build", "check_target"]

_PACKAGES: Mapping[Format, str] = {"openvino": "openvino", "onnx": "onnxruntime", "torch": "torch"}

_log = logging.getLogger("placeit")


def check_target(path: Path) -> None:
    """Raise FileError if a bundle cannot be written to a path: something is there, or its folder is missing."""
    if os.path.lexists(path):
        raise FileError(f"{path} exists, and a bundle replaces nothing: remove it, or choose another path.")
    if not path.absolute().parent.is_dir():
        raise FileError(f"Cannot write {path}: its folder does not exist. Make it, or choose another path.")


def build(placements: Sequence[Prepared], path: Path, *, name: str, serving: Serving | None = None) -> Manifest:
    """Write a bundle of a placement, check its outputs against the reference, and then move it to its path.

    Args:
        placements: the prepared placement and its replicas.
        path: of an archive if it ends in ``.placeit``, else of a folder; :func:`check_target` has checked it.
        name: name of the model for people.
        serving: settings of a server of the placement.

    Raises:
        FileError: the path cannot be written.
        DeviceError: segments for a device cannot be in a bundle.
        ModelError: a segment cannot be written.
        ExecutionError: the outputs of the bundle differ from the model's, or a device failed.
    """
    with temporary_folder(path.absolute().parent) as folder:
        building = _Building(placements, folder, serving)
        try:
            manifest = building.manifest(name)
            (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
            _check(open_bundle(folder), Cluster(tuple(building.devices)))
            if path.suffix.lower() == SUFFIX:
                with replacing(path) as archive:
                    write_archive(folder, [MANIFEST, *manifest.files], archive)
            else:
                folder.chmod(0o755)
                folder.rename(path)
        except OSError as error:
            raise FileError(f"Cannot write {path}: {error.strerror or error}. Nothing was written there.") from error
    return manifest


def _check(model: BundleModel, cluster: Cluster) -> None:
    """Run a bundle on the devices that it was built with. Raises ExecutionError if its outputs are wrong."""
    manifest = model.manifest
    try:
        names, cluster = matched(manifest, model.path, None, cluster)
        constraints = Constraints(tolerance=manifest.tolerance)
        with Workbench(Setup.of(model, cluster, precision=manifest.precision, constraints=constraints, cache=None)) as session:
            check_samples(prepare_bundle(session, renamed(manifest.placement, names), manifest, names))
    finally:
        model.files.wait()


class _Building:
    """A bundle that is being written to a folder.

    Args:
        placements: the prepared placement and its replicas.
        folder: where files are written.
        serving: settings of a server of the placement.

    Attributes:
        devices: the devices that are used, as they run the segments of the bundle.

    Raises:
        DeviceError: segments for a device cannot be in a bundle; says why, and what to do.
    """

    def __init__(self, placements: Sequence[Prepared], folder: Path, serving: Serving | None) -> None:
        self._placements, self._home, self._folder, self._serving = placements, placements[0].home, folder, serving
        self._used = {
            device.name: device
            for one in placements
            for d, device in enumerate(one.home.cluster.devices)
            if (one.plan.placement == d).any()
        }
        self._formats = {name: _own_format(device) for name, device in self._used.items()}
        self.devices = [*self._used.values()]
        elsewhere = {name: _other_format(device) for name, device in self._used.items()}
        if None not in elsewhere.values():
            self._formats = {name: form for name, form in elsewhere.items() if form is not None}
            self.devices = [_as_found(device) for device in self.devices]
            _log.warning(
                "%s is a PyTorch model, and the bundle has its segments for OpenVINO, which take other times than were "
                "measured. To place it by those times, export and optimize it.",
                self._home.model.path,
            )
        self._graph = self._home.model.graph
        self._has_costs = all(one.home.has_costs for one in placements)
        self._contracted = contract(self._graph, [one.segments for one in placements])

    def manifest(self, name: str) -> Manifest:
        """Write all files except the manifest, and return the manifest."""
        home, graph = self._home, self._contracted.graph
        placement = self._placement()
        segments, samples = tuple(self._segments()), tuple(self._samples())
        files = sorted(
            {file for one in segments for file in one.files}
            | {file for one in samples for file in (*one.inputs.values(), *one.outputs.values())}
        )
        every = np.stack([one.devices for one in placement.every])
        held = held_bytes(graph.bytes_once, graph.shared, every, len(self._used)).sum(axis=0)
        weights = dict(zip(self._used, held.tolist(), strict=True))
        return Manifest(
            name=name,
            versions={"placeit": __version__, **versions_of({"openvino", *(_PACKAGES[one.format] for one in segments)})},
            precision=home.precision,
            tolerance=home.tolerance,
            devices=tuple(
                Needed(
                    device.name,
                    str(device.where),
                    device.full_name,
                    device.driver,
                    len(device.cores),
                    self._formats[device.name],
                    weights[device.name],
                    device.emulated,
                )
                for device in self.devices
            ),
            model=self._graph.hash,
            inputs=home.model.inputs,
            outputs=home.model.outputs,
            graph=graph,
            channels_last=frozenset(
                number for t, number in self._contracted.tensor_of.items() if t in home.model.channels_last
            ),
            limits={number: home.model.limits[t] for t, number in self._contracted.tensor_of.items() if t in home.model.limits},
            segments=segments,
            placement=placement,
            seconds=self._seconds(placement),
            links=tuple(self._links()),
            host=self._host(),
            samples=samples,
            files={file: digest_of(self._folder / file) for file in files},
        )

    def _placement(self) -> Placement:
        """Return the placement of the parts, each replica with the segments of its plan."""
        graph, part_of = self._contracted.graph, self._contracted.part_of
        numbers = {name: d for d, name in enumerate(self._used)}
        placements: list[Placement] = []
        for one in self._placements:
            home, plan, of = one.home, one.plan, one.segments
            segments = np.zeros(len(graph), np.int32)
            segments[part_of] = of
            for v, part in self._contracted.bodies.items():
                segments[part] = of[v]
            devices = [numbers[home.cluster.names[plan.segments[s].device]] for s in segments.tolist()]
            placements.append(Placement(graph.names, np.array(devices, np.int32), tuple(self._used), graph.hash, segments))
        first, *others = placements
        return replace(first, replicas=tuple(others), serving=self._serving)

    def _segments(self) -> Iterator[BundledSegment]:
        """Cut and write the segments of all plans, equal ones once, and yield their entries of the manifest."""
        done: set[tuple[Format, tuple[int, ...]]] = set()
        files = SegmentFiles(self._folder)
        for one in self._placements:
            home, plan, of = one.home, one.plan, one.segments
            book = SegmentBook(home.model, home.grouping)
            for s, segment in enumerate(plan.segments):
                if segment.passthrough:
                    continue
                form = self._formats[home.cluster.names[segment.device]]
                ops, enter, leave = book.parts(segment)
                parts = {int(self._contracted.part_of[v]) for v in ops}
                parts |= {part for v, part in self._contracted.bodies.items() if of[v] == s}
                key = form, tuple(sorted(parts))
                if key in done:
                    continue
                tensor_of = self._contracted.tensor_of
                inputs: list[Port] = [*(tensor_of[t] for t in enter), *book.inputs_of(segment)]
                outputs: list[Port] = [*(tensor_of[t] for t in leave), *book.outputs_of(segment)]
                program = files.write(home.model, form, (ops, enter, leave))
                done.add(key)
                yield BundledSegment(key[1], form, program.files, tuple(inputs), tuple(outputs), program.names)

    def _samples(self) -> Iterator[Sample]:
        """Write the inputs of the output check and the outputs of the uncut model, the session's inputs first."""
        *others, (inputs, expected) = self._home.reference.output_check().runs
        (self._folder / "samples").mkdir()
        for k, (given, outputs) in enumerate([(inputs, expected), *(one for one in others if one[0] is not inputs)]):
            yield Sample(self._arrays(given, f"samples/{k}-in"), self._arrays(outputs, f"samples/{k}-out"))

    def _arrays(self, values: Arrays, stem: str) -> dict[str, str]:
        files = {name: f"{stem}-{i}.npy" for i, name in enumerate(values)}
        for name, file in files.items():
            np.save(self._folder / file, values[name], allow_pickle=False)
        return files

    def _seconds(self, placement: Placement) -> tuple[tuple[float | None, ...], ...] | None:
        """Return the seconds of each part on its device, with a segment's seconds at its first part; None if unknown."""
        if not self._has_costs:
            return None
        graph = self._contracted.graph
        table: list[list[float | None]] = [[None] * len(self._used) for _ in graph.names]
        for one, plan in zip(placement.every, (prepared.plan for prepared in self._placements), strict=True):
            assert one.segments is not None  # noqa: S101
            counted: set[int] = set()
            for part, (d, s) in enumerate(zip(one.devices.tolist(), one.segments.tolist(), strict=True)):
                first = graph.kinds[part] == "Segment" and s not in counted
                table[part][d] = float(plan.problem.compute[s, plan.segments[s].device]) if first else 0.0
                counted |= {s} if first else set()
        return tuple(map(tuple, table))

    def _host(self) -> tuple[float, ...]:
        """Return the overhead of a request in seconds, on each device alone and on several devices; empty if unknown."""
        if not self._has_costs:
            return ()
        home = self._home
        *alone, several = home.costs.hosts.tolist()
        known = dict(zip(home.cluster.names, alone, strict=True))
        return (*(known.get(name, 0.0) for name in self._used), several)

    def _links(self) -> Iterator[tuple[str, str, float, float]]:
        for (a, b), link in self._home.costs.cluster.links.items() if self._home.has_costs else ():
            if {a, b} <= self._used.keys():
                yield a, b, link.latency, link.bandwidth


def _own_format(device: Device) -> Format:
    """Return the format that a device runs. Raises DeviceError if it exists in simulation only."""
    if device.described:
        raise DeviceError(f"{device.name} exists in simulation only, and nothing can be built for it.")
    return device_kind(device).formats[0]


def _other_format(device: Device) -> Format | None:
    """Return the format that segments for a core set are converted to; None if its name asks for a runtime."""
    return None if device.where.runtime or not device.core_set else device_kind(device).bundle_format


def _as_found(device: Device) -> Device:
    """Return a core set with the driver of its address, in place of the driver that the model chose."""
    [found] = discover([str(device.where)]).devices
    return replace(found, name=device.name, slowdown=device.slowdown)
