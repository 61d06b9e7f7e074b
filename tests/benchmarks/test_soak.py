"""Hundreds of placements in one session, of a model of 27 ops."""

import numpy as np
import pytest

from benchmarks import soak
from benchmarks._harness import Args, Report, main

pytestmark = pytest.mark.usefixtures("small_model")


@pytest.mark.slow
def test_three_hundred_placements_leave_memory_and_threads_within_their_bounds() -> None:
    report = Report()
    soak.run(Args(), report)
    claims = {claim["name"]: claim for claim in report.claims}
    assert claims["inception_v3: most memory over the start"]["holds"]
    assert claims["inception_v3: most threads over the start"]["holds"]
    assert claims["inception_v3: threads left after the session"]["value"] <= 5
    assert claims["inception_v3: memory left after the session"]["value"] < 0.3
    done = [row["placements"] for row in report.rows if row["at"] == "placement"]
    assert done == list(range(30, 301, 30))
    assert all(row["grown_mb"] <= row["most_mb"] and row["threads"] <= row["most_threads"] for row in report.rows)


@pytest.mark.slow
def test_a_bound_that_is_exceeded_is_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "_QUICK", 2)
    main("soak", soak.run, ["--quick", "--json"], judge=True)
    monkeypatch.setattr(soak, "_MOST", soak.Use(0.0, 0.0))
    with pytest.raises(SystemExit) as ended:
        main("soak", soak.run, ["--quick", "--json"], judge=True)
    assert ended.value.code == 1


@pytest.mark.parametrize("groups", [2, 3, 40])
def test_placements_are_of_all_groups_on_two_devices(groups: int) -> None:
    random = np.random.default_rng(0)
    for number in range(20):
        placement = soak._placement(random, groups, number)
        assert placement.shape == (groups,)
        assert set(placement.tolist()) <= {0, 1}
