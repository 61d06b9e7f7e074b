"""Get the costs of a model on a cluster: by measuring, from the cache, or by estimates for described devices."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from placeit.core.cluster import Cluster
from placeit.core.narrowing import narrowed
from placeit.planning.segments import Costs
from placeit.profiler.expected_costs import as_expected
from placeit.runtime.runtime import Runtime
from placeit.workbench.setup import Setup

if TYPE_CHECKING:
    from placeit.profiler.costs import Certain, Worth

__all__ = ["measure", "recall"]


def measure(
    setup: Setup,
    runtime: Callable[[], Runtime],
    *,
    budget_s: float,
    worth: Worth | None,
    certain: Certain | None,
    **options: Any,
) -> Costs:
    """Measure the costs of groups on the devices, or take them from the cache; estimate them for described devices.

    Args:
        setup: the model, its groups and the cluster.
        runtime: returns the opened devices; not called if some devices are only expected or described.
        budget_s: as for :func:`placeit.profiler.costs.profile`.
        worth: as for :func:`placeit.profiler.costs.profile`; not called if some device is described.
        certain: as for :func:`placeit.profiler.costs.profile`; not called if some device is described.
        options: other options of :func:`placeit.profiler.costs.profile`.

    Raises:
        InfeasibleError: no device supports some op.
        DeviceError: a device compiles no op, or not all ops that it claims to support.
    """
    from placeit.profiler.compiled_costs import by_ratio
    from placeit.profiler.costs import profile
    from placeit.profiler.estimates import estimated

    model, grouping, cache, watch = setup.model, setup.placing.grouping, setup.cache, setup.policy.watch
    ask = functools.partial(profile, model, grouping, cache=cache, watch=watch, **options)

    def measured(_: Cluster, opened: Runtime, **asked: Any) -> Costs:
        found = by_ratio(opened, functools.partial(ask, **asked), budget_s=budget_s, cache=cache, watch=watch)
        return narrowed(Costs, found)

    if not setup.cluster.executable:
        return estimated(model, grouping, setup.cluster, measured, precision=setup.precision, compiling=setup.compiling)
    with _available(setup, runtime) as opened:
        return as_expected(measured(opened.cluster, opened, worth=worth, certain=certain), setup.cluster, setup.expected)


def recall(setup: Setup, runtime: Callable[[], Runtime]) -> Costs | None:
    """Return the costs from the cache, without profiling; None if they are not there.

    Raises:
        InfeasibleError: no device supports some op.
        DeviceError: some device exists in simulation only.
    """
    from placeit.profiler.compiled_costs import by_ratio
    from placeit.profiler.costs import cached_costs

    if (cache := setup.cache) is None:
        return None

    def found(cluster: Cluster, runtime: Runtime, *, budget_s: float) -> Costs | None:  # noqa: ARG001
        return cached_costs(setup.model, setup.placing.grouping, cluster, runtime, cache)

    with _available(setup, runtime) as opened:
        cached = by_ratio(opened, found, budget_s=0.0, cache=cache, watch=setup.policy.watch)
    return None if cached is None else as_expected(cached, setup.cluster, setup.expected)


@contextlib.contextmanager
def _available(setup: Setup, runtime: Callable[[], Runtime]) -> Iterator[Runtime]:
    """Yield the opened devices; if some devices are only expected, open and yield the others."""
    if not setup.expected:
        yield runtime()
        return
    cluster = Cluster(tuple(one for one in setup.cluster.devices if one.name not in setup.expected), setup.cluster.links)
    grouping, compiling = setup.placing.grouping, setup.compiling
    with Runtime(setup.model, grouping, cluster, precision=setup.precision, compiling=compiling) as opened:
        yield opened
