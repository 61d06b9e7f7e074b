"""Results of profiling a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from placeit.core.cluster import links_to_list
from placeit.core.jsonable import jsonable_dict
from placeit.core.views import Shown
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs
from placeit.runtime.compiling import Compiled

__all__ = ["ProfileReport"]


@dataclass(frozen=True, eq=False)
class ProfileReport(Shown):
    """Results of profiling a model.

    Attributes:
        model: path of the model.
        precision: precision in which devices computed.
        grouping: its ops in groups.
        costs: costs of these groups on the devices.
        compiling: programs that were compiled, by kind of device.
    """

    model: str
    precision: str
    grouping: Grouping
    costs: Costs
    compiling: Mapping[str, Compiled]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dict, as ``placeit profile --json`` prints it."""
        costs, grouping, graph = self.costs, self.grouping, self.grouping.graph
        groups, names = grouping.groups, costs.cluster.names
        return jsonable_dict(
            {
                "model": self.model,
                "precision": self.precision,
                "graph": {"ops": len(graph), "edges": len(graph.edges), "groups": len(groups)},
                "devices": [
                    {
                        "name": device.name,
                        "dispatch_s": costs.dispatch[d],
                        "whole_model_s": costs.whole[d],
                        "read_s_per_byte": costs.read[d],
                        "host_s": costs.hosts[d],
                        "emulated": device.emulated,
                        "described": device.described,
                    }
                    for d, device in enumerate(costs.cluster.devices)
                ],
                "groups": [
                    {
                        "name": groups.names[g],
                        "kind": groups.kinds[g],
                        "ops": len(grouping.members(g)),
                        "flops": groups.flops[g],
                        "seconds": dict(zip(names, costs.core[g], strict=True)),
                        "cut_s": dict(zip(names, costs.cut[g], strict=True)),
                        "load_s": dict(zip(names, costs.load[g], strict=True)),
                    }
                    for g in range(len(groups))
                ],
                "host_of_several_s": costs.hosts[-1],
                "links": links_to_list(costs.cluster.links),
                "profiled": None if costs.profiled is None else costs.profiled.to_dict(),
                "compiling": {kind: vars(one) for kind, one in self.compiling.items()},
            }
        )
