import json
import subprocess
import sys

import pytest

import placeit


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
