from __future__ import annotations

import subprocess
import sys
import textwrap

SCRIPT = """
    import builtins, threading, time
    import placeit.backends.openvino.model
    from openvino import Type, opset13

    load = builtins.__import__

    def slowly(name, *rest, **more):  # what lets go of the GIL while OpenVINO looks types up is an import
        if name.startswith("numpy"):
            time.sleep(0.1)
        return load(name, *rest, **more)

    builtins.__import__ = slowly
    threads = [threading.Thread(target=opset13.constant, args=([0, 3, 1, 2], Type.i64)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_two_threads_may_build_their_first_constants_at_the_same_moment() -> None:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(SCRIPT)], timeout=60, check=False)
    assert done.returncode == 0
