"""Errors can be sent to other processes, as pools of processes do."""

from __future__ import annotations

import pickle

import pytest

from placeit.backends.openvino.inputs import OpenSizesError
from placeit.core.errors import DeviceError, PlaceitError, StateLostError


@pytest.mark.parametrize("error", [DeviceError("It is gone."), StateLostError(3, "It is old."), OpenSizesError("Open.")])
def test_errors_are_pickled(error: PlaceitError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
