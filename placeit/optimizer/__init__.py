"""The search for a placement under a budget: candidates, races between them, and the decision.

May import ``session`` and all below it. Read :mod:`~placeit.optimizer.optimize` first, then
:mod:`~placeit.optimizer.search_state`, :mod:`~placeit.optimizer.search` and :mod:`~placeit.optimizer.races`.
"""
