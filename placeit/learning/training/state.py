"""The state of a training, and the file from which it resumes after a crash."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from placeit.core.errors import FileError, UsageError
from placeit.learning.agent import Agent, ProblemInstance, Remembering
from placeit.learning.checkpoint import read_safetensors, weights_of, write_safetensors
from placeit.learning.training.logs import Record
from placeit.learning.training.valuing import lowest

__all__ = ["JOURNAL", "FoundPlacement", "TrainingState", "check_folder", "load_run", "save_run", "training_key"]

JOURNAL = "costs.jsonl"
"""File of the costs that are not simulated."""

_FORMAT, _STATE = "placeit-training", "state.safetensors"
_REMEDY = "Choose the folder of a training, or another one to train anew."
_LOG = logging.getLogger(__name__)

_STREAM = 2  # random stream of training, which differs from the one of generated problems with the same seed
_MAX_FOUND = 100  # problems of a stage whose best placements are kept


@dataclass(frozen=True, eq=False)
class FoundPlacement:
    """The best placement of a problem that a stage met, in training or evaluation.

    Attributes:
        problem: key of the problem.
        cost: cost by the stage's cost function, in its unit.
        placement: ``int32[V]``.
    """

    problem: str
    cost: float
    placement: NDArray[np.int32]


@dataclass(eq=False)
class TrainingState:
    """The state of a training.

    Attributes:
        rng: generator of all random draws.
        parameters: trained parameters, by name.
        optimizer: optimiser of the current stage.
        stage: number of the current stage, from 0.
        update: number of updates done in the stage.
        stale: number of evaluations of the stage since the last best.
        barren: number of latest consecutive updates that learned nothing, because no cost could be measured.
        spent: wall time of the stage, seconds.
        told: number of costs that training has received and that are not simulated.
        memory: memory of the stage's baseline.
        best: lowest evaluation figure of the stage.
        best_at: stage and update of the best figure, as in records.
        best_weights: copy of the weights with the best figure.
        history: a record of each update.
        found: best placements by number of the stage, from 1, and key of the problem; of the first hundred problems of a stage.
    """

    rng: np.random.Generator
    parameters: dict[str, torch.nn.Parameter]
    optimizer: torch.optim.Adam
    stage: int = 0
    update: int = 0
    stale: int = 0
    barren: int = 0
    spent: float = 0.0
    told: int = 0
    memory: dict[str, float] = field(default_factory=dict)
    best: float | None = None
    best_at: tuple[int, int] | None = None
    best_weights: dict[str, Tensor] | None = None
    history: list[Record] = field(default_factory=list)
    found: dict[tuple[int, str], FoundPlacement] = field(default_factory=dict)

    @property
    def records(self) -> list[Record]:
        """Records of the current stage."""
        return [record for record in self.history if record.stage == self.stage + 1]

    def meet(
        self,
        instances: Sequence[ProblemInstance],
        visited: Sequence[NDArray[np.int32]],
        costs: Sequence[NDArray[np.float64]],
    ) -> None:
        """Keep the visited placement with the lowest cost of each problem."""
        for instance, path, values in zip(instances, visited, costs, strict=True):
            best = lowest(values)
            if best is None:
                continue
            key = self.stage + 1, instance.problem.key
            known = self.found.get(key)
            if known is None and sum(stage == key[0] for stage, _ in self.found) >= _MAX_FOUND:
                continue
            if known is None or values[best] < known.cost:
                self.found[key] = FoundPlacement(key[1], float(values[best]), path[best].copy())

    def is_best(self, figure: float | None) -> bool:
        """Return whether an evaluation figure is lower than all earlier figures of the stage."""
        return figure is not None and (self.best is None or figure < self.best)

    def keep_best(self, agent: Agent, record: Record) -> None:
        """Keep a copy of the agent's weights as the best."""
        self.best, self.best_at, self.best_weights = record.evaluation, (record.stage, record.update), weights_of(agent)

    def end_stage(self, agent: Agent, *, last: bool) -> None:
        """Load the best weights of the stage into the agent, and prepare the next stage unless ``last``."""
        if self.best_weights is not None:
            agent.network.load_state_dict(self.best_weights)
        self.stage, self.update, self.stale, self.barren, self.spent, self.memory = self.stage + 1, 0, 0, 0, 0.0, {}
        self.optimizer = _adam(self.parameters)
        if not last:
            self.best = self.best_at = self.best_weights = None


def check_folder(folder: Path | None, *, resume: bool) -> None:
    """Make the folder of a training if it does not exist.

    Raises:
        UsageError: the folder holds a training though ``resume`` is not set, it is a file, or ``resume`` is set without a
            folder.
        FileError: the folder cannot be made.
    """
    if folder is None:
        if resume:
            raise UsageError("Training cannot be resumed without the folder that holds its state: give it.")
        return
    if folder.is_file():
        raise UsageError(f"{folder} is a file; a training is kept in a folder, and resumed from it. {_REMEDY}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"Cannot make the folder {folder}: {error.strerror or error}.") from error
    if not resume and any((folder / name).exists() for name in (_STATE, JOURNAL)):
        raise UsageError(f"{folder} holds the state of a training already: resume it, or choose another folder.")


def load_run(agent: Agent, plan: Mapping[str, Any], folder: Path | None, resume: bool) -> TrainingState:
    """Return the state of a new training, or the state saved in the folder, whose weights are loaded into the agent.

    Raises:
        UsageError: the state belongs to another training, or it exists and ``resume`` is not set.
        FileError: the folder cannot be made, or the state is damaged.
    """
    parameters = {name: p for name, p in agent.network.named_parameters() if p.requires_grad}
    run = TrainingState(np.random.default_rng([plan["seed"], _STREAM]), parameters, _adam(parameters))
    check_folder(folder, resume=resume)
    if folder is None or not (path := folder / _STATE).exists():
        if resume:
            _LOG.warning("%s has no training to resume: it starts at the beginning.", folder)
        return run
    tensors, meta = read_safetensors(path, _FORMAT, _REMEDY)
    expected, found = _identity(agent, plan), meta.get("identity")
    if not isinstance(found, dict):
        raise _damaged(path)
    for key in expected | found:
        if expected.get(key) != found.get(key):
            raise UsageError(
                f"{path} is the state of another training: {key} is {found.get(key)} there and {expected.get(key)} here. "
                "Resume with the same configuration, or train the weights further, as AGENT:weights=FILE, in another folder."
            )
    try:
        _restore(run, agent, tensors, meta)
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError, ArithmeticError) as error:
        raise _damaged(path) from error
    return run


def _damaged(path: Path) -> FileError:
    return FileError(f"{path} is damaged: it is not the state of a training. {_REMEDY}")


def save_run(agent: Agent, plan: Mapping[str, Any], run: TrainingState, folder: Path) -> None:
    """Write the state of a training to its folder atomically. Raises FileError."""
    rows = [[math.nan if value is None else value for value in dataclasses.astuple(record)] for record in run.history]
    tensors = {f"weights/{name}": tensor for name, tensor in weights_of(agent).items()}
    tensors |= {f"best/{name}": tensor for name, tensor in (run.best_weights or {}).items()}
    for name, parameter in run.parameters.items():
        tensors |= {f"adam/{key}/{name}": value for key, value in run.optimizer.state.get(parameter, {}).items()}
    if isinstance(agent, Remembering):
        tensors |= {f"memory/{name}": tensor for name, tensor in agent.memory().items()}
    tensors["history"] = torch.tensor(rows, dtype=torch.float64)
    found = {f"{stage}/{key}": best for (stage, key), best in run.found.items()}
    tensors |= {f"found/{name}": torch.from_numpy(best.placement) for name, best in found.items()}
    meta = {name: getattr(run, name) for name in _FIELDS}
    meta |= {"identity": _identity(agent, plan), "rng": run.rng.bit_generator.state}
    meta["found"] = {name: best.cost for name, best in found.items()}
    write_safetensors(folder / _STATE, _FORMAT, tensors, meta)


_COUNTS = ("stage", "update", "stale", "barren", "told")
_FIELDS = (*_COUNTS, "spent", "memory", "best", "best_at")
_RECORD_FIELDS = [field.name for field in dataclasses.fields(Record)]
_INTEGER_FIELDS = {"stage", "update", "dropped"}  # of a record
_ADAM = {"step", "exp_avg", "exp_avg_sq"}


def _restore(run: TrainingState, agent: Agent, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Restore a state that :func:`save_run` wrote; raises errors of several built-in classes if it is damaged."""
    counts, best_at = [meta[name] for name in _COUNTS], meta["best_at"]
    figures = [meta["spent"], *meta["memory"].values(), *meta["found"].values()]
    figures += [] if meta["best"] is None else [meta["best"]]
    if not all(type(x) is int and x >= 0 for x in (*counts, *(best_at or ()))) or not all(map(math.isfinite, figures)):
        raise ValueError("a count or a figure is not valid")
    for name in _FIELDS:
        setattr(run, name, meta[name])
    run.best_at = None if best_at is None else (best_at[0], best_at[1])
    run.rng.bit_generator.state = meta["rng"]
    parts: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        group, _, name = key.partition("/")
        parts.setdefault(group, {})[name] = tensor
    expected = _shapes(agent.network.state_dict())
    run.best_weights = parts.get("best")
    if any(_shapes(weights) != expected for weights in (parts["weights"], run.best_weights) if weights is not None):
        raise ValueError("the weights belong to another network")
    agent.network.load_state_dict(parts["weights"])
    if isinstance(agent, Remembering):
        agent.recall(parts.get("memory", {}))
    for key, tensor in parts.get("adam", {}).items():
        kind, _, name = key.partition("/")
        parameter = run.parameters[name]
        if tensor.shape != (torch.Size() if kind == "step" else parameter.shape):
            raise ValueError("Adam's state is of another parameter")
        run.optimizer.state[parameter][kind] = tensor if kind == "step" else tensor.to(parameter.device)
    if any(state.keys() != _ADAM for state in run.optimizer.state.values()):
        raise ValueError("Adam's state is not complete")
    for row in tensors["history"].tolist():
        values: dict[str, Any] = {name: x for name, x in zip(_RECORD_FIELDS, row, strict=True) if not math.isnan(x)}
        run.history.append(Record(**values | {name: int(values[name]) for name in _INTEGER_FIELDS & values.keys()}))
    for name, cost in meta["found"].items():
        stage, _, key = name.partition("/")
        placement = parts["found"][name]
        if placement.dtype != torch.int32 or placement.ndim != 1:
            raise ValueError("a placement is not valid")
        run.found[int(stage), key] = FoundPlacement(key, float(cost), placement.numpy())


def _shapes(weights: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in weights.items()}


def _adam(parameters: Mapping[str, torch.nn.Parameter]) -> torch.optim.Adam:
    return torch.optim.Adam(parameters.values())  # the learning rate is set at every update


def training_key(agent: Agent, plan: Mapping[str, Any]) -> str:
    """Return 32 hexadecimal digits that are equal for two trainings if one can resume the other."""
    return hashlib.sha256(json.dumps(_identity(agent, plan), sort_keys=True).encode()).hexdigest()[:32]


def _identity(agent: Agent, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings that a resumed training must share with the first one, in a flat dict that names differences."""
    flat: dict[str, Any] = {"the agent": agent.name, "its version": agent.version, "its configuration": dict(agent.config)}
    for key, value in plan.items():
        if key == "stages":
            flat["the number of stages"] = len(value)
            flat |= {f"{name} of stage {i}": x for i, stage in enumerate(value, 1) for name, x in stage.items()}
        else:
            flat[key] = value
    normalized: dict[str, Any] = json.loads(json.dumps(flat))  # in the form that is read back from the file
    return normalized
