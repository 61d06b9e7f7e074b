import hashlib
import json
import subprocess
import sys
import weakref
from itertools import islice

import numpy as np
import pytest

from placeit.core.errors import FileError, UsageError
from placeit.core.problem import Problem
from placeit.learning.workloads.datasets import (
    GRAPH_CHOICES,
    Case,
    cases,
    churn_cases,
    draw_problem,
    giph_dataset,
    random_cases,
    random_problem_stream,
    sensor_fusion_cases,
)
from placeit.learning.workloads.export import export_cases

KINDS = ("single", "multi", "recurrent", "sensor-fusion")


def fingerprint(problem: Problem) -> str:
    digest = hashlib.sha256()
    for array in (problem.compute, problem.edges, problem.edge_bytes, problem.bandwidth, problem.latency):
        digest.update(array.tobytes())
    return digest.hexdigest()


def network_of(problem: Problem) -> bytes:
    return problem.bandwidth.tobytes()


def graph_of(problem: Problem) -> bytes:
    return problem.edges.tobytes() + problem.edge_bytes.tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_a_dataset_comes_again_with_its_seed_and_sizes_only_cut_it(kind):
    train, test = giph_dataset(kind, 3, train=4, test=3)
    assert (len(train), len(test)) == (4, 3)
    fewer, more = giph_dataset(kind, 3, train=2, test=5)
    assert [fingerprint(p) for p in fewer] == [fingerprint(p) for p in train[:2]]
    assert [fingerprint(p) for p in more[:3]] == [fingerprint(p) for p in test]
    assert fingerprint(giph_dataset(kind, 4, train=1, test=0)[0][0]) != fingerprint(train[0])


@pytest.mark.parametrize("kind", KINDS)
def test_no_problem_is_trained_on_and_tested_on(kind):
    train, test = giph_dataset(kind, 1, train=60, test=60)
    assert len({fingerprint(p) for p in (*train, *test)}) == 120


def test_another_process_draws_the_same():
    code = (
        "from placeit.learning.workloads.datasets import giph_dataset\n"
        "for kind in ('single', 'multi', 'recurrent', 'sensor-fusion'):\n"
        "    print(giph_dataset(kind, 5, train=2, test=0)[0][1].compute.tobytes().hex())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.split() == [giph_dataset(kind, 5, train=2, test=0)[0][1].compute.tobytes().hex() for kind in KINDS]


def test_the_single_network_case_has_300_graphs_on_one_network():
    train, test = giph_dataset("single")
    assert (len(train), len(test)) == (150, 150)
    assert len({network_of(p) for p in (*train, *test)}) == 1
    assert len({graph_of(p) for p in (*train, *test)}) == 300


def test_the_multiple_network_case_has_500_pairs_of_10_networks_and_120_graphs_to_test():
    train, test = giph_dataset("multi")
    assert (len(train), len(test)) == (500, 500)
    for part in (train, test):
        assert len({network_of(p) for p in part}) == 10
        assert 100 < len({graph_of(p) for p in part}) <= 120
        assert len({fingerprint(p) for p in part}) == 500
    assert not {network_of(p) for p in train} & {network_of(p) for p in test}
    assert not {graph_of(p) for p in train} & {graph_of(p) for p in test}


def test_the_recurrent_case_has_ten_cells_on_one_network_of_eight_devices():
    found = [case for split in ("train", "test") for case in islice(cases("recurrent", split), 20)]
    assert len({network_of(case.problem) for case in found}) == 1
    assert {case.problem.compute.shape for case in found} == {(40, 8)}
    assert len({json.dumps(case.parameters["cell"]) for case in found}) == 10
    assert all(20 <= case.parameters["steps"] <= 30 and 80 <= case.parameters["batch"] <= 150 for case in found)


def test_no_cell_is_unrolled_alike_to_train_and_to_test():
    parts = [list(islice(cases("recurrent", split), 100)) for split in ("train", "test")]
    keys = [{(c.parameters["cell_number"], c.parameters["steps"], c.parameters["batch"]) for c in part} for part in parts]
    assert [len(key) for key in keys] == [100, 100]
    assert not keys[0] & keys[1]


def test_sensor_fusion_trains_on_the_first_half_hour_and_tests_on_the_second():
    train = [case.sighting.time_s for case in islice(sensor_fusion_cases("train"), 60)]
    test = [case.sighting.time_s for case in islice(sensor_fusion_cases("test"), 60)]
    assert max(train) < 1800 <= min(test)
    assert len(train) == len(test) == 60


def test_problems_of_the_usual_parameters_look_like_the_papers():
    problems = list(islice(random_problem_stream(0), 300))
    tasks, devices = np.array([len(p) for p in problems]), np.array([p.devices for p in problems])
    assert tasks.min() >= 5
    assert tasks.max() <= 100
    assert (devices.min(), devices.max()) == (4, 20)
    assert 25 <= np.median(tasks) <= 50
    able = np.array([p.feasible.sum(axis=1).mean() / p.devices for p in problems])
    assert 0.25 <= able.mean() <= 0.45
    assert len({fingerprint(p) for p in problems}) == 300


def test_a_curriculum_can_bound_the_graphs_and_choose_the_networks():
    rng = np.random.default_rng(0)
    for most in (3, 8, 20):
        assert max(len(draw_problem(rng, max_tasks=most)) for _ in range(20)) <= most
    small = islice(random_problem_stream(1, networks={"devices": (3,)}, graphs={"tasks": (5,)}), 5)
    assert {p.devices for p in small} == {3}


def test_a_stream_and_its_cases_are_the_same_problems():
    pairs = zip(random_problem_stream(2), islice(random_cases(2), 5), strict=False)
    assert all(fingerprint(problem) == fingerprint(case.problem) for problem, case in pairs)


def test_churn_cases_place_one_graph_on_networks_of_16_to_20_devices():
    found = list(islice(churn_cases(1), 12))
    assert len({graph_of(case.problem) for case in found}) == 1
    assert found[0].problem.devices == 20
    assert {case.problem.devices for case in found} <= set(range(16, 21))


def test_what_does_not_exist_is_refused():
    with pytest.raises(UsageError, match="There is no dataset 'double'; there are single, multi"):
        giph_dataset("double")
    with pytest.raises(UsageError, match="There is no split 'dev'"):
        cases("single", "dev")
    with pytest.raises(UsageError, match="The seed -1 is negative"):
        giph_dataset("single", -1)
    with pytest.raises(UsageError, match="There are 1200 problems of kind 'multi' to train with, fewer than 1201"):
        giph_dataset("multi", train=1201, test=0, graphs={"tasks": (1,)}, networks={"devices": (2,)})
    with pytest.raises(UsageError, match="has no parameter 'size'"):
        giph_dataset("single", networks={"size": (2,)})


def test_exported_problems_are_read_back_with_what_they_were_generated_from(tmp_path):
    found = list(islice(cases("sensor-fusion", "train"), 2)) + list(islice(random_cases(1), 1))
    export_cases(found, tmp_path / "a" / "b", "mixed", {"seed": 1})
    index = json.loads((tmp_path / "a" / "b" / "index.json").read_text())
    assert (index["format"], index["version"], index["seed"]) == ("placeit-problems", 1, 1)
    assert [problem["file"] for problem in index["problems"]] == [f"mixed-00{i}.json" for i in range(3)]
    for case, entry in zip(found, index["problems"], strict=True):
        again = Problem.from_json(tmp_path / "a" / "b" / entry["file"])
        assert fingerprint(again) == fingerprint(case.problem)
        assert (entry["ops"], entry["devices"]) == again.compute.shape
    startup = index["problems"][0]["parameters"]["startup_s"]
    assert np.array_equal([[s is not None for s in row] for row in startup], found[0].problem.feasible)


def test_problems_are_not_written_among_other_files(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(FileError, match="is not empty"):
        export_cases([Case(draw_problem(np.random.default_rng(0)), {})], tmp_path, "x", {})
    with pytest.raises(FileError, match="Cannot write to the folder"):
        export_cases([], tmp_path / "mine.txt" / "x", "x", {})
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_problems_are_written_one_by_one_and_none_is_kept(tmp_path):
    alive = weakref.WeakSet()
    most = 0

    def watched():
        nonlocal most
        for case in random_cases(0, graphs={**GRAPH_CHOICES, "tasks": (5,)}):
            alive.add(case.problem)
            most = max(most, len(alive))
            yield case

    export_cases(watched(), tmp_path / "out", "x", {}, count=40)
    assert len(list((tmp_path / "out").glob("x-*.json"))) == 40
    assert most <= 4


def test_ctrl_c_leaves_whole_files_and_an_index_of_them(tmp_path):
    def interrupted():
        yield from islice(random_cases(0), 3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_cases(interrupted(), tmp_path / "out", "x", {"seed": 0}, count=10)
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    listed = [problem["file"] for problem in index["problems"]]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(["index.json", *listed])
    assert len(listed) == 3
    for file in listed:
        Problem.from_json(tmp_path / "out" / file)


def test_an_error_after_some_problems_leaves_nothing(tmp_path):
    def failing():
        yield from islice(random_cases(0), 3)
        raise FileError("the disk is full")

    with pytest.raises(FileError, match="the disk is full"):
        export_cases(failing(), tmp_path / "a" / "out", "x", {}, count=10)
    assert not (tmp_path / "a").exists()


def test_generating_imports_nothing_heavy():
    heavy = ["openvino", "torch", "matplotlib", "rich"]
    code = (
        "import sys\n"
        "import placeit.learning.workloads.datasets, placeit.learning.workloads.export\n"
        f"print([name for name in {heavy!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout == "[]\n"
