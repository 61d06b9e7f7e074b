"""Record of a search: its candidates by name, and each change of their states as an event of the story."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from placeit.core.errors import NoRoomError, PlaceitError
from placeit.optimizer.candidate_state import Failed, Proposed, Ran, Skipped, State
from placeit.optimizer.candidates import Candidate, Facts, OtherDevices, value_of
from placeit.optimizer.story import Story, What
from placeit.workbench import Workbench

__all__ = ["Book", "reason_of"]


class Book:
    """The candidates of a search. Only its methods change their states, and each change is an event of the story.

    Args:
        session: a model on its devices.
        story: the story to continue.

    Attributes:
        known: candidates by name, with the facts known so far. Among them are references, and single devices in another
            precision, which race whenever the same device in the requested precision does.
        homes: devices of the candidates that run on other devices than the cluster's, by name of the candidate.
    """

    def __init__(self, session: Workbench, story: Story) -> None:
        self.session, self.story = session, story
        self.known: dict[str, Candidate] = {}
        self.homes: dict[str, OtherDevices] = {}

    @property
    def candidates(self) -> list[Candidate]:
        """All candidates that may be chosen, with the facts known so far."""
        return [candidate for candidate in self.known.values() if candidate.may_be_chosen]

    @property
    def standing(self) -> list[Candidate]:
        """Candidates that have not failed."""
        return [candidate for candidate in self.candidates if candidate.failed is None]

    @property
    def ranked(self) -> list[Candidate]:
        """Candidates that were measured and have not failed, best first."""
        return sorted((candidate for candidate in self.standing if candidate.measured is not None), key=value_of)

    def home(self, name: str) -> Workbench:
        """Return the session that runs a candidate."""
        other_devices = self.homes.get(name)
        return self.session if other_devices is None else other_devices.session

    def is_placed(self, candidate: Candidate) -> bool:
        """Return whether a candidate is one placement of the groups on the session's own devices."""
        return candidate.name not in self.homes and not candidate.replicas

    def is_onnxruntime(self, name: str) -> bool:
        """Return whether a candidate is plain ONNX Runtime."""
        return name in self.homes and self.homes[name].is_onnxruntime

    def enter(self, candidate: Candidate, other_devices: OtherDevices | None = None) -> Candidate:
        """Add or replace a candidate; ``other_devices`` run it if it is not on devices of the cluster."""
        self.known[candidate.name] = candidate
        if other_devices is not None:
            self.homes[candidate.name] = other_devices
        start = "" if candidate.start is None else f", from {candidate.start}"
        by, value = f"by {candidate.placer}{start}", candidate.simulated_value
        self.story.tell("proposed", candidate.name, by, candidate.state.to_dict(), value)
        return candidate

    def update_facts(self, name: str, **facts: Unpack[Facts]) -> Candidate:
        """Update facts about a candidate that do not change its state, and return the new candidate."""
        self.known[name] = replace(self.known[name], **facts)
        return self.known[name]

    def set_state(self, name: str, state: State, what: What, reason: str | None = None) -> Candidate:
        """Set the state of a candidate, and return the new candidate."""
        self.known[name] = replace(self.known[name], state=state)
        self.story.tell(what, name, reason, state.to_dict())
        return self.known[name]

    def skip(self, name: str, reason: str, *, late: bool = False) -> Candidate:
        """Record why a candidate is not run; one that was measured keeps its measurements."""
        candidate, state = self.known[name], Skipped(reason, late)
        if candidate.runs is not None:
            self.story.tell("skipped", name, reason)
        elif candidate.state != state:
            candidate = self.set_state(name, state, "skipped", reason)
        return candidate

    def reconsider(self, name: str) -> Candidate:
        """Forget that a candidate was skipped, since it is worth a run now."""
        candidate = self.known[name]
        return self.set_state(name, Proposed(), "proposed again") if isinstance(candidate.state, Skipped) else candidate

    def fail(self, name: str, why: BaseException | str) -> None:
        """Mark a candidate as failed, and discard its measurements."""
        reason = why if isinstance(why, str) else reason_of(why)
        no_room = isinstance(why, NoRoomError | MemoryError)
        self.set_state(name, Failed(reason, no_room, self.known[name].earlier), "failed", reason)

    def undo(self, before: Candidate, why: str) -> None:
        """Restore a candidate as it was before a race whose measurements do not count."""
        self.known[before.name] = before
        self.story.tell("undone", before.name, why, before.state.to_dict())

    def revise(self, name: str, state: Ran, reason: str) -> Candidate:
        """Replace the values of a measured candidate, and return the new candidate."""
        return self.set_state(name, state, "compared", reason)


def reason_of(error: BaseException) -> str:
    """Return the message of an error, as one paragraph that ends with a full stop."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = text if isinstance(error, PlaceitError) else f"{type(error).__name__}: {text}"
    return text if text.endswith(".") else f"{text}."
