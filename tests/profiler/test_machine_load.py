"""Which periods other processes disturb."""

from __future__ import annotations

import pytest

from placeit.profiler.machine_load import Reading, Watch


def watch(*readings: tuple[float, float, float, float]) -> Watch:
    """A watch that reads these: on its construction, and at the begin and the end of each period."""
    each = iter(readings)
    return Watch(lambda: Reading(*next(each)))


QUIET = (0.0, 0.0, 0.0, 1e-5)


@pytest.mark.parametrize(
    ("end", "disturbed"),
    [
        ((0.1, 0.0, 0.0, 1e-5), False),
        ((0.1, 0.005, 0.0, 1e-5), False),  # threads always wait a little for cores that are about to be free
        ((0.1, 0.006, 0.0, 1e-5), True),
        ((0.005, 0.0005, 0.0, 1e-5), False),
        ((0.005, 0.003, 0.0, 1e-5), True),
        ((0.1, 0.0, 0.004, 1e-5), False),
        ((0.1, 0.0, 0.01, 1e-5), True),
        ((0.1, 0.0, 0.0, 1.4e-5), False),
        ((0.1, 0.0, 0.0, 1.6e-5), True),
    ],
    ids=["quiet", "waits", "waits long", "short", "short, waits", "stolen little", "stolen", "control", "control is slow"],
)
def test_a_period_is_disturbed_by_what_waits_is_stolen_or_slows_down(
    end: tuple[float, float, float, float], *, disturbed: bool
) -> None:
    made = watch(QUIET, QUIET, end)
    made.begin()
    assert made.disturbed() is disturbed


def test_threads_of_one_process_that_share_cores_wait_for_each_other() -> None:
    made = watch(QUIET, QUIET, (0.1, 0.05, 0.0, 1e-5), (0.1, 0.05, 0.02, 1e-5))
    made.begin()
    assert not made.disturbed(alone=False)
    assert made.disturbed(alone=False), "a hypervisor took cores away"


def test_only_what_is_counted_within_a_period_matters() -> None:
    made = watch(QUIET, (1.0, 0.9, 0.9, 1e-5), (1.1, 0.9, 0.9, 1e-5), (2.0, 1.5, 0.9, 1e-5), (2.1, 1.6, 0.9, 1e-5))
    made.begin()
    assert not made.disturbed()
    made.begin()
    assert made.disturbed()


def test_the_control_is_compared_with_its_best_so_far() -> None:
    made = watch((0.0, 0.0, 0.0, 3e-5), (0.0, 0.0, 0.0, 3e-5), (0.1, 0.0, 0.0, 3e-5), (0.2, 0, 0, 1e-5), (0.3, 0, 0, 3e-5))
    made.begin()
    assert not made.disturbed()
    made.begin()
    assert made.disturbed()


def test_what_this_system_counts_can_be_read() -> None:
    made = Watch()
    made.begin()
    assert made.disturbed() in (True, False)
