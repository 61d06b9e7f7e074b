"""The model that a policy is trained on, and its devices."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placeit.cli.options import (
    BatchOption,
    DevicesOption,
    GroupsOption,
    InputsOption,
    NoCacheOption,
    Precision,
    PrecisionOption,
    SessionOptions,
    ShapesOption,
    TrustOption,
)
from placeit.core.errors import UsageError

if TYPE_CHECKING:
    from placeit.session import Session

__all__ = ["LearnedModelOptions"]


@dataclass(frozen=True)
class LearnedModelOptions:
    """A model on devices, in place of training problems."""

    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="Learn to place this model: a file, or a tensor program by name (chain-mm:shards=4).",
            show_default=False,
        ),
    ] = None
    devices: DevicesOption = None
    max_groups: GroupsOption = 96
    precision: PrecisionOption = Precision.F32
    inputs: InputsOption = None
    input_shape: ShapesOption = None
    batch: BatchOption = None
    trust: TrustOption = False
    no_cache: NoCacheOption = False

    def files(self) -> list[Path]:
        """Files that are read for these options, and so are not to be written."""
        return [] if self.model is None else self._options(self.model).files()

    def session(self) -> Session:
        """Open the model on the devices. Raises UsageError if there is none."""
        if self.model is None:
            raise UsageError("There is no model: give --model.")
        return self._options(self.model).session()

    def _options(self, model: Path) -> SessionOptions:
        return SessionOptions(
            model=model,
            devices=self.devices,
            max_groups=self.max_groups,
            precision=self.precision,
            inputs=self.inputs,
            input_shape=self.input_shape,
            batch=self.batch,
            trust=self.trust,
            no_cache=self.no_cache,
        )
