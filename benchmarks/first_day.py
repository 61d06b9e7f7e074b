"""The seconds of each task of a first day: the commands of the table in docs/how_to.md, each as a user starts it.

The model, the boards and the placement come from ``placeit demo``. A server counts until it answers that it is ready. Tasks
that need a program, a folder with a text model or a device that is missing are named as not run.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from urllib.error import URLError

import onnx

from benchmarks._gpus import gpus
from benchmarks._harness import Args, Report, main

_PAGE = Path(__file__).parents[1] / "docs" / "how_to.md"
_FLEET = Path(__file__).parents[1] / "examples" / "fleet.yaml"
_ROW = re.compile(r"^\| (.*) \| \[.*\]\((.*)\) \| `(.*)` \|$", re.MULTILINE)
_PORT, _LIMIT_S, _POLL_S = 8931, 600.0, 0.05
_READY = f"http://127.0.0.1:{_PORT}/v2/health/ready"
_WORKLOAD = """models:
  - {model: model.onnx, name: first, rate: 2, latency_limit: p95=500ms}
  - {model: model.onnx, name: second, in_flight: 1}
"""
_TASKS_IN_MINUTES = 2.0  # `placeit optimize` looks for a minute, and profiles the model before it


def run(args: Args, report: Report) -> None:
    budget = ["--budget", "3"] if args.quick else []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _prepare(folder)
        took = []
        for task, page, line in _ROW.findall(_PAGE.read_text(encoding="utf-8")):
            words = shlex.split(line)
            if why := _missing(words):
                report.row(task=task, page=page, command=line, seconds=None, remark=why)
                continue
            if words[1] in ("optimize", "try"):
                words += budget
            seconds, why = _serve(words, folder) if words[1] == "serve" else _run(words, folder)
            report.row(task=task, page=page, command=line, seconds=seconds, remark=why)
            took.append((why == "", seconds))
    report.claim("tasks solved by their command", float(sum(done for done, _ in took)), "", at_least=len(took))
    report.claim("longest task", max(seconds for _, seconds in took) / 60, "min", at_most=_TASKS_IN_MINUTES)


def _prepare(folder: Path) -> None:
    """Make the files that the commands name."""
    _placeit("demo", ".", "--budget", "3", folder=folder)
    model = onnx.load(folder / "model.onnx")
    for tensor in (*model.graph.input, *model.graph.output):
        tensor.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(model, folder / "OPEN.onnx")
    (folder / "workload.yaml").write_text(_WORKLOAD, encoding="utf-8")
    shutil.copy(_FLEET, folder / "fleet.yaml")
    for name, option in (("pinned", ("--pin", "block1*=left")), ("small", ("--memory", "left=2MB"))):
        _placeit("optimize", "model.onnx", "-d", "boards.yaml", "--budget", "3", *option, "-o", f"{name}.json", folder=folder)


def _placeit(*words: str, folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "placeit", *words], cwd=folder, check=True, capture_output=True)


def _missing(words: list[str]) -> str:
    """Return what a command needs that is not here; empty if nothing."""
    if words[0] == "python":
        return "a program of the page"
    if "FOLDER" in words:
        return "a folder with a text model"
    if any("GPU" in word for word in words) and not gpus():
        return "an Intel GPU"
    return ""


def _run(words: list[str], folder: Path) -> tuple[float, str]:
    """Run a command; return its seconds, and the error that it ends with."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    took = time.perf_counter() - start
    return took, "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["failed"])[0]


def _serve(words: list[str], folder: Path) -> tuple[float, str]:
    """Start a server; return the seconds until it is ready, and why it never was."""
    start = time.perf_counter()
    command = [sys.executable, "-m", *words, "--port", str(_PORT)]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            while time.perf_counter() < start + _LIMIT_S and server.poll() is None:
                try:
                    with urllib.request.urlopen(_READY, timeout=1):
                        return time.perf_counter() - start, ""
                except URLError:
                    time.sleep(_POLL_S)
            return time.perf_counter() - start, "never ready"
        finally:
            server.terminate()


if __name__ == "__main__":
    main("first_day", run)
