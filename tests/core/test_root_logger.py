"""The root logger is as it was before blocks that change it, also if blocks of several threads overlap."""

import contextlib
import logging

import pytest

from placeit.core.root_logger import kept_root_logger


def state() -> tuple[int, list, list]:
    root = logging.getLogger()
    return root.level, [*root.filters], [*root.handlers]


def change(level: int) -> None:
    root = logging.getLogger()
    root.setLevel(level)
    root.addFilter(lambda record: False)
    root.addHandler(logging.NullHandler())


def test_overlapping_blocks_leave_it_as_it_was() -> None:
    before = state()
    first, second = kept_root_logger(), kept_root_logger()
    first.__enter__()
    change(logging.CRITICAL)
    second.__enter__()
    change(logging.ERROR)
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert state() == before


def test_a_block_that_fails_leaves_it_as_it_was() -> None:
    before = state()
    with contextlib.suppress(ValueError), kept_root_logger():
        change(logging.CRITICAL)
        raise ValueError
    assert state() == before
    with pytest.raises(KeyError), kept_root_logger():
        raise KeyError
