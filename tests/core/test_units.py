from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placeit.core.errors import PlaceitError, UsageError
from placeit.core.units import Dimension, about_seconds, format_quantity, parse_duration, parse_quantity

DIMENSIONS: list[Dimension] = ["number", "bandwidth", "memory bandwidth", "time", "memory", "rate", "power"]


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("10 Gbit/s", "bandwidth", 1.25e9),
        ("100Mbit/s", "bandwidth", 12.5e6),
        ("3 MB/s", "bandwidth", 3e6),
        ("1 GiB/s", "bandwidth", 2.0**30),
        ("1e9", "bandwidth", 1e9),
        ("inf", "bandwidth", float("inf")),
        (".inf", "bandwidth", float("inf")),
        ("50 us", "time", 50e-6),
        ("50 µs", "time", 50e-6),
        ("0.3 ms", "time", 0.3e-3),
        ("0", "time", 0.0),
        ("8 GiB", "memory", 8 * 2.0**30),
        ("1.28 TFLOP/s", "rate", 1.28e12),
        ("500 GFLOPS", "rate", 500e9),
        ("25 W", "power", 25.0),
        (" 1.5 ", "number", 1.5),
    ],
)
def test_a_quantity_is_read_in_base_units_without_rounding(text: str, dimension: Dimension, value: float) -> None:
    assert parse_quantity(text, dimension) == value


@pytest.mark.parametrize(
    ("text", "dimension", "said"),
    [
        ("fast", "bandwidth", "'fast' is not a number with a unit such as Gbit/s"),
        ("", "time", "is not a number"),
        ("nan", "time", "is not a number"),
        ("10 Gbps", "bandwidth", "did you mean 'Gbit/s'"),
        ("10 gbit/s", "bandwidth", "did you mean 'Gbit/s'"),
        ("5 ms", "bandwidth", "'ms' is not a unit of bandwidth"),
        ("-5 ms", "time", "'-5 ms' is negative"),
        ("1.5 x", "number", "is not a unit of number"),
        ("1e999", "time", "too large"),
        ("1 2", "time", "is not a number"),
    ],
)
def test_what_is_wrong_with_a_quantity_is_said(text: str, dimension: Dimension, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_quantity(text, dimension)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-1, "0 s"), (40, "40 s"), (119, "119 s"), (127, "2 min"), (7201, "2 h"), (3 * 86400, "3 days")],
)
def test_an_age_is_written_in_the_unit_that_says_enough(seconds: float, said: str) -> None:
    assert about_seconds(seconds) == said


@given(st.floats(min_value=0, max_value=1e300), st.sampled_from(DIMENSIONS))
def test_a_written_quantity_reads_back_exactly(value: float, dimension: Dimension) -> None:
    assert parse_quantity(format_quantity(value, dimension), dimension) == value


@pytest.mark.parametrize(
    ("value", "dimension", "text"),
    [(1.25e9, "bandwidth", "10 Gbit/s"), (68e9, "memory bandwidth", "68 GB/s"), (50e-6, "time", "50 us"), (0.0, "time", "0.0")],
)
def test_quantities_are_written_with_the_unit_that_people_use(value: float, dimension: Dimension, text: str) -> None:
    assert format_quantity(value, dimension) == text


@given(st.text(max_size=30) | st.from_regex(r"[-+.0-9eE]{0,500} ?[a-zA-Z/]{0,5}"), st.sampled_from(DIMENSIONS))
def test_any_text_is_a_quantity_or_a_clear_error(text: str, dimension: Dimension) -> None:
    try:
        value = parse_quantity(text, dimension)
    except PlaceitError:
        value = 0.0
    assert value >= 0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("2m", 120),
        ("1h30m", 5400),
        ("1h1m1.5s", 3661.5),
        ("0.5h", 1800),
        ("250ms", 0.25),
        ("500us", 5e-4),
        ("1 h 5 m", 3900),
    ],
)
def test_a_duration_is_a_number_of_seconds_or_of_units_from_hours_on(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "2 minutes", "2M", "30m1h", "1h-5m", "two", "1m1m", "1d"])
def test_what_is_no_duration_is_quoted_with_how_to_write_one(text: str) -> None:
    with pytest.raises(
        UsageError, match=r"is not a duration: write seconds \(90 or 90s\), minutes \(2m\), hours \(1h30m\), ms or us\."
    ):
        parse_duration(text)
