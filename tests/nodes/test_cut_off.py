"""Nodes whose network is cut off without a word, on an emulated network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from benchmarks import _network
from benchmarks._network import Network
from placeit.core.errors import ExecutionError
from placeit.devices.host import allowed_cores
from placeit.profiler.cache import Cache
from placeit.session import Session
from tests.small_models import inception_like

pytest.importorskip("ray")
from placeit.devices.nodes import connection, local

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(_network.reason_why_not()), reason=_network.reason_why_not()),
]

Lab = tuple[Network, local.LocalCluster]
HERE = f"CPU@{allowed_cores()[-1]}"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with _network.network(("head", "edge1", "edge2"), delay=1e-3) as made, _network.cluster(made) as ray:
        yield made, ray


@contextmanager
def session_on(devices: list[str], ray: local.LocalCluster, cache: Cache) -> Iterator[Session]:
    """Open a profiled session in this process, which is connected to the cluster as long as the session is open."""
    connection.connect(ray.address, token=ray.token, patience=5.0)
    try:
        with Session(inception_like(), devices, cache=cache) as session:
            session.profile(budget_s=1.0)
            yield session
    finally:
        connection.disconnect()


def there(node: str) -> str:
    return f"{node}/CPU@{allowed_cores()[0]}"


def serve_across_a_cut(made: Network, ray: local.LocalCluster, cache: Cache) -> tuple[int, list[str], str]:
    """Requests with a right answer, why the model was placed anew, and what a run on the lost node says."""
    with session_on([there("edge1"), HERE], ray, cache) as session:
        split = session.placement(np.arange(len(session.grouping.groups)) % 2)
        values = session.model.random_inputs(0)
        expected = session.reference(values)
        with session.executor(session.plan_of(split)) as executor:
            with session.serve(split, on_loss="replace") as server:
                server.submit(values).result(60)
                answers = [server.submit(values, timeout=60) for _ in range(20)]
                made.cut("edge1")
                answers += [server.submit(values, timeout=60) for _ in range(20)]
                outputs = [answer.result(60) for answer in answers]
            with pytest.raises(ExecutionError) as caught:
                executor.run(values, timeout=60)
        right = [all(np.allclose(one[name], expected[name], rtol=1e-3, atol=1e-4) for name in expected) for one in outputs]
        return sum(right), [replacement.why for replacement in server.replacements], str(caught.value)


def fail_across_a_cut(made: Network, ray: local.LocalCluster, cache: Cache) -> list[str]:
    """What requests say whose only node is cut off."""
    with session_on([there("edge2")], ray, cache) as session:
        placement = session.placement(np.zeros(len(session.grouping.groups), int))
        values = session.model.random_inputs(0)
        with session.serve(placement) as server:
            server.submit(values).result(60)
            made.cut("edge2")
            answers = [server.submit(values, timeout=60) for _ in range(10)]
            return [str(answer.exception(60)) for answer in answers]


def test_a_node_that_is_cut_off_silently_is_replaced_and_no_request_is_lost(lab: Lab, cache: Cache) -> None:
    right, whys, later = lab[0].call("head", serve_across_a_cut, *lab, cache)
    assert right == 40
    assert all(there("edge1") in why for why in whys)
    assert len(whys) == 1
    assert f"{there('edge1')} is lost" in later


def test_where_the_only_node_is_cut_off_silently_every_request_fails_with_the_reason(lab: Lab, cache: Cache) -> None:
    failures = lab[0].call("head", fail_across_a_cut, *lab, cache)
    assert len(failures) == 10
    assert all(f"{there('edge2')} is lost" in failure for failure in failures)
