"""Each cell of the table is a test: the feature works, or is the error that the table says."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from placeit.core.errors import PlaceitError
from placeit.core.narrowing import narrowed
from placeit.session import Session
from placeit.testing.features import FEATURES, Subject
from tests.conformance.page import PAGE, as_page
from tests.conformance.table import CELLS, HERE, NODE, OTHER, Cell
from tests.gpu_plans import intel_gpus
from tests.plugin_site import install_sample

pytestmark = pytest.mark.two_cores


@pytest.fixture(autouse=True)
def _no_leaked_threads() -> None:
    """Leave the check to ``subject``: the sessions of several tests start threads when they need them."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], str]]:
    """Function that returns the name of a node, which the first call starts."""
    with contextlib.ExitStack() as stack:
        names: list[str] = []

        def started() -> str:
            if not names:
                pytest.importorskip("ray")
                from placeit.devices.nodes import connection, local

                folder = tmp_path_factory.mktemp("cluster")
                with pytest.MonkeyPatch.context() as patch:  # the node has the sample plug-in
                    patch.setenv("PYTHONPATH", os.pathsep.join(install_sample(folder / "site")))
                    cluster = local.start(local.names(1), file := folder / "cluster.json")
                stack.callback(cluster.stop, file)
                connection.connect(cluster.address, token=cluster.token)
                stack.callback(connection.disconnect)
                names.extend(local.names(1))
            return names[0]

        yield started


@pytest.fixture(scope="module")
def subject(
    request: pytest.FixtureRequest, node: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Subject | PlaceitError]:
    """The devices of a row with a session that its cells share, or the error that opening it gives."""
    kind, place = request.param
    before = set(threading.enumerate())
    with contextlib.ExitStack() as stack:
        folder, lose = tmp_path_factory.mktemp("conformance"), None
        if pytest.mark.intel_gpu in kind.marks:
            intel_gpus()
        if place == NODE:
            name = node()  # before the stand-ins, which it would get as well
            stack.enter_context(kind.prepared())
            devices, lose = (f"{name}/{kind.there}", f"CPU@{OTHER}"), kill
        else:
            stack.enter_context(kind.prepared())
            devices = kind.here() if callable(kind.here) else kind.here
        try:
            made = Subject(devices, folder, models=kind.models, precisions=kind.precisions, lose=lose)
            opened: Subject | PlaceitError = stack.enter_context(made)
        except PlaceitError as error:
            opened = error
        yield opened
    if place == HERE:
        assert set(threading.enumerate()) <= before


def kill(session: Session) -> Callable[[], None]:
    """Return a function that kills the process of the node that runs the first device."""
    from placeit.runtime.nodes.device import NodeDevice

    return lambda: os.kill(narrowed(NodeDevice, session.runtime.devices[0]).pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("subject", "cell"),
    [pytest.param((one.kind, one.place), one, marks=one.marks, id=str(one)) for one in CELLS],
    indirect=["subject"],
)
def test_a_feature_works_or_the_error_says_why_not(subject: Subject | PlaceitError, cell: Cell, tmp_path) -> None:
    def use() -> None:
        if isinstance(subject, PlaceitError):
            raise subject
        FEATURES[cell.feature](subject)

    if not cell.reason:
        use()
        return
    with pytest.raises(PlaceitError) as caught:
        use()
    assert cell.reason in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_the_page_has_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == as_page(text), "python -m tests.conformance.page writes the table"
