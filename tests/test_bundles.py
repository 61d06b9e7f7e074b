"""Bundles: what is built of a placement runs elsewhere, without the model, and says what is wrong where it does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_models import inception_like, random_model

import placeit
from placeit.core.placement import Placement
from placeit.session import Session


def placed(session: Session, seed: int) -> Placement:
    """A random placement of the groups of a session, with segments."""
    groups = np.random.default_rng(seed).integers(0, len(session.cluster), len(session.grouping.groups))
    return session.placement(groups, session.segmenter.plan(groups))


def built(session: Session, placement: Placement, path: Path) -> Path:
    session.build(placement, path)
    return path


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a split model."""
    with Session(inception_like(), ["CPU@0", "CPU@1"], cache=None) as session:
        session.profile(budget_s=0.1)
        return built(session, placed(session, 0), tmp_path_factory.mktemp("bundles") / "inception.placeit")


@pytest.mark.parametrize("name", ["app.placeit", "app"])
def test_a_bundle_computes_what_the_model_does_in_an_archive_and_in_a_folder(name: str, tmp_path: Path) -> None:
    with Session(random_model(3, 30), ["CPU@0", "CPU@1"], cache=None) as session:
        session.profile(budget_s=0.1)
        path = built(session, placed(session, 1), tmp_path / name)
        inputs = session.model.random_inputs(5)
        expected = session.reference(inputs)
    with placeit.load(path) as application:
        outputs = application.run(inputs)
        assert [spec.name for spec in application.outputs] == list(expected)
        assert outputs.keys() == expected.keys()
        for output, value in expected.items():
            np.testing.assert_allclose(outputs[output], value, rtol=1e-4, atol=1e-4)
        assert application.check().max_rel <= application.tolerance
        assert application.differences == ()


def test_a_server_of_a_bundle_answers(bundle: Path) -> None:
    with placeit.load(bundle) as application:
        inputs, expected = application.session.model.samples[0]
        with application.server(in_flight=2, queue=8) as server:
            answers = [server.submit(inputs) for _ in range(4)]
            for answer in answers:
                for name, value in expected.items():
                    np.testing.assert_allclose(answer.result(timeout=60)[name], value, rtol=1e-4, atol=1e-4)
