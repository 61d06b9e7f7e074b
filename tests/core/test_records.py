"""JSON is read by the types of fields, and errors name the field."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from placeit.core.records import RecordError, Within, check_shape, parsed, plain, record


@dataclass(frozen=True)
class Known:
    """Has types of the same union in another order, which Python takes for one."""

    port: str | int


@dataclass(frozen=True)
class Part:
    name: str
    share: Annotated[float, Within(0, 1)]


@dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...]
    port: int | str = 0
    note: str | None = None


WHOLE = Whole((Part("a", 0.5), Part("b", 1.0)), "x")


def test_what_is_written_is_read_again() -> None:
    assert record(Whole, plain(WHOLE)) == record(Whole, plain(WHOLE), strict=True) == WHOLE


def test_fields_may_be_missing_or_unknown_unless_reading_is_strict() -> None:
    assert record(Whole, {"parts": [], "new": 1}) == Whole(())
    for value, said in (({"parts": []}, "'port' is missing"), (plain(WHOLE) | {"new": 1}, "'new' is not known")):
        with pytest.raises(RecordError, match=said):
            record(Whole, value, strict=True)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], "it must be an object"),
        ({}, "'parts' is missing"),
        ({"parts": [{"name": "a", "share": 2}]}, "'parts[0].share' must be between 0 and 1"),
        ({"parts": [{"name": 1, "share": 0}]}, "'parts[0].name' must be text"),
        ({"parts": [], "port": 1.5}, "'port' must be a whole number or text"),
        ({"parts": [], "note": 1}, "'note' must be text"),
    ],
)
def test_an_error_names_the_field_and_what_it_must_be(value: Any, said: str) -> None:
    record(Known, {"port": 1})
    with pytest.raises(RecordError, match=re.escape(said)):
        record(Whole, value)


def test_lists_that_are_too_long_or_too_short_are_named() -> None:
    check_shape("a", [[1, 2], [3, 4]], 2, 2)
    with pytest.raises(RecordError, match=re.escape("'a[1]' must have 2 items")):
        check_shape("a", [[1, 2], [3]], 2, 2)


@pytest.mark.parametrize("text", ["{", '{"a": 1, "a": 2}', "[" * 100_000, "NaN"])
def test_what_is_no_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parsed(text, finite=True)
