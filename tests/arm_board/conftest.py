"""The emulated board, for all tests here."""

from pathlib import Path

import pytest

from tests.arm_board.build import board
from tests.emulators import UnavailableError


@pytest.fixture(scope="session")
def root() -> Path:
    """The root folder of the board; without one, the test is skipped with the reason."""
    try:
        return board()
    except UnavailableError as error:
        pytest.skip(str(error))
