"""Sessions that are open in one block share devices, and take turns there."""

from __future__ import annotations

import numpy as np
import pytest

from placeit.devices.host import allowed_cores
from placeit.runtime.device_pool import shared_devices
from placeit.session import Session
from placeit.workbench import Workbench
from tests.small_models import inception_like, random_model

CORE = f"CPU@{allowed_cores()[0]}"


def whole(session: Session) -> object:
    return session.placement(np.zeros(len(session.grouping.groups), np.int32))


def lanes(session: Workbench) -> list[object]:
    return list(session.runtime.devices)


def test_sessions_share_devices_in_the_block_and_a_closed_one_leaves_them_to_the_others() -> None:
    with shared_devices():
        with Session(inception_like(), [CORE], cache=None) as one:
            with Session(random_model(0, 5), [CORE], cache=None) as other:
                assert lanes(one) == lanes(other)
                for session in (one, other):
                    session.profile(budget_s=0.1)
                    assert session.run(whole(session), runs=2).failed is None
            assert one.run(whole(one), runs=2).failed is None
        with Session(random_model(1, 5), [CORE], cache=None) as later:
            assert later.runtime.devices[0].name == CORE
    with Session(random_model(0, 5), [CORE], cache=None) as apart, Session(random_model(0, 5), [CORE], cache=None) as again:
        assert lanes(apart) != lanes(again)


@pytest.mark.two_cores
def test_devices_of_a_part_of_the_cluster_are_shared_and_other_precisions_and_plain_devices_are_not() -> None:
    cores = [f"CPU@{core}" for core in allowed_cores()[:2]]
    with shared_devices(), Session(random_model(0, 5), cores, cache=None) as one:
        with (
            Session(random_model(0, 5), cores[:1], cache=None) as fewer,
            Session(random_model(0, 5), cores, precision="f16", cache=None) as coarse,
        ):
            assert lanes(fewer) == lanes(one)[:1]
            assert not set(map(id, lanes(one))) & {*map(id, lanes(coarse))}
        (plain, *_) = one.setup.plain_devices
        with Session(random_model(0, 5), cores, cache=None) as other:
            assert lanes(one) == lanes(other)
            assert lanes(one.alone(plain)) != lanes(other.alone(plain))
