"""State and counts of a device that a server runs requests on."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["DeviceStats"]


@dataclass(frozen=True)
class DeviceStats:
    """State and counts of a device.

    Attributes:
        name: name in its cluster.
        node: the machine that has it; empty for this one.
        up: whether it is there; False while it is lost.
        returns: how often it came back after it had been lost.
        busy_s: seconds that segments of requests ran there.
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
        """Return its state, with the counts of an earlier server added. Servers may share the device, and then its returns."""
        if before is None:
            return self
        return replace(self, returns=max(before.returns, self.returns), busy_s=before.busy_s + self.busy_s)
