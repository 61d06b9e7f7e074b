"""The whole of placeit in a minute: export a model, find the best split between two boards, save it, run it with a trace.

The boards are those of `cluster.yaml`: two cores of this machine, one of them slowed, with an emulated network between them.
They are to serve as many requests per second as they can, and the slow one has too little memory for the whole model.

python -m examples.demo
python -m examples.demo --devices CPU@0,CPU@1
"""

import argparse
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from placeit.cli import main as command_line
from placeit.devices.host import allowed_cores
from placeit.errors import PlaceitError
from placeit.workloads.models import MODELS, export_model

BOARDS = Path(__file__).with_name("cluster.yaml")
SLOW_BOARD = "slow=60MB"  # of the 102 MB that the weights of ResNet-50 take
RUNS = 20  # enough for a median, and a trace that can be read


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
    parser = argparse.ArgumentParser(prog="demo", description="Export a model, find its best placement, and run it.")
    parser.add_argument("--model", choices=MODELS, default="resnet50", help="which one (default: resnet50)")
    parser.add_argument("--budget", type=float, default=40, help="seconds to find a placement in (default: 40)")
    parser.add_argument("--devices", default=str(BOARDS), help="names or a cluster file (default: the boards of cluster.yaml)")
    parser.add_argument("--folder", type=Path, help="where to leave the placement and the trace; a new temporary folder")
    options = parser.parse_args(arguments)
    devices: tuple[str, ...] = ("--devices", options.devices)
    memory: tuple[str, ...] = ("--memory", SLOW_BOARD) if options.devices == str(BOARDS) else ()
    if options.devices == str(BOARDS) and not {0, 1} <= set(allowed_cores()):
        print(f"The boards of {BOARDS} need the CPU cores 0 and 1, and this process may not use both: taking what is there.")
        devices = memory = ()
    try:
        folder = options.folder or Path(tempfile.mkdtemp(prefix="placeit-demo-"))
        folder.mkdir(parents=True, exist_ok=True)
        placement, trace = folder / "placement.json", folder / "trace.json"
        with tempfile.TemporaryDirectory() as models:
            print(f"Exporting {options.model} with random weights ...", flush=True)
            model = export_model(options.model, Path(models) / f"{options.model}.onnx")
            wanted = ("--objective", "throughput", "--budget", f"{options.budget:g}")
            placeit("optimize", model, *devices, *memory, *wanted, "--output", placement)
            placeit("run", model, *devices, "--placement", placement, "--runs", str(RUNS), "--trace", trace)
    except (PlaceitError, OSError) as error:
        sys.exit(str(error))
    print(f"\nWhat ran when: open {trace} in https://ui.perfetto.dev")


if __name__ == "__main__":
    main()
