import numpy as np
import pytest

from placeit.core.errors import UsageError
from placeit.core.problem import Problem
from placeit.placers.fuser import Fuser, fuse
from placeit.placers.metis import partition
from placeit.simulator.throughput_bound import ThroughputCost
from placeit.testing.problems import random_problem


def chain(sizes, seconds, devices=2):
    """Make a chain whose edges carry the given bytes, at 1000 bytes a second."""
    edges = [(v, v + 1) for v in range(len(sizes))]
    compute = np.repeat(np.array(seconds, float)[:, None], devices, axis=1)
    return Problem.from_arrays(compute, edges, sizes, np.full((devices, devices), 1e3), np.zeros((devices, devices)))


def test_heavy_edges_are_fused_until_a_part_has_its_share_of_the_ops():
    assert fuse(chain([1, 9, 1, 8, 1], [1] * 6), 3).tolist() == [0, 1, 1, 2, 2, 0]
    assert fuse(chain([9, 9, 9, 1, 1], [1] * 6), 2).tolist() == [0, 0, 0, 1, 1, 1]


def test_how_long_ops_take_does_not_count():
    assert fuse(chain([1, 9, 1], [1, 1, 1, 97]), 2).tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 50])
def test_there_are_no_more_parts_than_asked_for_and_the_first_has_most_work(parts):
    problem = random_problem(20, 3, 1, everywhere=1.0)
    part = fuse(problem, parts)
    work = np.bincount(part, problem.compute.mean(axis=1))
    assert len(work) <= parts
    assert (np.diff(work) <= 0).all()
    assert np.bincount(part).min() > 0
    divided = partition(problem, parts)
    assert divided.shape == (20,)
    assert 0 <= divided.min() <= divided.max() < parts


def test_no_parts_are_refused():
    for divide in (fuse, partition):
        with pytest.raises(UsageError, match="parts=0"):
            divide(random_problem(5, 2, 0), 0)


def test_the_placer_keeps_the_best_number_of_parts():
    problem = chain([500] * 5, [0.1] * 6, devices=3)  # an edge takes a link as long as five ops take a device
    cost = ThroughputCost(problem)
    one, three, best = (cost(Fuser(parts=parts).place(problem, cost, seed=0, evaluations=None))[0] for parts in (1, 3, 0))
    assert (one, three, best) == pytest.approx((0.6, 0.5, 0.5))
    dear = chain([5000] * 5, [0.1] * 6, devices=3)
    assert len(set(Fuser().place(dear, ThroughputCost(dear), seed=0, evaluations=None).tolist())) == 1


def test_metis_divides_work_evenly_and_leaves_heavy_edges_whole():
    problem = chain([1, 900, 1, 900, 1], [1] * 6, devices=3)
    part = partition(problem, 3)
    assert part[1] == part[2]
    assert part[3] == part[4]
