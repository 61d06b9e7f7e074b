"""PlaceBench: a versioned set of placement problems, their rules, and the best known placements.

Read :mod:`~placeit.bench.problems` first; :mod:`~placeit.bench.submissions` runs placers and checks submissions.
:mod:`~placeit.bench.files` reads the problems of other papers from files.
"""

from placeit.bench.files import read_problems
from placeit.bench.problems import BenchProblem, load, names
from placeit.bench.submissions import Solution, Verdict, check, read, run, write

__all__ = ["BenchProblem", "Solution", "Verdict", "check", "load", "names", "read", "read_problems", "run", "write"]
