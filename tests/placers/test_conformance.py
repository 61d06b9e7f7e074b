from __future__ import annotations

import pytest

from placeit.placers import placer_names
from placeit.testing.placers import PlacerConformance


class TestAnnealing(PlacerConformance):
    placer = "annealing:evaluations=2000"


class TestCpSat(PlacerConformance):
    placer = "cp-sat:effort=0.2"
    sizes = ((8, 2), (20, 3))


class TestCpop(PlacerConformance):
    placer = "cpop"


class TestCriticalPath(PlacerConformance):
    placer = "critical-path"


class TestEnumerative(PlacerConformance):
    placer = "enumerative"


class TestExact(PlacerConformance):
    placer = "exact"
    sizes = ((5, 2), (8, 3))


class TestFuser(PlacerConformance):
    placer = "fuser"


class TestGiph(PlacerConformance):
    placer = "giph:steps_per_op=0.5"


@pytest.mark.slow
class TestGuided(PlacerConformance):
    placer = "guided:evaluations=200"


@pytest.mark.slow
class TestHdp(PlacerConformance):
    placer = "hdp:updates=10,hidden=16"


@pytest.mark.slow
class TestDoppler(PlacerConformance):
    placer = "doppler:imitation=2,updates=3,episodes=4,samples=8"


class TestHeft(PlacerConformance):
    placer = "heft"


@pytest.mark.slow
class TestHsdag(PlacerConformance):
    placer = "hsdag:updates=2,episodes=1,samples=1"


class TestLocalSearch(PlacerConformance):
    placer = "local-search:evaluations=2000"


class TestMetis(PlacerConformance):
    placer = "metis"


@pytest.mark.slow
class TestPlaceto(PlacerConformance):
    placer = "placeto:updates=3,episodes=2"


class TestRandomSearch(PlacerConformance):
    placer = "random"


class TestRandomTaskEft(PlacerConformance):
    placer = "random-task-eft"


class TestRepeated(PlacerConformance):
    placer = "repeated:placer=local-search:evaluations=500"


class TestSingle(PlacerConformance):
    placer = "single"
    splits = False


@pytest.mark.slow
class TestStreamAllocation(PlacerConformance):
    placer = "stream-allocation"


def test_every_placer_that_ships_with_placeit_is_held_to_the_conformance_suite():
    tested = {suite.placer.partition(":")[0] for suite in PlacerConformance.__subclasses__()}
    assert tested >= {name for name in placer_names() if not name.startswith("sample")}
