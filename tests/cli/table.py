"""The table of all commands, from which the tests of what commands have in common are made."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from placeit.devices.host import allowed_cores
from placeit.profiler.recording import write_recording
from placeit.testing.problems import random_problem
from tests.report.made_recordings import a_recording
from tests.workload.fleets import FLEET

__all__ = ["ROWS", "Row", "Words", "made", "named", "words"]

Words = Mapping[str, Sequence[object]]
"""What the words in capitals of an example stand for."""


@dataclass(frozen=True)
class Row:
    """A command.

    Attributes:
        name: its name; the name of its group before it, if it is in one.
        example: a command line that succeeds, after the name; :func:`words` has what words in capitals stand for.
        bad: a command line that is refused, after the name.
        says: part of the message about that.
        before: name of a command whose example has to have run.
        longer: further words, with which an interrupt meets the command at work; None if it is not interrupted.
        elsewhere: whether its example is run by a test of the command alone, because it does not end, or takes long.
        silent: whether ``--quiet`` may print no line, or several.
    """

    name: str
    example: str
    bad: str
    says: str
    before: str = ""
    longer: str | None = None
    elsewhere: bool = False
    silent: bool = False


ROWS = (
    Row("demo", "--budget 1s", "--budget soon", "'soon'"),
    Row("try", "MODEL -d DEVICES --budget 2s -o tried.html", "model.onnx --budget soon", "'soon'"),
    Row("devices", "", "--batch 1", "No such option", longer="", silent=True),
    Row("inspect", "MODEL --groups", "model.onnx --batch 0", "'--batch'", longer="", silent=True),
    Row("estimate", "MODEL -d DEVICES", "", "Missing argument", before="profile"),
    Row("profile", "MODEL -d DEVICES", "model.onnx --precision f64", "'f64'", longer="--no-cache -o costs.json"),
    Row(
        "optimize",
        "MODEL -d BOARDS --budget 2s --pareto --live -o found.json",
        "model.onnx --budget soon",
        "'soon'",
        longer="--no-cache --budget 3 --placer heft",
    ),
    Row("plan", "FLEET", "fleet.yaml more", "unexpected extra argument", silent=True),
    Row("placers", "heft annealing", "--batch 1", "No such option"),
    Row(
        "run",
        "MODEL -p PLACEMENT -d DEVICES --runs 2 --trace trace.json",
        "model.onnx --runs 0",
        "'--runs'",
        longer="--runs 200",
    ),
    Row("serve", "MODEL -p PLACEMENT -d DEVICES --port 0", "model.onnx --port 99999", "'--port'", elsewhere=True),
    Row("apply", "workload.yaml --to http://127.0.0.1:1", "workload.yaml", "'--to'", elsewhere=True),
    Row(
        "tune",
        "MODEL -d DEVICES -p PLACEMENT --latency-limit p95=1s --budget 1s -o tuned.json --record tuning.json",
        "model.onnx --latency-limit p95=1s --rate fast",
        "'--rate'",
        longer="--latency-limit p95=1s --no-cache --budget 5s -o tuned.json",
    ),
    Row("generate-text", "FOLDER Once -d DEVICES", "model.onnx Once --top-k -1", "'--top-k'", elsewhere=True),
    Row("compare", "MODEL -p PLACEMENT -d DEVICES --runs 2", "model.onnx --runs 0.5", "'--runs'", longer="--runs 50"),
    Row("explain", "MODEL -p PLACEMENT -d DEVICES", "model.onnx --worst 0", "'--worst'", longer="--no-cache", silent=True),
    Row(
        "diff",
        "MODEL PLACEMENT OTHER -d DEVICES --measure --runs 2",
        "model.onnx a.json",
        "Missing argument",
        longer="--no-cache --runs 50",
    ),
    Row("report", "RECORDING -o report.html", "", "Missing argument"),
    Row("export", "MODEL -p PLACEMENT -o hetero.xml MAPS", "model.onnx", "'--output'", longer=""),
    Row("build", "MODEL -p PLACEMENT -o model.placeit", "model.onnx", "'--placement'"),
    Row("generate", "random -n 1 -o problems", "random", "'--output'", longer="-n 50"),
    Row("schema", "", "one two", "unexpected extra argument", silent=True),
    Row("bench list", "--problems vgg/*", "--seconds 1", "No such option", silent=True),
    Row("bench run", "--problems vgg/* --placer heft -o mine.json", "--seconds soon", "'--seconds'"),
    Row("bench check", "mine.json", "", "Missing argument", before="bench run"),
    Row("cluster up", "--nodes 2", "--nodes 0", "'--nodes'", elsewhere=True),
    Row("cluster down", "", "--nodes 1", "No such option: --nodes"),
    Row(
        "train",
        "placeto:devices=3,rounds=1 --problems PROBLEMS --held-out 0 --updates 1 -o weights.safetensors",
        "placeto --problems random --updates 0 -o w.safetensors",
        "'--updates'",
        longer="--updates 2",
    ),
)


def named(*parts: str) -> list[str]:
    """Return the names of the commands whose examples have all of these words."""
    return [row.name for row in ROWS if set(parts) <= set(row.example.split())]


def words(row: Row, stand_for: Words, *, longer: bool = False) -> list[object]:
    """Return the words of a command's example, its name first."""
    text = f"{row.name} {row.example} {row.longer or '' if longer else ''}"
    return [one for word in text.split() for one in stand_for.get(word, [word])]


def made(folder: Path, model: Path, placement: Path, devices: Sequence[str]) -> Words:
    """Write what examples need to a folder, and return what their words stand for.

    Args:
        folder: the folder.
        model: a model.
        placement: a placement of it on the devices.
        devices: names of devices.
    """
    write_recording(folder / "run.json", a_recording(10))
    (folder / "given").mkdir()
    random_problem(5, 3, 0).to_json(folder / "given" / "p.json")
    cores = zip("ab", allowed_cores()[:2], strict=False)
    boards = [f"{name}: {{runs_on: CPU@{core}, busy_power: 9 W, idle_power: 1 W}}" for name, core in cores]
    (folder / "boards.yaml").write_text(f"devices: {{{', '.join(boards)}}}\n")
    return {
        "FLEET": [FLEET],
        "MODEL": [model],
        "PLACEMENT": [placement],
        "OTHER": [shutil.copy(placement, folder / "second.json")],
        "DEVICES": [",".join(devices)],
        "MAPS": [f"--map={device}=CPU" for device in devices],
        "BOARDS": [folder / "boards.yaml"],
        "RECORDING": [folder / "run.json"],
        "PROBLEMS": [folder / "given"],
    }
