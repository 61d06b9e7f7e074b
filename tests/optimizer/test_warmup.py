"""What is compiled before the budget begins."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SEARCH = """
from numba.core import event
from placeit import optimize
from placeit.optimizer.portfolio import DEFAULT_PLACERS
from placeit.optimizer.warmup import compile_kernels
from small_models import inception_like

compiled = []

class Listener(event.Listener):
    def on_start(self, what):
        compiled.append(what.data["dispatcher"].py_func.__qualname__)

    def on_end(self, what):
        pass

event.register("numba:compile", Listener())
compile_kernels(DEFAULT_PLACERS)
assert "merge_groups" in compiled
compiled.clear()
for objective in ("latency", "total-cost", "throughput"):
    optimize(inception_like(), "CPU@{0},CPU@{1}".format(*cores) if len(cores) > 1 else "CPU@{0}".format(*cores), budget=6,
             objective=objective, cache=None)
print(compiled)
"""


@pytest.mark.slow
@pytest.mark.timeout(960)  # a hundred seconds of a core to compile everything anew, which others may want as well
def test_nothing_is_compiled_within_the_budget(tmp_path: Path) -> None:
    script = f"cores = {sorted(os.sched_getaffinity(0))[:2]}\n{SEARCH}"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, encoding="utf-8", check=False, timeout=900
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
