"""State and counts of a device on which a server runs requests."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["DeviceStats"]


@dataclass(frozen=True)
class DeviceStats:
    """State and counts of a device.

    Attributes:
        name: name in its cluster.
        node: name of its node; empty for this machine.
        up: whether it is available; False while it is lost.
        returns: number of times that it was restored after a loss.
        busy_s: seconds in which segments of requests ran on it.
    """

    name: str
    node: str = ""
    up: bool = True
    returns: int = 0
    busy_s: float = 0.0

    @property
    def losses(self) -> int:
        """Number of times that it was lost."""
        return self.returns + (not self.up)

    def after(self, before: DeviceStats | None) -> DeviceStats:
        """Return its state with the counts of an earlier server added; both servers may count the same returns."""
        if before is None:
            return self
        return replace(self, returns=max(before.returns, self.returns), busy_s=before.busy_s + self.busy_s)
