"""Load a model, group its ops, and find the devices of a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from placeit import backends
from placeit.backends.base import Arrays, ConvertsOps, Model
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import UsageError
from placeit.core.placement import Conditions
from placeit.devices.caps import capped
from placeit.devices.clusterfile import discover
from placeit.devices.expected import with_expected
from placeit.devices.nodes.connection import compression
from placeit.devices.plain import compiled_twins, plain_devices, whole_devices
from placeit.measuring.check import tolerance_of, tolerance_of_rounding
from placeit.planning.placing import Placing
from placeit.profiler.cache import Cache
from placeit.runtime.compiling import Compiling
from placeit.runtime.devices.kinds import device_kind
from placeit.runtime.drivers import drive
from placeit.workbench.options import Constraints, Inputs, Policy
from placeit.workbench.texts import Texts

__all__ = ["Setup"]


@dataclass(frozen=True, eq=False)
class Setup:
    """A model on a cluster, with the options of the session that runs it.

    Attributes:
        model: the model, with its inputs.
        cluster: devices as the model's runtimes drive them, with limits of memory.
        placing: the model's ops in groups, and placements of them.
        precision: inference precision of every device.
        tolerance: largest relative error of right outputs.
        pins: device names by op names or globs of them.
        memory: bytes of the devices whose memory is limited, by name.
        texts: the longest texts of a decoder, for whose states placements have room; None for other models.
        expected: devices of nodes that may join later, each with the existing device whose costs it has.
        cache: cache of measured costs; None for no cache.
        compiling: counts the programs that are compiled; its ``progress`` is called with each of them.
        spin_s: seconds that threads of devices wait awake for the next segment.
        policy: guards against measurements that mislead.
        alone: whether the devices are outside the cluster of the session.
    """

    model: Model
    cluster: Cluster
    placing: Placing
    precision: str
    tolerance: float
    pins: Mapping[str, str]
    memory: Mapping[str, float]
    texts: Texts | None
    expected: Mapping[str, str]
    cache: Cache | None
    compiling: Compiling
    spin_s: float
    policy: Policy
    alone: bool = False

    @classmethod
    def of(
        cls,
        model: str | Path | Model | backends.Module,
        devices: str | Sequence[str] | Path | Cluster | None = None,
        *,
        example: Any = None,
        kwargs: Mapping[str, Any] | None = None,
        precision: str = "f32",
        inputs: Inputs | Arrays | None = None,
        constraints: Constraints = Constraints(),
        cache: Cache | Literal["default"] | None = "default",
        expected: Mapping[str, str] | None = None,
        graph: str = "",
        spin_s: float = 0.0,
        policy: Policy = Policy(),
    ) -> Self:
        """Load a model, find devices, and group the model's ops; :class:`placeit.Session` describes arguments and errors."""
        given, pins, memory = Inputs.of(inputs), dict(constraints.pins), constraints.memory
        expected = dict(expected or {})
        cluster = capped(with_expected(discover(devices, precision=precision), expected), memory)
        limited = {device.name: device.memory_bytes for device in cluster.devices if device.name in memory}
        if isinstance(model, Model):
            if example is not None or kwargs is not None:
                raise UsageError(f"{model.path} is loaded already: leave out 'example' and 'kwargs', or give the module.")
            loaded = model
        else:
            samples = {name: value.shape for name, value in (given.arrays or {}).items() if isinstance(value, np.ndarray)}
            loaded = backends.load(
                model,
                example=example,
                kwargs=kwargs,
                input_shapes=given.shapes,
                batch=given.batch,
                sample_shapes=samples,
                state=given.state,
                logits=given.logits,
                context=given.context,
            )
        if given.arrays is not None:
            loaded = loaded.with_inputs(given.arrays)
        cluster = drive(cluster, loaded)
        loaded = loaded.prepared(cluster, graph)
        texts = Texts.of(loaded, constraints.texts)
        if texts is not None:
            loaded = replace(loaded, graph=replace(loaded.graph, state_bytes=texts.bytes()))
        placing = Placing.of(
            loaded.graph,
            cluster.names,
            pins=pins,
            max_groups=constraints.max_groups,
            together=loaded.together,
            pairs=loaded.pairs,
            memory=[device.memory_bytes for device in cluster.devices],
        )
        return cls(
            loaded,
            cluster,
            placing,
            precision,
            _tolerance(loaded, cluster, precision) if constraints.tolerance is None else constraints.tolerance,
            pins,
            limited,
            texts,
            expected,
            Cache() if cache == "default" else cache,
            Compiling(),
            spin_s,
            policy,
        )

    @property
    def opens_onnx(self) -> bool:
        """True if the model is an ONNX file that ONNX Runtime can open in this precision."""
        fits = self.precision == "f32" and not self.model.states
        return fits and self.model.path.suffix.lower() == ".onnx" and self.model.path.is_file()

    @property
    def plain_devices(self) -> list[Device]:
        """Plain devices of the cluster for the model (:func:`placeit.devices.plain.plain_devices`)."""
        return plain_devices(self.cluster, onnx=self.opens_onnx)

    @property
    def elsewhere(self) -> list[Cluster]:
        """Devices outside the cluster that a search may choose as well: whole devices, and compiled twins."""
        whole_clusters = [Cluster((device,)) for device in whole_devices(self.cluster, onnx=self.opens_onnx)]
        return [*whole_clusters, *compiled_twins(self.cluster)]

    @property
    def conditions(self) -> Conditions:
        """Conditions under which placements are found; a placement file keeps them."""
        return Conditions(
            self.precision,
            compression() if _uses_nodes(self.cluster) else "none",
            {spec.name: tuple(spec.sizes(self.model.times)) for spec in self.model.inputs},
            self.model.caches,
            self.model.logits,
        )

    def on(self, cluster: Cluster, precision: str) -> Self:
        """Return the same model, in the same groups, on other devices; pins do not hold there."""
        model, first = self.model, cluster.devices[0]
        if isinstance(model, ConvertsOps):
            model = model.prepared(cluster)
        elif first.plain and (form := device_kind(first).whole_file) is not None:
            model = self.model.whole_file(form)
        return replace(
            self,
            model=model,
            cluster=cluster,
            placing=self.placing.on(cluster.names),
            precision=precision,
            tolerance=self.tolerance if precision == self.precision else max(self.tolerance, tolerance_of([precision])),
            pins={},
            expected={},
            alone=True,
        )


def _tolerance(model: Model, cluster: Cluster, precision: str) -> float:
    """Return the tolerance of outputs, by the types in which a model is computed and sent between nodes."""
    types = [precision, *(name for name in model.graph.tensor_dtypes if "float" in name)]
    if model.rounds:
        types.append("int8")
    if _uses_nodes(cluster):
        types.append(compression())
    return tolerance_of(types) + tolerance_of_rounding(model.graph, model.rounding)


def _uses_nodes(cluster: Cluster) -> bool:
    return any(device.address is not None and device.address.node for device in cluster.devices)
