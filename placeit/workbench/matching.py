"""Find the devices of a bundle on this machine, and list how they differ from the devices that it was built with."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias

from placeit.backends.bundle.manifest import Manifest, Needed
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import DeviceError, UsageError
from placeit.core.units import about_bytes
from placeit.core.version import __version__
from placeit.devices.clusterfile import discover
from placeit.devices.host import allowed_cores, one_per_physical_core
from placeit.devices.kinds import driven_by_openvino, kind_of
from placeit.devices.names import parse_device
from placeit.devices.openvino import openvino_core

__all__ = ["Devices", "Rematch", "differences", "matched"]

Rematch: TypeAlias = Literal["auto"] | Mapping[str, str] | None
"""Devices that replace the devices of a bundle: new names by old names, ``auto``, or None to keep all names."""

Devices: TypeAlias = str | Sequence[str] | Path | Cluster | None
"""Where to look for devices: device names, a cluster file, a cluster, or None for this machine."""

_RUNTIMES = {"openvino": "OpenVINO", "onnx": "ONNX Runtime", "torch": "PyTorch"}
_EXAMPLES = {"openvino": "one that OpenVINO drives", "onnx": "ort:CPU@0, say", "torch": "torch:CPU@0, say"}


def matched(manifest: Manifest, path: Path, rematch: Rematch, devices: Devices) -> tuple[dict[str, str], Cluster]:
    """Find the devices of a bundle.

    Args:
        manifest: of the bundle.
        path: of the bundle, for errors.
        rematch: devices that replace the devices of the bundle.
        devices: where to look for devices.

    Returns:
        New device names by old ones, and the cluster of these devices.

    Raises:
        DeviceError: a device is missing; lists the devices that are needed.
        UsageError: ``rematch`` names a device that the bundle does not have, gives two of its devices the same new one, or a
            device that another runtime drives.
    """
    needed = {one.name: one for one in manifest.devices}
    within = None if devices is None else discover(devices, precision=manifest.precision)
    names = {name: name if within is not None and name in within.names else one.address for name, one in needed.items()}
    if isinstance(rematch, str) and rematch != "auto":
        raise UsageError(f"'{rematch}' is not a way to rematch devices: give 'auto', or new names by old ones.")
    if isinstance(rematch, Mapping):
        unknown = rematch.keys() - needed.keys()
        if unknown:
            raise UsageError(f"{path} has no device '{min(unknown)}' to rematch; its devices are {', '.join(needed)}.")
        names |= rematch if within is not None else {old: str(parse_device(new)) for old, new in rematch.items()}
    chosen: Collection[str] = rematch.keys() if isinstance(rematch, Mapping) else ()
    missing = _missing(names, needed, chosen, within)
    if missing and rematch == "auto":
        names |= _substitutes([needed[name] for name in names], missing, names, within)
        missing = _missing(names, needed, names, within)
    if missing:
        raise DeviceError(_missing_message(path, needed.values(), missing))
    new_names = list(names.values())
    repeated = [name for name in new_names if new_names.count(name) > 1]
    if repeated:
        both = ", ".join(old for old, new in names.items() if new == repeated[0])
        raise UsageError(f"The devices {both} of {path} would all be {repeated[0]}: rematch each to a different device.")
    cluster = discover(new_names, precision=manifest.precision) if within is None else within.only(new_names)
    found = {device.name: device for device in cluster.devices}
    other_runtime = {one.format for one in manifest.devices} in ({"onnx"}, {"torch"})  # which then drives any core set
    for old, new in names.items():
        if not (other_runtime and driven_by_openvino(found[new]) and found[new].core_set):
            _check_runtime(needed[old], found[new])
    return names, cluster


def differences(manifest: Manifest, cluster: Cluster, names: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each difference between devices and versions here and where a bundle was built.

    Args:
        manifest: of the bundle.
        cluster: the devices.
        names: new names by old ones.
    """
    built = manifest.versions.get("placeit", "?")
    if built != __version__:
        yield f"placeit is {__version__}, and was {built}"
    found = {device.name: device for device in cluster.devices}
    for one in manifest.devices:
        device = found[names[one.name]]
        if device.name != one.name:
            yield f"{device.name} takes the place of {one.name}"
        for now, before in (
            (device.full_name, one.full_name),
            (device.driver, one.driver),
            (_cores(len(device.cores)), _cores(one.cores)),
        ):
            if now != before:
                yield f"{device.name}: {now or 'unknown'} in place of {before or 'unknown'}"


def _cores(count: int) -> str:
    return f"{count} core{'' if count == 1 else 's'}"


def _missing(
    names: Mapping[str, str], needed: Mapping[str, Needed], chosen: Collection[str], within: Cluster | None
) -> dict[str, str]:
    """Return the missing devices by their names in the bundle, each with the reason."""
    missing: dict[str, str] = {}
    for old, new in names.items():
        if within is not None:
            if new not in within.names:
                missing[old] = f"'{new}' is not among the devices {', '.join(within.names)}"
        elif needed[old].emulated and old not in chosen:
            missing[old] = "it was slowed down on purpose, by a cluster file"
        else:
            try:
                discover([str(parse_device(new))])
            except (DeviceError, UsageError) as error:
                missing[old] = str(error).rstrip(".")
    return missing


def _missing_message(path: Path, needed: Iterable[Needed], missing: Mapping[str, str]) -> str:
    listing = "; ".join(_description(device) for device in needed)
    reasons = ". ".join(f"{name}: {why}" for name, why in missing.items())
    return (
        f"{path} cannot run here, as {'a device is' if len(missing) == 1 else 'devices are'} missing. {reasons}. It needs: "
        f"{listing}. Name others with --rematch {','.join(f'{name}=DEVICE' for name in missing)}, or let --rematch auto choose "
        "(rematch= in Python)."
    )


def _description(device: Needed) -> str:
    size = f", {_cores(device.cores)}" if device.cores else ""
    return f"{device.name} ({device.full_name or device.address}{size}, {about_bytes(device.weight_bytes)} of weights)"


def _substitutes(
    needed: Sequence[Needed], missing: Mapping[str, str], names: Mapping[str, str], within: Cluster | None
) -> dict[str, str]:
    """Return a free device of the same kind for each missing device, where there is one, by names in the bundle."""
    found_here = [Address(name) for name in openvino_core().available_devices] if within is None else []
    free = [device.where for device in within.devices if device.address is not None] if within is not None else found_here
    label = {str(device.address): device.name for device in within.devices} if within is not None else {}
    taken = {name for old, name in names.items() if old not in missing}
    found: dict[str, str] = {}
    sets = [one for one in needed if (address := parse_device(one.address)).cores and not address.node]
    if within is None and any(one.name in missing for one in sets):
        found |= _divided_cores(sets)
    for one in needed:
        if one.name not in missing or one.name in found:
            continue
        address = parse_device(one.address)
        for other in free:
            name = label.get(str(other), str(replace(other, runtime=address.runtime)))
            if other.family == address.family and name not in taken:
                found[one.name] = name
                taken.add(name)
                break
    return found


def _divided_cores(sets: Sequence[Needed]) -> dict[str, str]:
    """Divide the cores of this machine among core sets: as many as each has in the bundle, or else in proportion to that.

    Returns device names by names in the bundle; empty if there are fewer cores than core sets.
    """
    cores = one_per_physical_core(allowed_cores())
    if len(cores) < len(sets):
        cores = allowed_cores()
    wanted = sum(one.cores for one in sets)
    if len(cores) < len(sets):
        return {}
    spare = len(cores) - len(sets)  # cores beyond one for each set
    found: dict[str, str] = {}
    for one in sets:
        extra = one.cores - 1
        if wanted > len(cores):
            extra = min(extra, spare * extra // max(1, wanted - len(sets)))
        own_cores, cores = cores[: 1 + extra], cores[1 + extra :]
        address = parse_device(one.address)
        found[one.name] = str(Address("CPU", tuple(sorted(own_cores)), runtime=address.runtime))
    return found


def _check_runtime(needed: Needed, device: Device) -> None:
    """Raise UsageError if a device does not run segments of the format that the bundle has for a needed device."""
    if needed.format in kind_of(device).formats or (needed.format != "openvino" and not kind_of(device).formats):
        return
    raise UsageError(
        f"{needed.name} has segments for {_RUNTIMES[needed.format]}, and {device.name} is a device of another runtime: rematch "
        f"it to {_EXAMPLES[needed.format]}."
    )
