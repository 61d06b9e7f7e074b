"""Which runs of a block count, and how many there are."""

import pytest

from placeit.measuring.blocks import BLOCK_S, SINGLE, SLOW_S, Block, alike, block_of, block_s, first_steady, is_enough, trial_s


@pytest.mark.parametrize(
    ("seconds", "skipped"),
    [
        ([1.0] * 12, 1),  # the first one always
        ([9, 5, 3, 1.02, 1, 1, 1, 1, 1, 1, 1, 1], 3),
        ([3, 1, 1, 1, 9, 1, 1, 1], 1),  # one disturbed run changes nothing
        ([float(20 - i) for i in range(20)], 8),  # it never becomes steady: at most eight
        ([float(6 - i) for i in range(6)], 3),  # at most half of them
        ([2.0, 1.0], 1),
        ([1.0], 0),
    ],
)
def test_first_runs_are_left_out_until_their_time_no_longer_falls(seconds, skipped):
    assert first_steady(seconds) == skipped


def test_a_trial_of_slow_runs_is_short():
    assert not is_enough([])
    assert not is_enough([1.0])
    assert is_enough([1.0, 1.0])


def test_a_trial_of_fast_runs_takes_as_long_as_a_block_or_32_runs():
    assert not is_enough([BLOCK_S / 2] * 3)
    assert is_enough([BLOCK_S / 2] * 4)
    assert not is_enough([1e-6] * 31)
    assert is_enough([1e-6] * 32)


def test_a_trial_goes_on_until_runs_are_steady():
    falling = [0.02, 0.01, 0.008, 0.006]
    assert not is_enough(falling)
    assert not is_enough([*falling, 0.006, 0.006, 0.006])
    assert is_enough([*falling, 0.006, 0.006, 0.006, 0.006])
    assert first_steady([*falling, 0.006, 0.006, 0.006, 0.006]) == 3
    assert is_enough([0.02 - 0.0005 * i for i in range(16)])  # at most sixteen


def test_a_block_has_its_length_in_runs_that_count():
    assert block_of([0.005, 0.003, 0.001, 0.001, 0.001, 0.001]) == Block(2, 21)
    assert block_of([0.007] * 4) == Block(1, 3)
    assert block_of([0.02] * 4) == Block(1, 1)


def test_slow_runs_are_blocks_by_themselves():
    assert block_of([2 * SLOW_S, SLOW_S]) == SINGLE
    assert block_of([9.0]) == SINGLE


def test_a_run_that_was_tried_once_still_has_a_first_run_to_leave_out():
    assert block_of([0.01]) == Block(1, 3)


def test_runs_at_a_pace_make_shorter_blocks_and_leave_out_as_many():
    assert block_of([0.005, 0.001, 0.001, 0.001], period=0.01) == Block(1, 3)
    assert block_of([0.005, 0.001, 0.001, 0.001], period=1.0) == Block(1, 1)


def test_a_block_runs_what_is_left_out_first():
    results = iter(range(5))
    assert Block(2, 3).steady(lambda: next(results)) == [2, 3, 4]


def test_runs_of_which_nothing_is_known_take_as_long_as_a_block():
    assert block_s(0.0) == pytest.approx(BLOCK_S, rel=0.01)
    assert 0 < trial_s(0.0) < BLOCK_S
    assert trial_s(1.0) == 2.0
    assert trial_s(0.002, period=0.01) == pytest.approx(0.04)


def test_the_length_of_a_block_can_be_told_without_a_trial():
    assert block_s(1.0) == 1.0
    assert block_s(0.001) == pytest.approx(0.022)
    assert block_s(0.001, period=0.1) == pytest.approx(0.2)


def test_programs_whose_runs_take_about_as_long_leave_out_as_many():
    blocks = {"a": Block(1, 5, 0.005), "b": Block(3, 5, 0.006), "much faster": Block(8, 21, 0.001), "slow": Block(0, 1, 1.0)}
    assert {name: one.skipped for name, one in alike(blocks).items()} == {"a": 3, "b": 3, "much faster": 8, "slow": 0}


def test_of_two_programs_of_which_one_is_just_slow_both_leave_out_the_first_run():
    assert alike({"a": Block(1, 1, 0.049), "b": Block(0, 1, 0.051)})["b"] == Block(1, 1)
