"""The whole of placeit in a minute: export a model, find the fastest placement, save it, run it with a trace.

python -m examples.demo
"""

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from placeit.cli import main as command_line
from placeit.core.errors import PlaceitError
from placeit.workloads.models import MODELS, export_model


def placeit(*arguments: str | Path) -> None:
    """Show a command and run it in this process."""
    words = [str(argument) for argument in arguments]
    print(f"\n$ placeit {shlex.join(words)}", flush=True)
    try:
        command_line(words)
    except SystemExit as end:
        if end.code:
            raise


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="demo", description="Export a model, find its fastest placement, and run it.")
    parser.add_argument("--model", choices=MODELS, default="inception_v3", help="which one (default: inception_v3)")
    parser.add_argument("--budget", type=float, default=30, help="seconds to find a placement in (default: 30)")
    parser.add_argument("--folder", type=Path, help="where to leave the placement and the trace; a new temporary folder")
    options = parser.parse_args(arguments)
    if len(os.sched_getaffinity(0)) == 1:
        print("This process may use one CPU core only: unless there is another device, there is nothing to share work with.")
    try:
        folder = options.folder or Path(tempfile.mkdtemp(prefix="placeit-demo-"))
        folder.mkdir(parents=True, exist_ok=True)
        placement, trace = folder / "placement.json", folder / "trace.json"
        with tempfile.TemporaryDirectory() as models:
            print(f"Exporting {options.model} with random weights ...", flush=True)
            model = export_model(options.model, Path(models) / f"{options.model}.onnx")
            placeit("devices")
            placeit("optimize", model, "--budget", f"{options.budget:g}", "--output", placement)
            placeit("run", model, "--placement", placement, "--trace", trace)
    except (PlaceitError, OSError) as error:
        sys.exit(str(error))
    print(f"\nWhat ran when: open {trace} in https://ui.perfetto.dev")


if __name__ == "__main__":
    main()
