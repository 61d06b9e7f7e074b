import subprocess
import sys

import pytest

PROGRAM = """
import numpy as np
from placeit.core.memory import freed_memory_is_kept, keep_freed_memory, own_use

def left_by_200_mb():
    before = own_use().bytes
    block = np.ones(25_000_000)
    assert own_use().bytes - before > 150e6
    del block
    return own_use().bytes - before

assert left_by_200_mb() < 50e6
with keep_freed_memory():
    outer = keep_freed_memory()
    assert freed_memory_is_kept()
    assert left_by_200_mb() > 150e6
assert freed_memory_is_kept(), "another part of the process wants it"
before = own_use().bytes
outer.close()
assert not freed_memory_is_kept()
assert before - own_use().bytes > 150e6
assert left_by_200_mb() < 50e6
print("as it was")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux, which says what a process takes")
def test_freed_memory_is_kept_until_the_last_who_wants_that_is_done():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stdout) == (0, "as it was\n"), done.stderr
