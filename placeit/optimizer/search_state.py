"""The state of a search, which its stages read and write one after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from typing import ClassVar

from placeit.core import clock
from placeit.core.cluster import Device
from placeit.core.memory_reads import MemoryReads
from placeit.core.placement import Placement
from placeit.optimizer.certainty import Excluded
from placeit.optimizer.decision import Decision
from placeit.optimizer.journal import Journal
from placeit.optimizer.ledger import LOADING, Ledger
from placeit.optimizer.options import Goal
from placeit.optimizer.result import Optimized
from placeit.optimizer.search import Search
from placeit.optimizer.story import OnEvent, Story
from placeit.profiler.costs import Progress
from placeit.workbench import Workbench

__all__ = ["SearchState", "Stage"]


class SearchState:
    """The options of a search, and the results of its stages so far.

    Args:
        session: the model on the devices.
        goal: the options.
        progress: called with the current step and the share of it that is done.
        on_event: called with each event of the story; None for no calls.

    Attributes:
        deadline: when the search should be over, by :func:`placeit.core.clock.now`.
        ledger: seconds of steps and placers.
        story: the events so far.
        before: programs that the session compiled before the search, by kind of device.
        starts: starting placements on the session's devices, by name.
        on_cores: devices of the other starting placements, by name.
        journal: the file that the search resumes from; None without one.
        enough: whether the budget is enough to compare placements; None if it is unknown.
        excluded: why no split can be the answer; None if one may be.
        memory: bytes that groups read from a memory that devices share; None if unknown.
        search: the candidates, with the facts known about them.
        without: devices that have no other precision, a sentence each.
        asking: whether placers were asked.
        decision: the decision.
        interrupted: whether Ctrl-C ended the search early.
        result: the result.
    """

    search: Search
    result: Optimized

    def __init__(
        self, session: Workbench, goal: Goal, progress: Progress | None = None, on_event: OnEvent | None = None
    ) -> None:
        self.session, self.goal, self.progress = session, goal, progress
        self.deadline = goal.begin + goal.budget.seconds
        self.ledger, self.story = Ledger(), Story(goal.begin, on_event)
        self.ledger.seconds[LOADING] = clock.now() - goal.begin
        self.before = deepcopy(session.compiling.kinds)
        self.starts: Mapping[str, Placement] = {}
        self.on_cores: Mapping[str, Device] = {}
        self.journal: Journal | None = None
        self.enough: bool | None = None
        self.excluded: Excluded | None = None
        self.memory: MemoryReads | None = None
        self.without: list[str] = []
        self.asking = False
        self.decision = Decision()
        self.interrupted = False


class Stage(ABC):
    """A stage of a search.

    Attributes:
        name: its name in the story.
        reads: attributes of :class:`SearchState` that it reads, apart from the goal, the ledger and the story.
        writes: attributes that it sets.
        may_be_interrupted: whether a search continues with its results so far after Ctrl-C in this stage, and does not fail.
    """

    name: ClassVar[str]
    reads: ClassVar[tuple[str, ...]]
    writes: ClassVar[tuple[str, ...]]
    may_be_interrupted: ClassVar[bool]

    @abstractmethod
    def run(self, state: SearchState) -> None:
        """Do the work of the stage. Raises PlaceitError if the search cannot go on."""
