"""A pool of open devices, when a failed one is tried again."""

from __future__ import annotations

import pytest

from placeit.core.errors import DeviceError
from placeit.devices.clusterfile import discover
from placeit.devices.host import allowed_cores
from placeit.runtime.device_pool import DevicePool
from placeit.runtime.devices.base import OnThread

CORE = f"CPU@{allowed_cores()[0]}"


def test_an_interrupted_trial_closes_the_new_device_and_leaves_the_old_one() -> None:
    pool, opened = DevicePool(discover([CORE])), []

    def interrupted() -> None:
        opened.extend(pool.devices)
        raise KeyboardInterrupt

    (old,) = pool.devices
    pool.fail(CORE, DeviceError("it failed"), interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.reopen()
    (new,) = opened
    assert new is not old
    assert pool.devices == (old,)
    assert isinstance(new, OnThread)
    assert new.worker is not None
    assert not new.worker.alive
    assert [*pool.lost()] == [frozenset({CORE})]
    pool.close()
