import subprocess
import sys
from importlib.metadata import EntryPoint
from itertools import islice

import pytest

from placeit.core import registry as names
from placeit.core.errors import UsageError
from placeit.learning.workloads import registry
from placeit.learning.workloads.registry import dataset_names, find_dataset, some_problems

BUILT_IN = ("any", "churn", "multi", "random", "recurrent", "sensor-fusion", "single", "streams")


@pytest.fixture
def plugin(monkeypatch):
    """Have an installed package name something as its data set."""

    def install(name: str, target: str) -> None:
        monkeypatch.setattr(names, "entry_points", lambda group: [EntryPoint(name, target, group)])
        registry._table.cache_clear()

    yield install
    registry._table.cache_clear()


def test_the_data_sets_that_ship_are_known_by_name_without_being_imported():
    code = (
        "import sys; from placeit.learning.workloads.registry import dataset_names\n"
        "print(dataset_names(), 'placeit.learning.workloads.datasets' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout == f"{BUILT_IN} False\n"


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_data_set_comes_again_with_its_seed_and_its_parts_differ(name):
    dataset = find_dataset(name)
    splits = ("train", "test") if dataset.parts else (None,)
    keys = {split: [case.problem.key for case in islice(dataset.cases(split, 3), 3)] for split in splits}
    assert keys == {split: [case.problem.key for case in islice(dataset.cases(split, 3), 3)] for split in splits}
    found = [key for part in keys.values() for key in part]
    assert len(set(found)) == len(found)
    other = [case.problem.key for split in splits for case in islice(dataset.cases(split, 4), 3)]
    assert not set(other) & set(found)


@pytest.mark.parametrize("name", [name for name in BUILT_IN if find_dataset(name).graphs is not None])
def test_a_data_set_with_usual_values_takes_others(name):
    dataset = find_dataset(name)
    split = "train" if dataset.parts else None
    graphs, networks = {**dataset.graphs, "tasks": (4,)}, {**dataset.networks, "devices": (22,)}
    case = next(dataset.cases(split, 0, graphs=graphs, networks=networks, max_tasks=5))
    assert len(case.problem) <= 5
    assert case.problem.devices == 22


def test_an_unknown_data_set_is_an_error_that_lists_the_known_ones():
    with pytest.raises(UsageError, match=f"no data set 'mine'; the data sets are {', '.join(BUILT_IN)}"):
        find_dataset("mine")


def test_a_plugin_adds_a_data_set(plugin):
    plugin("mine", "placeit.learning.workloads.datasets:SINGLE")
    assert dataset_names() == tuple(sorted((*BUILT_IN, "mine")))
    assert find_dataset("mine") is find_dataset("single")


@pytest.mark.parametrize(
    ("name", "target", "message"),
    [
        (
            "mine",
            "placeit.learning.workloads.datasets:cases",
            r"'mine' \(placeit.learning.workloads.datasets:cases\) is not a .*Dataset",
        ),
        ("mine", "no_such_module:X", "The data set 'mine' .* cannot be loaded: No module named 'no_such_module'"),
        ("single", "mine:X", "Two data sets are named 'single'"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_an_error_that_names_it(plugin, name, target, message):
    plugin(name, target)
    with pytest.raises(UsageError, match=message):
        find_dataset(name)


def test_fewer_problems_than_asked_for_are_an_error_and_without_a_number_all_are_taken():
    few = list(islice(find_dataset("random").cases(None, 0), 3))
    assert len(some_problems(iter(few), "few", None, None)) == 3
    with pytest.raises(UsageError, match="There are 3 problems of kind 'few', fewer than 4"):
        some_problems(iter(few), "few", None, 4)
