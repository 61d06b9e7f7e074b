"""Arguments and options that several commands share.

A command takes them as a dataclass: :func:`placeit.cli.command.command` turns its fields into options.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placeit.errors import UsageError

if TYPE_CHECKING:
    from placeit.cluster import Cluster
    from placeit.profiler.cache import Cache
    from placeit.profiler.costs import Progress
    from placeit.session import Session

__all__ = [
    "DevicesOption",
    "GroupOptions",
    "ModelOptions",
    "NoCacheOption",
    "Precision",
    "SeedOption",
    "SessionOptions",
    "cost_cache",
    "parse_shapes",
]

DevicesOption = Annotated[
    str | None,
    typer.Option(
        "--devices",
        "-d",
        metavar="NAMES|FILE",
        help="Device names (CPU@0,CPU@1), a cluster file (.yaml), or auto.",
        show_default=False,
    ),
]
NoCacheOption = Annotated[bool, typer.Option("--no-cache", help="Measure afresh; neither read nor write the cost cache.")]
SeedOption = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed of everything random.")]


class Precision(StrEnum):
    """Precisions in which devices compute."""

    F32 = "f32"
    BF16 = "bf16"
    F16 = "f16"


@dataclass(frozen=True)
class ModelOptions:
    """A model file, and the sizes that it leaves open."""

    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="ONNX file, OpenVINO IR (.xml) or PyTorch program (.pt2).", show_default=False),
    ]
    input_shape: Annotated[
        list[str] | None,
        typer.Option("--input-shape", metavar="NAME:SIZES", help="Sizes of an input, as in x:1,3,224,224; repeatable."),
    ] = None
    batch: Annotated[
        int | None, typer.Option("--batch", metavar="N", min=1, help="First size of every input that leaves it open.")
    ] = None


@dataclass(frozen=True)
class GroupOptions(ModelOptions):
    """A model that is cut into groups."""

    max_groups: Annotated[
        int, typer.Option("--max-groups", metavar="N", min=1, help="Most groups of ops to place; groups stay together.")
    ] = 96


@dataclass(frozen=True)
class SessionOptions(GroupOptions):
    """A model on devices."""

    devices: DevicesOption = None
    precision: Annotated[Precision, typer.Option("--precision", help="Precision in which devices compute.")] = Precision.F32
    no_cache: NoCacheOption = False

    def session(self, progress: Progress | None, cluster: Cluster | None = None) -> Session:
        """Open the model on a cluster, or on the devices of the command line."""
        from placeit.session import Session

        return Session(
            self.model,
            self.devices if cluster is None else cluster,
            input_shapes=parse_shapes(self.input_shape),
            batch=self.batch,
            max_groups=self.max_groups,
            precision=self.precision.value,
            cache=cost_cache(self.no_cache),
            progress=progress,
        )


def cost_cache(no_cache: bool) -> Cache | None:
    """Return the cost cache, or None to do without."""
    from placeit.profiler.cache import Cache

    return None if no_cache else Cache()


def parse_shapes(texts: Sequence[str] | None) -> dict[str, tuple[int, ...]]:
    """Read ``NAME:1,3,224,224`` for each text; a name may hold colons itself. Raises UsageError."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts or ():
        name, _, sizes = text.rpartition(":")
        words = [word.strip() for word in sizes.split(",")]
        if not name or not all(word.isascii() and word.isdecimal() and int(word) > 0 for word in words):
            raise UsageError(f"Cannot read --input-shape '{text}'; write NAME:SIZES, such as images:1,3,224,224.")
        if name in shapes:
            raise UsageError(f"--input-shape gives the input '{name}' twice.")
        shapes[name] = tuple(int(word) for word in words)
    return shapes
