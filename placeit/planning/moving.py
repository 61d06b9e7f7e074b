"""Decide when a better placement is worth the move: rent or buy, at a price that doubles with each move."""

from __future__ import annotations

import math

__all__ = ["LEAST", "Moves"]

LEAST = 0.05
"""Smallest share of a request's time that a move has to save."""
_CALM_S = 600.0  # seconds in which the price halves


class Moves:
    """Rule for when to move to a better placement, without knowing how long it will stay better.

    Staying costs the share of time that the better placement would save, for as long as one stays. The move is due as soon as
    the cost of staying reaches the price. The price is the time that the move takes, doubled by each earlier move, and halved
    by every ten minutes since the last one. If no better placement is left, or it saves less than 5 %, the cost of staying is
    counted anew.

    At a fixed price, this costs at most twice as much as the best decision in hindsight (rent or buy; Karlin, Manasse, Rudolph
    and Sleator 1988, "Competitive snoopy caching"). The doubled price prevents a move each time that a device comes or goes:
    for ``n`` moves within ten minutes, staying has to cost ``(2 ** n - 1) / 2`` prices.
    """

    def __init__(self) -> None:
        self._staying_cost, self._since = 0.0, math.nan
        self._weight_at_move, self._moved = 0.0, -math.inf

    def due(self, now: float, saved: float, price: float) -> bool:
        """Return whether to move now; call it repeatedly while another placement is predicted to be better.

        Args:
            now: seconds of a monotonic clock.
            saved: share of a request's present time that the move would save.
            price: seconds that the move takes.
        """
        if saved < LEAST:
            self.stay()
            return False
        if not math.isnan(self._since):
            self._staying_cost += saved * (now - self._since)
        self._since = now
        return self._staying_cost >= price * math.exp2(self._weight(now))

    def stay(self) -> None:
        """Reset the cost of staying, as no other placement looks better any more, or a different one does."""
        self._staying_cost, self._since = 0.0, math.nan

    def moved(self, now: float) -> None:
        """Record a move, which doubles the price of the next one."""
        self._weight_at_move, self._moved = self._weight(now) + 1.0, now
        self.stay()

    def _weight(self, now: float) -> float:
        """Return the binary logarithm of the factor on the price."""
        return max(0.0, self._weight_at_move - (now - self._moved) / _CALM_S) if self._weight_at_move else 0.0
