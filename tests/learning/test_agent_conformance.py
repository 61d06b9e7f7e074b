import numpy as np

from placeit.learning.agent import Agent, ProblemInstance
from placeit.learning.registry import make_agent
from placeit.learning.testing import AgentConformance
from tests.learning.toy_agent import toy


class TestToy(AgentConformance):
    ways = ("imitation",)

    def make(self) -> Agent:
        return toy()

    def instances(self) -> list[ProblemInstance]:
        # it does not look at memory
        return [instance for instance in super().instances() if np.isinf(instance.problem.memory).all()]


class TestGiph(AgentConformance):
    ways = ("imitation", "all-actions")

    def make(self) -> Agent:
        return make_agent("giph", seed=0)


class TestGiphTaskEft(AgentConformance):
    ways = ("imitation", "all-actions")

    def make(self) -> Agent:
        return make_agent("giph", seed=0, variant="giph-task-eft")


class TestHdp(AgentConformance):
    def make(self) -> Agent:
        return make_agent("hdp", seed=0, ops=9, devices=3, hidden=8)


class TestStreamAllocation(AgentConformance):
    ways = ("imitation",)

    def make(self) -> Agent:
        return make_agent("stream-allocation", seed=0, devices=3, width=8)


class TestStreamAllocationB(AgentConformance):
    ways = ("imitation",)

    def make(self) -> Agent:
        return make_agent("stream-allocation", seed=0, devices=2, width=8, encoder="lstm", upstream=False)


class TestPlaceto(AgentConformance):
    ways = ("imitation",)

    def make(self) -> Agent:
        return make_agent("placeto", seed=0, devices=3, rounds=2)
