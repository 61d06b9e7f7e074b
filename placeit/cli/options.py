"""Arguments and options that several commands share.

A command has a parameter of such a dataclass, and :func:`placeit.cli.command.command` turns its fields into options.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import typer

from placeit.cli.nodes import TIMEOUT_S, Compress, CompressOption, PatienceOption, RayOption, reach_nodes
from placeit.cli.values import complete_devices, complete_objectives, duration, minimised, parse_pairs
from placeit.core.errors import UsageError
from placeit.core.sizes import SizeRange, parsed_size

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from placeit.backends.base import Model
    from placeit.core.cluster import Cluster
    from placeit.profiler.cache import Cache
    from placeit.session import Session
    from placeit.workbench.options import Policy

__all__ = [
    "BatchOption",
    "BudgetOption",
    "CheckedOptions",
    "ContextOption",
    "DevicesOption",
    "GroupOptions",
    "GroupsOption",
    "InputsOption",
    "LengthOptions",
    "Logits",
    "LogitsOption",
    "ModelOptions",
    "NoCacheOption",
    "ObjectiveOption",
    "Precision",
    "PrecisionOption",
    "SeedOption",
    "SessionOptions",
    "ShapesOption",
    "StateOption",
    "TrustOption",
    "cost_cache",
    "parse_shapes",
    "parse_state",
]

ObjectiveOption = Annotated[
    str, typer.Option("--objective", metavar="NAME", help=f"{minimised()}.", autocompletion=complete_objectives)
]
DevicesOption = Annotated[
    str | None,
    typer.Option(
        "--devices",
        "-d",
        metavar="NAMES|FILE",
        help="Device names (CPU@0,CPU@1), a cluster file (.yaml), or auto.",
        autocompletion=complete_devices,
    ),
]
ShapesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--input-shape",
        metavar="NAME:SIZES",
        help="Shape of an input, as in x:1,3,224,224, or ids:1,32..512@128 for any size in a range; repeatable.",
    ),
]
BatchOption = Annotated[
    int | None, typer.Option("--batch", metavar="N", min=1, help="Batch size of every input whose first dimension is dynamic.")
]
ContextOption = Annotated[
    int | None,
    typer.Option(
        "--context",
        metavar="TOKENS",
        min=2,
        help="Length of the longest text of a decoder, which stands for the shapes of all its inputs.",
    ),
]
StateOption = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        metavar="IN=OUT",
        help="Keep an input as state, which an output updates; repeatable. Caches (past_key_values.0.key) are kept by default; "
        "'none' leaves them inputs.",
    ),
]


class Logits(StrEnum):
    """Tokens of a step whose logits a decoder computes."""

    LAST = "last"
    ALL = "all"


LogitsOption = Annotated[
    Logits,
    typer.Option("--logits", help="For a decoder with state: compute the logits of the last token of a step, or of all."),
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="For authors you trust: load .pt2 files that could execute code; follow links to an ONNX file's weights.",
    ),
]
GroupsOption = Annotated[
    int,
    typer.Option("--max-groups", metavar="N", min=1, help="Maximum number of groups; the ops of a group are placed together."),
]
InputsOption = Annotated[
    Path | None,
    typer.Option("--inputs", metavar="FILE", help="Input arrays by name (.npz), which also set open sizes; default: random."),
]
NoCacheOption = Annotated[bool, typer.Option("--no-cache", help="Measure anew; neither read nor write the cost cache.")]
BudgetOption = Annotated[
    float,
    typer.Option(
        "--budget", metavar="TIME", parser=duration, help="Time limit of the search; default: 40s.", show_default=False
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed of all random numbers.")]


class Precision(StrEnum):
    """Precisions in which devices compute."""

    F32 = "f32"
    BF16 = "bf16"
    F16 = "f16"


PrecisionOption = Annotated[Precision, typer.Option("--precision", help="Precision in which devices compute.")]


@dataclass(frozen=True)
class ModelOptions:
    """A model file or a tensor program, and the sizes that it leaves open."""

    HEADING: ClassVar = "Model"

    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="ONNX file, OpenVINO IR (.xml), a folder with one, PyTorch program (.pt2), or a tensor program by name "
            "(chain-mm:shards=4).",
        ),
    ]
    input_shape: ShapesOption = None
    batch: BatchOption = None
    state: StateOption = None
    context: ContextOption = None
    logits: LogitsOption = Logits.LAST
    trust: TrustOption = False
    inputs: InputsOption = None

    def __post_init__(self) -> None:
        from placeit.backends.folder import in_folder

        object.__setattr__(self, "model", in_folder(self.model))

    def load(self) -> Model:
        """Read the model."""
        from placeit.backends import load

        trusting: dict[str, Any] = {"trust": True} if self.trust and self.model.suffix.lower() in (".onnx", ".pt2") else {}
        shapes, samples, state = parse_shapes(self.input_shape), self.sample_shapes(), parse_state(self.state)
        return load(
            self.model,
            input_shapes=shapes,
            batch=self.batch,
            sample_shapes=samples,
            state=state,
            logits=self.logits.value,
            context=self.context,
            **trusting,
        )

    def load_with_inputs(self) -> Model:
        """Read the model, to run on the given inputs if there are any. Raises FileError or UsageError."""
        model = self.load()
        given = self.arrays(model)
        return model if given is None else model.with_inputs(given)

    def sample_shapes(self) -> dict[str, tuple[int, ...]]:
        """Read the shapes of the given inputs, by name. Raises FileError."""
        from placeit.backends.archive import read_shapes

        return {} if self.inputs is None else read_shapes(self.inputs)

    def arrays(self, model: Model) -> dict[str, NDArray[np.generic]] | None:
        """Read the given inputs of a model; None if no file of them is given. Raises FileError or UsageError."""
        from placeit.backends.archive import read_tensors

        return None if self.inputs is None else read_tensors(self.inputs, model.settable)

    def files(self) -> list[Path]:
        """Return the files that these options name, such as the model's, which the command must not overwrite."""
        from placeit.backends import files_of

        return [*files_of(self.model), *([] if self.inputs is None else [self.inputs])]


@dataclass(frozen=True)
class GroupOptions(ModelOptions):
    """A model that is cut into groups."""

    max_groups: GroupsOption = 96


@dataclass(frozen=True)
class SessionOptions(GroupOptions):
    """A model on devices."""

    HEADING: ClassVar = "Devices"

    devices: DevicesOption = None
    ray_address: RayOption = None
    compress: CompressOption = Compress.NONE
    patience: PatienceOption = TIMEOUT_S
    precision: PrecisionOption = Precision.F32
    no_cache: NoCacheOption = False

    def files(self) -> list[Path]:
        """Return the files that these options name, the cluster file included."""
        from placeit.devices.clusterfile import names_file

        cluster = [Path(self.devices)] if self.devices is not None and names_file(self.devices) else []
        return [*super().files(), *cluster]

    def reach(self, otherwise: Sequence[str] | None = None, *, start: bool = True) -> str | Sequence[str] | None:
        """Connect to the nodes of the devices, or ``otherwise`` of other ones, and return them (:func:`reach_nodes`)."""
        devices = otherwise if self.devices is None else self.devices
        return reach_nodes(devices, self.ray_address, self.compress, self.patience, start=start)

    def session(self, cluster: Cluster | None = None, graph: str = "") -> Session:
        """Open the model on a cluster, or on the devices of the command line."""
        from placeit.session import Session
        from placeit.workbench.options import Constraints

        devices = self.reach() if cluster is None else cluster
        return Session(
            self.load_with_inputs(),
            devices,
            precision=self.precision.value,
            constraints=Constraints(max_groups=self.max_groups, tolerance=self._tolerance()),
            cache=cost_cache(self.no_cache),
            graph=graph,
            policy=self.policy(),
        )

    def policy(self) -> Policy:
        """Return the guards against measurements that mislead."""
        from placeit.workbench.options import Policy

        return Policy()

    def _tolerance(self) -> float | None:
        """Return the largest accepted output error; None for the default of the precision."""
        return None


@dataclass(frozen=True)
class CheckedOptions(SessionOptions):
    """A model on devices, whose outputs are checked."""

    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance",
            metavar="SHARE",
            min=0,
            help="Largest accepted output error, relative to the largest output; default: 0.001 in f32, 0.02 in f16, 0.1 in "
            "bf16.",
        ),
    ] = None

    def _tolerance(self) -> float | None:
        return self.tolerance


@dataclass(frozen=True)
class LengthOptions:
    """Options that set the length of a measurement."""

    runs: Annotated[
        int | None,
        typer.Option("--runs", metavar="N", min=1, help="Timed runs of each placement; default: 30."),
    ] = None
    duration: Annotated[
        float | None,
        typer.Option(
            "--duration", metavar="TIME", parser=duration, help="Time for timed runs (90, 90s, 2m), instead of their number."
        ),
    ] = None
    warmup: Annotated[
        int, typer.Option("--warmup", metavar="N", min=0, help="Warm-up runs of each placement, not counted.")
    ] = 2

    def rounds(self) -> int:
        """Return the number of runs. Raises UsageError if a duration is given as well, or is not positive."""
        if self.duration is not None:
            if self.runs is not None:
                raise UsageError("Give either --runs or --duration: both say how long to measure.")
            if not 0 < self.duration < math.inf:
                raise UsageError(f"--duration is {self.duration:g} seconds; it must be positive and finite.")
        return 30 if self.runs is None else self.runs


def cost_cache(no_cache: bool) -> Cache | None:
    """Return the cost cache; None with ``--no-cache``."""
    from placeit.profiler.cache import Cache

    return None if no_cache else Cache()


def parse_shapes(texts: Sequence[str] | None) -> dict[str, tuple[int | SizeRange, ...]]:
    """Read ``NAME:1,3,224,224`` for each text, or ranges as in ``NAME:1,32..512@128``; a name may hold colons itself.

    Raises:
        UsageError: a text has another form, or a name occurs twice.
    """
    shapes: dict[str, tuple[int | SizeRange, ...]] = {}
    for text in texts or ():
        name, _, sizes = text.rpartition(":")
        words = [word.strip() for word in sizes.split(",")]
        fixed = [word.isascii() and word.isdecimal() and len(word) <= 20 and int(word) > 0 for word in words]
        if not name or not all(known or ".." in word for word, known in zip(words, fixed, strict=True)):
            raise UsageError(
                f"Cannot read --input-shape '{text}'; write NAME:SIZES, such as images:1,3,224,224, or with a range of sizes, "
                "ids:1,32..512@128."
            )
        if name in shapes:
            raise UsageError(f"--input-shape gives the input '{name}' twice.")
        shapes[name] = tuple(map(parsed_size, words))
    return shapes


def parse_state(texts: Sequence[str] | None) -> dict[str, str] | Literal["none"] | None:
    """Read ``IN=OUT`` for each text, or ``none``. Raises UsageError."""
    if not texts:
        return None
    if "none" in texts:
        if len(texts) > 1:
            raise UsageError("--state none keeps nothing as state: leave out either it or the others.")
        return "none"
    return parse_pairs("--state", texts, "IN=OUT, such as past_key_values.0.key=present.0.key, or none")
