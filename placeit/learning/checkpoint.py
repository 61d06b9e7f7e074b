"""Checkpoints of policies: safetensors files whose metadata holds everything that is needed to construct the agent."""

from __future__ import annotations

import functools
import hashlib
import json
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from placeit.core.errors import FileError, UsageError
from placeit.core.files import replacing
from placeit.core.records import parsed
from placeit.learning.agent import Agent
from placeit.learning.registry import agent_class, option_types

__all__ = [
    "Checkpoint",
    "load_agent",
    "load_policy",
    "read_checkpoint",
    "read_safetensors",
    "save_agent",
    "weights_of",
    "write_safetensors",
]

A = TypeVar("A", bound=Agent)

_FORMAT = "placeit-agent"
_FORMAT_NAMES = {_FORMAT: "the weights of a policy", "placeit-training": "the state of a training"}
_MAX_BYTES = 1 << 31  # of a file


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """An agent stored in a file.

    Attributes:
        agent: name of the agent.
        version: version of the network's shapes and features.
        config: arguments of the agent's class.
        about: origin of the weights: the training problems and configuration, and the evaluation figure.
        weights: state of the network, by name.
    """

    agent: str
    version: int
    config: Mapping[str, Any]
    about: Mapping[str, Any]
    weights: Mapping[str, Tensor]


def save_agent(agent: Agent, path: str | Path, *, half: bool = False, **about: Any) -> None:
    """Write an agent to a file atomically.

    Args:
        agent: the agent.
        path: the file, usually ``*.safetensors``.
        half: round weights to float16, which halves the size of the file; they are loaded as float32 again.
        **about: further metadata, such as training configuration, evaluation figure and origin; any JSON.

    Raises:
        FileError: the folder is missing or read-only, or the disk is full.
    """
    meta = {"agent": agent.name, "version": agent.version, "config": dict(agent.config), "about": about}
    weights = weights_of(agent)
    if half:
        weights = {name: weight.half() if weight.is_floating_point() else weight for name, weight in weights.items()}
    write_safetensors(Path(path), _FORMAT, weights, meta)


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a file written by :func:`save_agent`, without constructing the agent.

    Raises:
        FileError: the file is missing, damaged, or not a checkpoint.
    """
    weights, meta = read_safetensors(Path(path), _FORMAT)
    match meta:
        case {"agent": str(agent), "version": int(version), "config": dict(config), "about": dict(about)}:
            return Checkpoint(agent, version, config, about, weights)
    raise FileError(f"{path} is damaged: its description of the agent is not valid. Get or make it again.")


def load_agent(path: str | Path, find: Callable[[str], type[Agent]] = agent_class) -> Agent:
    """Construct the agent stored in a file.

    Args:
        path: a file that :func:`save_agent` wrote.
        find: returns the class of an agent by its name.

    Raises:
        FileError: the file is missing or damaged, or its agent has another version, other options or other shapes here.
        UsageError: the agent does not exist.
    """
    checkpoint = read_checkpoint(path)
    cls = find(checkpoint.agent)
    again = f"Train it again with `placeit train {checkpoint.agent}`, or use the version of placeit that wrote the file."
    if checkpoint.version != cls.version:
        raise FileError(
            f"{path} holds version {checkpoint.version} of the agent '{checkpoint.agent}'; this placeit has version "
            f"{cls.version}. {again}"
        )
    types = option_types(cls)
    for name, value in checkpoint.config.items():
        if name in types and not isinstance(value, (int, float) if types[name] is float else types[name]):
            raise FileError(f"{path} has {json.dumps(value)[:80]} for the option '{name}'; it must be {types[name].__name__}.")
    try:
        agent = cls(**checkpoint.config)
    except (TypeError, ValueError, RuntimeError, UsageError) as error:
        raise FileError(
            f"{path} was written for other options of the agent '{checkpoint.agent}' than it has here: {error} {again}"
        ) from error
    expected = agent.network.state_dict()
    for name in sorted(expected.keys() | checkpoint.weights.keys()):
        here, there = (list(state[name].shape) if name in state else "none" for state in (expected, checkpoint.weights))
        if here != there:
            raise FileError(
                f"{path} does not fit the agent '{checkpoint.agent}': its weights '{name}' have shape {there} in the file "
                f"and {here} here. {again}"
            )
        if (
            checkpoint.weights[name].dtype not in (expected[name].dtype, torch.float16)
            or not torch.isfinite(checkpoint.weights[name]).all()
        ):
            raise FileError(f"{path} is damaged: its weights '{name}' are not finite numbers of type {expected[name].dtype}.")
    agent.network.load_state_dict(dict(checkpoint.weights))
    agent.network.eval()
    return agent


def load_policy(path: str | Path, cls: type[A]) -> A:
    """Construct the agent in a file for a placer that needs an agent of a given class.

    Args:
        path: the file; empty for the policy that ships with placeit, which is shared: do not train it.
        cls: the agent's class.

    Raises:
        FileError: as for :func:`load_agent`, or the file holds another agent.
        UsageError: as for :func:`load_agent`.
    """
    agent = load_agent(path) if path else _shipped(cls.name)
    if not isinstance(agent, cls):
        raise FileError(f"{path} holds a policy of '{agent.name}', not of '{cls.name}': use it with that placer.")
    return agent


@functools.cache
def _shipped(name: str) -> Agent:
    with as_file(files("placeit.learning") / "weights" / f"{name}.safetensors") as path:
        return load_agent(path)


def weights_of(agent: Agent) -> dict[str, Tensor]:
    """Return a copy of an agent's weights that further training does not change."""
    return {name: tensor.detach().clone() for name, tensor in agent.network.state_dict().items()}


def write_safetensors(path: Path, file_format: str, tensors: Mapping[str, Tensor], meta: dict[str, Any]) -> None:
    """Write tensors and metadata (any JSON) as a safetensors file, atomically. Raises FileError."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {"format": file_format, "digest": _digest(meta, contiguous), "about": meta}
    # a single entry, because safetensors writes several entries in arbitrary order
    data = save(contiguous, {"placeit": json.dumps(header, allow_nan=False)})
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def read_safetensors(
    path: Path, file_format: str, remedy: str = "Get or make it again."
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and metadata of a file that :func:`write_safetensors` wrote.

    Args:
        path: the file.
        file_format: the format with which it was written.
        remedy: a sentence for error messages that tells how to get another file.

    Raises:
        FileError: the file is missing, of another format, or damaged (the digest does not match its contents).
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
            raise FileError(f"Cannot read {path}: it is not a regular file of at most {_MAX_BYTES >> 30} GiB.")
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get("placeit", "{}")
            header = parsed(text, finite=True)
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if not isinstance(header, dict) or header.get("format") != file_format:
            holds = _FORMAT_NAMES.get(str(header.get("format")) if isinstance(header, dict) else "", "something else")
            raise FileError(f"{path} holds {holds}, not {_FORMAT_NAMES[file_format]} as 'placeit train' writes it. {remedy}")
        about: dict[str, Any] = header.get("about") or {}
        as_written = text == json.dumps(header)  # the digest does not see numbers that are written with other digits
        intact = as_written and isinstance(about, dict) and header.get("digest") == _digest(about, tensors)
    except FileNotFoundError as error:
        raise FileError(f"There is no file {path}.") from error
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror or error}.") from error
    except (SafetensorError, ValueError) as error:
        raise FileError(f"{path} is not a safetensors file, or it is damaged: {error}. {remedy}") from error
    if not intact:
        raise FileError(f"{path} is damaged: its contents do not match its digest. {remedy}")
    return tensors, about


def _digest(meta: Any, tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of metadata and tensors in hexadecimal."""
    digest = hashlib.sha256(json.dumps(meta).encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)} ".encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
