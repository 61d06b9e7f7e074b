"""Fills what runs on streams write before a run that is checked, so that missing and late writes show."""

from __future__ import annotations

from placeit.runtime.accelerators.launcher import Launcher

__all__ = ["Blanks"]


class Blanks:
    """The buffers that the requests of an executor write.

    Where buffers share memory, it is blank only for the first one that a run writes; a later one finds what the one before it
    has left. Late writes within the run itself are not detected here: their readers have missed them.

    Args:
        launcher: the requests.
    """

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._blanked: int | None = None

    def forget(self) -> None:
        """Record that a run begins, which writes the buffers."""
        self._blanked = None

    def fill(self, sentinel: int) -> int | None:
        """Fill everything that a run writes; return a device, or ``HOST``, whose memory was written since the last fill."""
        layout, accelerator = self._launcher.layout, self._launcher.accelerator
        found = None
        written = [b for launch in layout.launches for b in launch.writes]
        first = {layout.slot_of[b]: b for b in reversed(written)}
        for slot in self._launcher.slots:
            for b in first.values():
                if self._blanked is not None and not accelerator.is_blank(slot.views[b], self._blanked):
                    found = layout.places[b]
            for b in reversed(written):
                accelerator.blank(slot.views[b], sentinel)
        self._blanked = sentinel
        return found
