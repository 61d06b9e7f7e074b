import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from placeit.core.errors import UsageError
from placeit.learning.training.baselines import BASELINES, Episodes, find_baseline, returns

REWARDS = np.array([[1.0, 4.0, 8.0], [2.0, 6.0, 2.0], [3.0, 0.0, 0.0]])
VALID = np.array([[True, True, True], [True, True, True], [True, False, False]])
PROBLEM = np.array([0, 7, 7])


def episodes(gamma=0.5):
    return Episodes(REWARDS, returns(REWARDS, gamma), VALID, PROBLEM, np.ones(3, bool))


def test_returns_are_discounted_sums_of_what_is_still_to_come():
    # 1 + 2/2 + 3/4, 2 + 3/2, 3; 4 + 6/2, 6; 8 + 2/2, 2
    assert returns(REWARDS, 0.5).tolist() == [[2.75, 7.0, 9.0], [3.5, 6.0, 2.0], [3.0, 0.0, 0.0]]


@given(arrays(float, (5, 2), elements=st.floats(-9, 9)), st.floats(0, 1))
def test_a_return_is_a_reward_and_the_discounted_return_of_the_next_step(rewards, gamma):
    sums = returns(rewards, gamma)
    assert np.allclose(sums[:-1], rewards[:-1] + gamma * sums[1:])
    assert np.array_equal(sums[-1], rewards[-1])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", [[0, 0, 0], [0, 0, 0], [0, 0, 0]]),
        ("episode-mean", [[0, 0, 0], [1, 4, 8], [1.5, 5, 5]]),  # of the rewards before the step
        ("batch", [[6.25, 6.25, 6.25], [11.5 / 3, 11.5 / 3, 11.5 / 3], [3, 3, 3]]),  # the third step is one episode's
        ("problem", [[2.75, 8, 8], [3.5, 4, 4], [3, 0, 0]]),
        ("moving", [[6.25, 6.25, 6.25]] * 3),  # nothing before: the batch's own mean return from the first step
    ],
)
def test_a_baseline_is_what_a_hand_computes(name, expected):
    assert np.allclose(BASELINES[name](episodes(), {}), expected)


def test_the_moving_baseline_is_the_mean_over_all_earlier_episodes():
    memory = {}
    BASELINES["moving"](episodes(), memory)  # returns from the first step: 2.75, 7, 9
    one = np.array([[5.25]])
    second = BASELINES["moving"](Episodes(one, one, one > 0, np.zeros(1, int), np.ones(1, bool)), memory)
    third = BASELINES["moving"](episodes(), memory)
    assert np.allclose(second, (2.75 + 7 + 9) / 3)
    assert np.allclose(third, (2.75 + 7 + 9 + 5.25) / 4)


@pytest.mark.parametrize("name", BASELINES)
def test_no_baseline_minds_episodes_without_decisions(name):
    empty = np.zeros((0, 2))
    assert BASELINES[name](Episodes(empty, empty, empty > 0, np.array([0, 1]), np.ones(2, bool)), {}).shape == (0, 2)


def test_an_unknown_baseline_is_an_error_that_lists_the_known_ones():
    with pytest.raises(UsageError, match="no baseline 'mean'; the baselines are none, episode-mean, batch"):
        find_baseline("mean")
