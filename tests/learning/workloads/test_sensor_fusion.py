import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeit.core.errors import UsageError
from placeit.learning.workloads.mobility import Sighting, grid_points, traffic
from placeit.learning.workloads.sensor_fusion import (
    BLOCK_M,
    MEAN_MS,
    RANGE_M,
    SIDE,
    fit_latency,
    random_scene,
    sensor_fusion_case,
    sensor_fusion_trace,
)

SCENE = random_scene(np.random.default_rng(0))
EXTENT = (SIDE - 1) * BLOCK_M
BETWEEN = Sighting(0.0, 7, 1.5 * BLOCK_M, BLOCK_M)  # half-way from the intersection (1, 1) to (2, 1)


def test_the_latency_model_gives_the_measured_times_of_table_1():
    for measured in (MEAN_MS[:2], MEAN_MS[2:], MEAN_MS[1::-1]):
        model = fit_latency(measured / 1e3)
        assert model.seconds == pytest.approx(measured / 1e3)
        assert model.compute.max() == 1.0
        assert model.startup.min() == pytest.approx(0.0, abs=1e-12)


@given(st.lists(st.tuples(st.floats(1e-3, 10), st.floats(0.01, 0.99)), min_size=1, max_size=5))
def test_a_latency_model_of_two_tasks_is_exact_and_never_negative(times):
    measured = np.array([[long for long, _ in times], [long * share for long, share in times]])
    model = fit_latency(measured)
    assert model.seconds == pytest.approx(measured)
    assert min(model.compute.min(), model.per_unit.min(), model.startup.min()) >= 0


@pytest.mark.parametrize("times", [[[1.0, 2.0], [2.0, 1.0]], [[1.0], [1.0]], [[1.0], [2.0], [3.0]], [1.0, 2.0]])
def test_a_latency_model_needs_two_tasks_of_which_one_is_longer(times):
    with pytest.raises(UsageError, match="one of which takes longer on every device type"):
        fit_latency(np.array(times))


def test_a_scene_has_the_devices_of_the_paper():
    assert (SCENE.rsus, len(SCENE.kind)) == (36, 76)
    assert np.bincount(SCENE.kind[36:]).tolist() == [10, 10, 20]
    assert set(SCENE.kind[:36]) == {2}
    assert SCENE.position.min() >= 0
    assert SCENE.position.max() <= EXTENT
    assert np.array_equal(SCENE.position[:36], grid_points(6, BLOCK_M))


def test_tasks_run_and_start_on_the_devices_as_measured():
    by_type = [int(np.flatnonzero(SCENE.kind == kind)[0]) for kind in range(3)]
    assert SCENE.seconds[:, by_type] * 1e3 == pytest.approx(MEAN_MS)
    startup = SCENE.startup_s[:, by_type] * 1e3
    assert startup[:, 0].tolist() == pytest.approx([4273.73, 60.98, 0.39, 2.83])
    assert startup[:, 2].tolist() == pytest.approx([794.66, 9.26, 0.11, 1.00])
    assert (startup[:2, 2] < startup[:2, 1]).all()
    assert (startup[:2, 1] < startup[:2, 0]).all()
    assert startup[2:, 1] == pytest.approx(startup[2:, 0])  # as long on B as on A, like the fusions themselves


def test_a_vehicle_between_intersections_brings_the_pipelines_of_the_paper():
    case = sensor_fusion_case(SCENE, BETWEEN)
    problem = case.problem
    rsus = ["rsu7", "rsu8"]
    edges = {(problem.op_names[u], problem.op_names[v]) for u, v in problem.edges.tolist()}
    cameras = ["vehicle7/camera", *(f"{rsu}/camera{c}" for rsu in rsus for c in range(4))]
    expected = {(camera, f"{camera}/detection") for camera in [*cameras, "vehicle7/lidar"]}
    expected |= {(f"vehicle7/{sensor}/detection", "vehicle7/fusion") for sensor in ("camera", "lidar")}
    expected |= {(f"{rsu}/camera{c}/detection", f"{rsu}/fusion") for rsu in rsus for c in range(4)}
    expected |= {("vehicle7/fusion", f"{rsu}/fusion") for rsu in rsus}
    assert edges == expected
    assert len(problem) == 5 + 9 * 2
    assert problem.order.tolist() == list(range(len(problem)))
    kinds = dict(zip(problem.op_names, problem.kinds, strict=True))
    assert (kinds["vehicle7/lidar"], kinds["vehicle7/lidar/detection"]) == ("sensing", "LIDAR detection")
    assert (kinds["vehicle7/fusion"], kinds["rsu8/fusion"]) == ("vehicle fusion", "road-side fusion")
    assert kinds["rsu7/camera3/detection"] == "camera detection"


def test_sensors_sense_where_they_are_and_everything_else_runs_on_every_device():
    case = sensor_fusion_case(SCENE, BETWEEN, reach_m=math.inf)
    problem = case.problem
    assert problem.devices == 76 + 1 + 4 * 2
    device = {name: d for d, name in enumerate(problem.device_names)}
    for v, name in enumerate(problem.op_names):
        able = np.flatnonzero(problem.feasible[v]).tolist()
        sensing = name.split("/")[-1] in ("camera", "lidar") or name.split("/")[-1].startswith("camera")
        if sensing:
            assert able == [device.get(name, device["vehicle7"])]
            assert problem.compute[v, able[0]] == 0
            assert case.migration_bytes[v] == case.static_bytes[v] == 0
        else:
            assert able == list(range(76))
            assert case.migration_bytes[v] > 0
            assert case.static_bytes[v] > 0
    assert np.array_equal(np.isfinite(case.startup_s), problem.feasible)


def test_links_decay_with_distance():
    problem = sensor_fusion_case(SCENE, BETWEEN, reach_m=math.inf).problem
    device = {name: d for d, name in enumerate(problem.device_names)}
    for other, metres in (("rsu7", BLOCK_M / 2), ("rsu8", BLOCK_M / 2), ("rsu1", math.hypot(BLOCK_M / 2, BLOCK_M))):
        expected = 60e6 / 8 * math.exp(-metres / 100)
        assert problem.bandwidth[device["vehicle7"], device[other]] == pytest.approx(expected)
    assert problem.bandwidth[device["rsu7"], device["rsu7/camera2"]] == pytest.approx(60e6 / 8 * math.exp(-0.15))
    assert not problem.latency.any()


@settings(max_examples=30)
@given(st.floats(0, EXTENT), st.floats(0, EXTENT))
def test_only_devices_within_reach_are_used(x, y):
    names = sensor_fusion_case(SCENE, Sighting(0.0, 0, x, y)).problem.device_names
    distance = dict(zip(SCENE.names, np.hypot(*(SCENE.position - (x, y)).T), strict=True))
    assert {name for name in names if name in distance} == {name for name in distance if distance[name] <= RANGE_M}


def test_a_vehicle_far_from_every_road_side_unit_is_no_case():
    with pytest.raises(UsageError, match="vehicle 3 at \\(-900, 0\\)"):
        sensor_fusion_case(SCENE, Sighting(0.0, 3, -900.0, 0.0))


def test_vehicles_stay_on_the_streets_and_keep_to_their_speed():
    sightings = traffic(np.random.default_rng(1), side=4, block_m=100.0, vehicles=40, duration_s=600.0, interval_s=5.0)
    last = {}
    for s in sightings:
        assert s.time_s % 5 == 0
        assert 0 <= s.time_s < 600
        assert min(abs(s.x / 100 - round(s.x / 100)), abs(s.y / 100 - round(s.y / 100))) < 1e-9
        assert 0 <= min(s.x, s.y) <= max(s.x, s.y) <= 300
        if s.vehicle in last:
            before = last[s.vehicle]
            assert s.time_s - before.time_s == 5
            assert abs(s.x - before.x) + abs(s.y - before.y) <= 14 * 5 + 1e-6
        last[s.vehicle] = s
    assert len(last) > 30
    assert [(s.time_s, s.vehicle) for s in sightings] == sorted((s.time_s, s.vehicle) for s in sightings)


def test_vehicles_enter_from_all_sides():
    first = {}
    for s in traffic(np.random.default_rng(2), side=5, block_m=1000.0, vehicles=80, interval_s=1.0):
        first.setdefault(s.vehicle, s)
    edges = [[s.y < 20, s.y > 3980, s.x < 20, s.x > 3980] for s in first.values() if s.time_s > 0]
    assert np.sum(edges, axis=0).min() > 5


def test_an_hour_of_traffic_has_more_than_900_cases_and_comes_again_with_its_seed():
    trace = sensor_fusion_trace(SCENE, np.random.default_rng(3), connected=60)
    assert len(trace) > 900
    assert trace == sensor_fusion_trace(SCENE, np.random.default_rng(3), connected=60)
    near = [(np.hypot(*(SCENE.position[:36] - (s.x, s.y)).T) <= RANGE_M).sum() for s in trace]
    assert min(near) >= 1
    assert 2.5 <= np.mean(near) <= 4
