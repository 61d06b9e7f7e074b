"""The GiPH policy that ships with placeit, for inference: in NumPy and compiled loops, without PyTorch."""

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
"""Names of policies without training."""

_DIRECTION = ("of_node.weight", "of_node.bias", "aggregate.weight", "aggregate.bias")


class Policy(Protocol):
    """A policy: the one that ships with placeit, or a :class:`placeit.learning.agents.giph.agent.GiphAgent`.

    Attributes:
        variant: one of the paper's names.
        pivots: whether it chooses an op only, and earliest finish time its device.
    """

    variant: str
    pivots: bool

    def answering(self, problem: Problem, start: NDArray[np.int32]) -> RelocationSearch[NDArray[np.float32]]:
        """Begin a search from a given placement."""
        ...


class ShippedPolicy:
    """A policy with message passing by level: the network :class:`placeit.learning.agents.giph.networks.Scorer`.

    Args:
        weights: of that network, by name; float16 or float32.
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
        both = []
        for which, order in enumerate(orders(nets)):
            layers = Layers(*(self._weights[f"directions.{which}.{name}"] for name in _DIRECTION))
            messages = nets.edges @ self._weights[f"directions.{which}.of_edge.weight"].T
            both.append(embed(x, messages, layers, order)[0])
        scores: NDArray[np.float32] = self._linear("score.2", _relu(self._linear("score.0", np.concatenate(both, axis=1))))
        return scores[:, 0]

    def _linear(self, layer: str, x: NDArray[np.float32]) -> NDArray[np.float32]:
        out: NDArray[np.float32] = x @ self._weights[f"{layer}.weight"].T + self._weights[f"{layer}.bias"]
        return out


def policy(weights: str) -> Policy:
    """Load the policy in a file, which needs PyTorch; an empty name stands for the policy that ships with placeit.

    For comparison, ``untrained`` is the same network with random weights, and ``uniform`` scores all moves equally.

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
def _without_torch(which: str) -> ShippedPolicy:
    with (
        as_file(files("placeit.learning") / "weights" / "giph.safetensors") as path,
        safe_open(path, framework="np") as file,
    ):
        trained = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if which == "untrained":  # as PyTorch begins with, but for its bounds of biases
        rng = np.random.default_rng(0)
        trained = {name: rng.uniform(-1, 1, w.shape) / np.sqrt(w.shape[-1]) for name, w in trained.items()}
    if which == "uniform":
        trained |= {name: np.zeros_like(trained[name]) for name in ("score.2.weight", "score.2.bias")}
    return ShippedPolicy(trained)


def _relu(x: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.maximum(x, np.float32(0))
