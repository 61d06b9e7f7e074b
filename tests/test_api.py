import json
import subprocess
import sys

import numpy as np
import pytest

import placeit
from placeit.devices.host import allowed_cores
from placeit.testing.problems import random_problem
from tests.small_models import inception_like


@pytest.mark.parametrize("name", placeit.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(placeit, name).__name__ == name


def test_every_error_can_be_imported_from_one_place() -> None:
    from placeit import errors
    from placeit.core import errors as defined

    raised = {name for name, value in vars(defined).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert raised == set(errors.__all__)
    assert all(getattr(errors, name) is getattr(defined, name) for name in raised)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"placeit.*'optimise'"):
        placeit.optimise  # noqa: B018


def test_public_names_are_listed_before_they_are_used() -> None:
    assert set(placeit.__all__) <= set(dir(placeit))


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import json, sys; before = set(sys.modules); import placeit; print(json.dumps(sorted(set(sys.modules) - before)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True).stdout)
    assert {name for name in loaded if name.startswith("placeit")} == {"placeit", "placeit.core", "placeit.core.version"}
    assert not {"numpy", "placeit._core", "openvino", "onnx", "torch", "rich", "typer"} & set(loaded)


@pytest.mark.parametrize(
    "first",
    [
        "import placeit.session",
        "from placeit.optimizer.result import Optimized",
        "import placeit; placeit.optimize",
    ],
)
def test_optimize_is_the_function_whatever_is_imported_first(first: str) -> None:
    code = f"{first}; import placeit; print(placeit.optimize.__module__, callable(placeit.optimize))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout == "placeit.session True\n"


def test_what_users_hold_shows_itself_in_a_few_lines(cache: placeit.Cache) -> None:
    problem = random_problem(20, 3)
    model = inception_like()
    with placeit.Session(model, [f"CPU@{allowed_cores()[0]}"], cache=cache) as session:
        costs = session.profile()
        placement = session.placement(np.zeros(len(session.grouping.groups), np.int32))
        plan, report = session.plan_of(placement), session.run(placement, runs=2)
        held = [problem, model, model.graph, session, session.cluster, session.grouping, costs, placement, plan, plan.schedule]
        held += [report, report.latency, report.done[0], session.estimate(), session.recording(report)]
        held.append(session.run(placement, traffic=placeit.Traffic(requests=2)))
        with session.serve(placement) as server:
            held.append(server)
            shown = [repr(one) for one in held]
    assert all(len(text.splitlines()) <= 14 and len(text) < 500 for text in shown), shown
    assert all(" object at " not in text for text in shown), shown
    assert shown[0].startswith("<Problem: 20 ops, ")
    assert repr(placement) in repr(report)


def test_a_budget_may_be_a_text() -> None:
    with pytest.raises(placeit.PlaceitError, match="'soon' is not a duration"):
        placeit.optimize("missing.onnx", f"CPU@{allowed_cores()[0]}", budget="soon")
    with pytest.raises(placeit.PlaceitError, match=r"missing\.onnx"):
        placeit.optimize("missing.onnx", f"CPU@{allowed_cores()[0]}", budget="1m30s")
