"""A model with a tensor of every type, open on a core, and network servers of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from placeit.core.placement import Placement
from placeit.profiler.cache import Cache
from placeit.serve.network import NetworkServer, Options
from placeit.serve.served_model import ServedModel
from placeit.serving.server import Server
from placeit.session import Session
from tests.serve.network_server import TYPES, open_on_a_core, save_model


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory, cache: Cache) -> Iterator[tuple[Session, Placement]]:
    with open_on_a_core(save_model(tmp_path_factory.mktemp("types"), TYPES), cache) as found:
        yield found


@pytest.fixture
def single(tmp_path: Path, cache: Cache) -> Iterator[tuple[Session, Placement]]:
    """A model with one input."""
    with open_on_a_core(save_model(tmp_path, ["float32"]), cache) as found:
        yield found


@pytest.fixture
def server(opened: tuple[Session, Placement]) -> Iterator[Server]:
    """Run the model; one request is in flight, and three may wait."""
    session, placement = opened
    with session.serve(placement, in_flight=1, queue=3) as made:
        yield made


@pytest.fixture
def network(opened: tuple[Session, Placement], server: Server) -> Iterator[Callable[..., NetworkServer]]:
    """Serve the model as ``types`` on any free ports."""
    model = opened[0].model
    with contextlib.ExitStack() as stack:

        def make(*, beside: ServedModel | None = None, **options: Any) -> NetworkServer:
            served = [ServedModel("types", server, model.inputs, model.outputs), *([] if beside is None else [beside])]
            return stack.enter_context(NetworkServer(served, Options(**{"port": 0, "grpc_port": 0} | options)))

        yield make
