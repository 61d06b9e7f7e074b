from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placeit.profiler.prediction_error import mape, pearson, spearman

floats = st.floats(allow_nan=True, allow_infinity=True)
pairs = st.lists(st.tuples(floats, floats), max_size=12)


def test_the_mean_error_is_relative_to_what_was_measured() -> None:
    assert mape([110, 80], [100, 100]) == pytest.approx(0.15)
    assert mape([1, 2], [1, 2]) == 0


@pytest.mark.parametrize(("predicted", "measured"), [([], []), ([1], [0]), ([float("nan")], [1]), ([1], [float("inf")])])
def test_the_mean_error_is_none_where_it_is_not_defined(predicted: list[float], measured: list[float]) -> None:
    assert mape(predicted, measured) is None


def test_correlations_of_known_data() -> None:
    x, y = [1.0, 2, 3, 4, 5], [2.0, 1, 4, 3, 5]
    assert pearson(x, y) == pytest.approx(0.8)
    assert spearman(x, y) == pytest.approx(0.8)
    assert pearson(x, [1, 4, 9, 16, 25]) == pytest.approx(0.9811049)
    assert spearman(x, [1, 4, 9, 16, 25]) == pytest.approx(1)
    assert spearman(x, [5, 4, 3, 2, 1]) == pytest.approx(-1)


def test_equal_values_share_their_mean_rank() -> None:
    # ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(np.corrcoef([1, 2.5, 2.5, 4], [1, 2, 3, 4])[0, 1])


@pytest.mark.parametrize("function", [pearson, spearman])
@pytest.mark.parametrize(("x", "y"), [([], []), ([1], [2]), ([1, 1], [1, 2]), ([1, 2], [0, 0]), ([1, float("nan")], [1, 2])])
def test_a_correlation_is_none_where_it_is_not_defined(function: object, x: list[float], y: list[float]) -> None:
    assert callable(function)
    assert function(x, y) is None


@given(pairs)
def test_figures_of_any_data_are_in_range_or_none(points: list[tuple[float, float]]) -> None:
    x, y = [p[0] for p in points], [p[1] for p in points]
    for correlation in (pearson(x, y), spearman(x, y)):
        assert correlation is None or -1 <= correlation <= 1
    error = mape(x, y)
    assert error is None or 0 <= error < float("inf")


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), min_size=3, max_size=20))
def test_pearson_agrees_with_numpy(points: list[tuple[float, float]]) -> None:
    x, y = np.round(np.array(points).T, 2)
    ours = pearson(x, y)
    if np.ptp(x) > 0 and np.ptp(y) > 0:
        assert ours == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-9)
    else:
        assert ours is None


def test_lists_of_different_lengths_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="same length"):
        pearson([1, 2], [1, 2, 3])
