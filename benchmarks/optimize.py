"""The time of ``placeit optimize`` on ResNet-50 with two core sets: with an empty cost cache, and with a full one.

Both run the command in a separate process, with its default options; imports count.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks._harness import Args, Report, main
from benchmarks._models import model_file, progress, two_cores
from placeit.core.errors import ExecutionError

_COMMAND = (sys.executable, "-c", "from placeit.cli import main; main()", "optimize")
_MODEL = "resnet50"


def run(args: Args, report: Report) -> None:
    path = model_file(_MODEL)
    devices = ",".join(f"CPU@{core}" for core in two_cores())
    with tempfile.TemporaryDirectory() as folder:
        for what, limit in (("cold", 90), ("warm", 20)):
            progress(f"placeit optimize {_MODEL}, {what} cache")
            command = [*_COMMAND, str(path), "--devices", devices, "--seed", str(args.seed), "--json"]
            seconds, answer = _timed(command, Path(folder))
            chosen = answer["chosen"]
            report.row(
                cache=what,
                wall_s=seconds,
                spent_s=answer["budget"]["spent_s"],
                candidates=len(answer["candidates"]),
                measured=sum(candidate["measured_s"] is not None for candidate in answer["candidates"]),
                chosen=chosen["name"],
                chosen_ms=chosen["measured_s"] * 1e3,
                speedup=answer["speedup"],
            )
            report.claim(f"placeit optimize {_MODEL} on two cores, {what} cache", seconds, "s", at_most=limit)


def _timed(command: list[str], folder: Path) -> tuple[float, dict[str, Any]]:
    """Run a command with the cost cache in a folder; return the seconds and the output."""
    environment = os.environ | {"PLACEIT_CACHE": str(folder / "costs")}
    begin = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False)
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise ExecutionError(f"'{' '.join(command)}' failed with exit code {done.returncode}: {done.stderr.strip()}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return seconds, answer


if __name__ == "__main__":
    main("optimize", run)
