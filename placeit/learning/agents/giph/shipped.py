"""The GiPH policy that ships with placeit, for inference without PyTorch: in NumPy and compiled loops."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.resources import as_file, files
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from placeit.core.extras import need
from placeit.core.problem import Problem
from placeit.learning.agents.giph.gpnet import GpNets
from placeit.learning.agents.giph.passing import Layers, embed, orders
from placeit.learning.agents.giph.search import TEMPERATURE, RelocationSearch

__all__ = ["FRESH", "Policy", "ShippedPolicy", "policy"]

FRESH = ("untrained", "uniform")
"""Names of policies that are not trained."""

_DIRECTION = ("of_node.weight", "of_node.bias", "aggregate.weight", "aggregate.bias")


class Policy(Protocol):
    """A GiPH policy: the one that ships with placeit, or a :class:`placeit.learning.agents.giph.agent.GiphAgent`.

    Attributes:
        variant: name of the variant in the paper.
        pivots: whether the policy selects only an op, whose device is the one of the earliest finish time.
    """

    variant: str
    pivots: bool

    def answering(self, problem: Problem, start: NDArray[np.int32]) -> RelocationSearch[NDArray[np.float32]]:
        """Begin a search from a given placement."""
        ...


class ShippedPolicy:
    """A policy with message passing by level, in NumPy: the network :class:`placeit.learning.agents.giph.networks.Scorer`.

    Args:
        weights: weights of that network, by name; float16 or float32.
    """

    variant, pivots = "giph", False

    def __init__(self, weights: Mapping[str, NDArray[np.floating]]) -> None:
        self._weights = {name: weight.astype(np.float32) for name, weight in weights.items()}

    def answering(self, problem: Problem, start: NDArray[np.int32]) -> RelocationSearch[NDArray[np.float32]]:
        """Begin a search from a given placement."""
        return RelocationSearch(self.score, [problem], [start], pivots=False, temperature=TEMPERATURE)

    def score(self, nets: GpNets) -> NDArray[np.float32]:
        """Score all nodes: ``float32[N]``."""
        features = self._weights["transform.0.weight"].shape[1]
        x = self._linear("transform.2", _relu(self._linear("transform.0", nets.nodes[:, :features])))
        embeddings = []
        for direction, order in enumerate(orders(nets)):
            layers = Layers(*(self._weights[f"directions.{direction}.{name}"] for name in _DIRECTION))
            messages = nets.edges @ self._weights[f"directions.{direction}.of_edge.weight"].T
            embeddings.append(embed(x, messages, layers, order)[0])
        hidden = _relu(self._linear("score.0", np.concatenate(embeddings, axis=1)))
        return self._linear("score.2", hidden)[:, 0]

    def _linear(self, layer: str, x: NDArray[np.float32]) -> NDArray[np.float32]:
        out: NDArray[np.float32] = x @ self._weights[f"{layer}.weight"].T + self._weights[f"{layer}.bias"]
        return out


def policy(weights: str) -> Policy:
    """Load the policy in a file, which needs PyTorch, or, if ``weights`` is empty, the policy that ships with placeit.

    For comparison, ``untrained`` is the shipped network with random weights, and ``uniform`` scores all moves equally.

    Raises:
        FileError: the file is missing or damaged, of another version, or holds another kind of policy.
        UsageError: PyTorch is not installed.
    """
    if not weights or weights in FRESH:
        return _without_torch(weights)
    need(f"The policy in {weights}", "learn", "torch")
    from placeit.learning.agents.giph.agent import GiphAgent
    from placeit.learning.checkpoint import load_policy

    return load_policy(weights, GiphAgent)


@functools.cache
def _without_torch(name: str) -> ShippedPolicy:
    """Load the shipped policy (an empty name), or make one of the policies in :data:`FRESH` from it."""
    with (
        as_file(files("placeit.learning") / "weights" / "giph.safetensors") as path,
        safe_open(path, framework="np") as file,
    ):
        weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    if name == "untrained":  # as PyTorch initialises linear layers, except for the bounds of biases
        rng = np.random.default_rng(0)
        weights = {key: rng.uniform(-1, 1, weight.shape) / np.sqrt(weight.shape[-1]) for key, weight in weights.items()}
    if name == "uniform":
        weights |= {key: np.zeros_like(weights[key]) for key in ("score.2.weight", "score.2.bias")}
    return ShippedPolicy(weights)


def _relu(x: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.maximum(x, np.float32(0))
