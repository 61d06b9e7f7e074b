from __future__ import annotations

from importlib.metadata import entry_points

from placeit.placers import placer_names
from placeit.placers.registry import GROUP
from placeit.testing.placers import PlacerConformance


class TestAnnealing(PlacerConformance):
    placer = "annealing:evaluations=2000"


class TestBestList(PlacerConformance):
    placer = "best-list"


class TestCpSat(PlacerConformance):
    placer = "cp-sat:effort=0.2"
    sizes = ((8, 2), (20, 3))


class TestCpop(PlacerConformance):
    placer = "cpop"


class TestCriticalPath(PlacerConformance):
    placer = "critical-path"


class TestDp(PlacerConformance):
    placer = "dp"


class TestEnumerative(PlacerConformance):
    placer = "enumerative"


class TestExact(PlacerConformance):
    placer = "exact"
    sizes = ((5, 2), (8, 3))


class TestFuser(PlacerConformance):
    placer = "fuser"


class TestHeft(PlacerConformance):
    placer = "heft"


class TestLocalSearch(PlacerConformance):
    placer = "local-search:evaluations=2000"


class TestMetis(PlacerConformance):
    placer = "metis"


class TestPeft(PlacerConformance):
    placer = "peft"


class TestRandomSearch(PlacerConformance):
    placer = "random"


class TestRandomTaskEft(PlacerConformance):
    placer = "random-task-eft"


class TestRepeated(PlacerConformance):
    placer = "repeated:placer=local-search:evaluations=500"


class TestSingle(PlacerConformance):
    placer = "single"
    splits = False


def test_every_placer_that_is_always_there_is_held_to_the_conformance_suite():
    tested = {suite.placer.partition(":")[0] for suite in PlacerConformance.__subclasses__()}
    assert tested >= set(placer_names()) - entry_points(group=GROUP).names
