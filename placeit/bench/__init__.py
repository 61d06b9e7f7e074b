"""PlaceBench: a versioned set of placement problems, their rules, and the best placements that are known.

Start at :mod:`~placeit.bench.problems`; :mod:`~placeit.bench.submissions` runs placers and checks what others have found.
"""

from placeit.bench.problems import BenchProblem, load, names
from placeit.bench.submissions import Solution, Verdict, check, read, run, write

__all__ = ["BenchProblem", "Solution", "Verdict", "check", "load", "names", "read", "run", "write"]
