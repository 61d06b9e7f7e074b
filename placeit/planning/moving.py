"""Decide when a placement that looks better is worth the move: rent or buy, at a price that doubles with each move."""

from __future__ import annotations

import math

__all__ = ["Moves"]

_LEAST = 0.05  # of what requests take: what is predicted to save less is not worth anything
_CALM_S = 600.0  # after which a move is half forgotten


class Moves:
    """Decides when to move to a better placement, without knowing for how long it will be there.

    Staying costs the share of the time that the better one would save, for as long as one stays. As soon as that adds up to the
    price, it is time to move. The price is what the move takes, doubled by each move before, and halved by every ten minutes
    since the last one. If what looked better is gone, or saves less than 5 %, counting begins anew.

    At a fixed price, that costs at most twice what the best decision in hindsight would (rent or buy; Karlin, Manasse, Rudolph
    and Sleator 1988, "Competitive snoopy caching"). The price that doubles keeps a device that comes and goes from being
    followed each time: ``n`` moves within ten minutes need ``(2 ** n - 1) / 2`` prices to be lost by staying.
    """

    def __init__(self) -> None:
        self._lost, self._since = 0.0, math.nan
        self._before, self._moved = 0.0, -math.inf

    def due(self, now: float, saved: float, price: float) -> bool:
        """Say whether to move now; to be asked again and again while something looks better.

        Args:
            now: seconds by some clock that does not go back.
            saved: share of what requests take now that they would not take after the move.
            price: seconds that the move takes.
        """
        if saved < _LEAST:
            self.stay()
            return False
        if not math.isnan(self._since):
            self._lost += saved * (now - self._since)
        self._since = now
        return self._lost >= price * math.exp2(self._weight(now))

    def stay(self) -> None:
        """Count anew, as nothing looks better any more, or something else does."""
        self._lost, self._since = 0.0, math.nan

    def moved(self, now: float) -> None:
        """Take note of a move."""
        self._before, self._moved = self._weight(now) + 1.0, now
        self.stay()

    def _weight(self, now: float) -> float:
        return max(0.0, self._before - (now - self._moved) / _CALM_S) if self._before else 0.0
