import numpy as np
import pytest

from placeit.core.errors import ProblemError, UsageError
from placeit.core.problem import Problem
from placeit.learning.training.sources import draw_from, find_source, read_folder, simulated
from placeit.learning.workloads.datasets import giph_dataset
from placeit.learning.workloads.registry import dataset_names
from placeit.placers.heft import Heft
from placeit.simulator.simulate import simulate
from placeit.testing.problems import random_problem


@pytest.fixture
def folder(tmp_path):
    for seed in range(7):
        random_problem(4 + seed, 2, seed).to_json(tmp_path / f"p{seed}.json")
    return tmp_path


def test_the_index_of_generated_problems_is_not_a_problem(folder):
    (folder / "index.json").write_text('{"format": "placeit-problems"}')
    assert len(read_folder(folder)) == 7


def sizes(instances):
    return sorted(len(instance.problem) for instance in instances)


def test_what_is_held_out_of_a_folder_is_not_learned_from(folder):
    source = find_source(str(folder), held_out=3)
    drawn = source.draw(np.random.default_rng(0), 4, 0.0)
    assert source.size == 4
    assert sorted(sizes(drawn) + sizes(source.held_out)) == [4, 5, 6, 7, 8, 9, 10]
    assert sizes(find_source(str(folder), held_out=3).held_out) == sizes(source.held_out)


def test_a_fifth_of_a_folder_is_held_out_unless_told_otherwise(folder):
    assert len(find_source(str(folder)).held_out) == 1
    assert find_source(str(folder), held_out=0).size == 7


def test_costs_are_makespans_and_the_unit_is_the_critical_path(folder):
    instance = find_source(str(folder)).held_out[0]
    placement = np.argmin(instance.problem.compute, axis=1).astype(np.int32)[None]
    assert instance.cost(placement) == simulate(instance.problem, placement)
    assert instance.unit == instance.problem.critical_path


def test_a_draw_repeats_problems_only_when_there_are_too_few():
    instances = [simulated(random_problem(4 + i, 2, i)) for i in range(3)]
    draw = draw_from(instances)
    rng = np.random.default_rng(0)
    assert all(len(set(sizes(draw(rng, 3, 0.0)))) == 3 for _ in range(20))
    assert all(sizes(draw(rng, 6, 0.0)) == [4, 4, 5, 5, 6, 6] for _ in range(5))
    assert len({tuple(len(i.problem) for i in draw(rng, 3, 0.0)) for _ in range(40)}) == 6  # in any order


def test_the_problems_that_weights_are_chosen_by_are_neither_learned_from_nor_tests():
    source = find_source("single", held_out=2)
    assert source.size == 148
    train, tests = ([p.compute.tobytes() for p in part] for part in giph_dataset("single", 0))
    held_out = [instance.problem.compute.tobytes() for instance in source.held_out]
    drawn = {i.problem.compute.tobytes() for i in source.draw(np.random.default_rng(0), 148, 0.0)}
    assert held_out == train[148:]
    assert drawn == set(train[:148])
    assert not {*held_out, *drawn} & set(tests)


def test_what_has_neither_parts_nor_fresh_problems_is_not_for_training():
    with pytest.raises(UsageError, match="The problems 'churn' are not for training"):
        find_source("churn")


def test_more_problems_than_there_are_cannot_be_held_out():
    with pytest.raises(UsageError, match="There are 500 problems of kind 'multi' to train with; hold out fewer than 500"):
        find_source("multi", held_out=500)


def test_fresh_problems_never_end_and_are_not_those_held_out():
    source = find_source("random", held_out=3)
    drawn = source.draw(np.random.default_rng([0, 2]), 4, 0.0) + source.draw(np.random.default_rng([1, 2]), 4, 0.0)
    assert source.size is None
    assert len({instance.problem.compute.tobytes() for instance in (*drawn, *source.held_out)}) == 11


def test_problems_of_every_kind_are_measured_against_heft_and_grow():
    source = find_source("any", held_out=1)
    drawn = source.draw(np.random.default_rng(3), 4, 0.0)
    assert (source.size, source.unit) == (None, "HEFT's makespan")
    assert max(sizes(drawn)) <= 30
    for instance in drawn:
        assert instance.cost(Heft().plan(instance.problem).placement[None])[0] == instance.unit


def test_a_source_that_does_not_exist_is_an_error_that_lists_the_names(tmp_path):
    names = f"neither a folder of problems nor a set of them; the sets are {dataset_names()[0]}"
    with pytest.raises(UsageError, match=f"'none' is {names}"):
        find_source("none")
    with pytest.raises(UsageError, match="did you mean 'multi'"):
        find_source("mutli")
    with pytest.raises(UsageError, match=r"problems/none does not exist: name a folder of problems as JSON, such as"):
        find_source("problems/none")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file is a file: name a folder"):
        read_folder(tmp_path / "file")


def test_a_folder_with_too_few_problems_is_an_error(folder, tmp_path):
    with pytest.raises(UsageError, match=r"has 7 problems \(\*.json\); to hold out 7 of them for evaluation, it needs 8"):
        find_source(str(folder), held_out=7)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UsageError, match="empty has no problems"):
        find_source(str(empty))


def test_a_problem_that_takes_no_time_is_an_error_that_names_its_file(folder):
    Problem.from_arrays([[0.0]], [], [], [[1.0]], [[0.0]]).to_json(folder / "free.json")
    with pytest.raises(ProblemError, match=r"free\.json: A problem of 1 ops takes no time"):
        find_source(str(folder))


def test_a_file_that_holds_no_problem_is_an_error_that_names_it(folder):
    (folder / "other.json").write_text('{"compute": []}')
    with pytest.raises(ProblemError, match=r"other\.json: missing"):
        find_source(str(folder))
