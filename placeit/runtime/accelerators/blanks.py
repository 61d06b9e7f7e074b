"""Blank the buffers that a run on streams writes, before a run that is checked: missing and late writes then show."""

from __future__ import annotations

from placeit.runtime.accelerators.launcher import Launcher

__all__ = ["Blanks"]


class Blanks:
    """Fills the buffers that the requests of an executor write.

    Buffers may share memory. It is blank for the first buffer that a run writes; a later one finds the value of the previous
    buffer. Writes that are late within the run itself are not detected here, but by the wrong outputs of their readers.

    Args:
        launcher: the requests.
    """

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._blanked: int | None = None

    def forget(self) -> None:
        """Record that a run begins, so that the buffers are no longer blank."""
        self._blanked = None

    def fill(self, sentinel: int) -> int | None:
        """Blank all buffers that a run writes.

        Returns:
            A device, or ``HOST``, whose memory was written since the last fill; None if no memory was.
        """
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
