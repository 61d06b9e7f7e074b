import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from placeit.core.graph import unique_rows


@given(st.sampled_from([bool, np.int32]), st.data())
def test_unique_rows_are_those_that_numpy_finds(kind, data):
    shape = data.draw(array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12))
    rows = data.draw(arrays(kind, shape, elements=st.booleans() if kind is bool else st.integers(-2, 2)))
    found, number = unique_rows(rows)
    expected, inverse = np.unique(rows, axis=0, return_inverse=True)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(number, inverse.reshape(-1))
    assert found.dtype == rows.dtype


def test_no_rows_have_no_unique_ones():
    found, number = unique_rows(np.zeros((0, 2), np.int32))
    assert (found.shape, number.shape) == ((0, 2), (0,))
