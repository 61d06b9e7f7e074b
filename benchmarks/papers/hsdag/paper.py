"""Figures of the paper, on a CPU (i9-12900K) and a GPU (Flex 170). They are no targets for ours, since the devices differ."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["ABLATIONS_MS", "GRAPHS", "LATENCY_MS", "MODELS", "SEARCH_S"]

MODELS = ("resnet50", "inception_v3", "bert_base")

GRAPHS: Mapping[str, tuple[int, int, float]] = {
    "resnet50": (396, 411, 1.04),
    "inception_v3": (728, 764, 1.05),
    "bert_base": (1009, 1071, 1.06),
}
"""Table 1: nodes, edges and average degree."""

LATENCY_MS: Mapping[str, Mapping[str, float | None]] = {
    "CPU": {"resnet50": 16.0, "inception_v3": 12.8, "bert_base": 6.38},
    "GPU": {"resnet50": 7.81, "inception_v3": 12.0, "bert_base": 2.77},
    "OpenVINO, CPU first": {"resnet50": 23.4, "inception_v3": 12.8, "bert_base": 6.57},
    "OpenVINO, GPU first": {"resnet50": 8.76, "inception_v3": 13.8, "bert_base": 2.84},
    "Placeto": {"resnet50": 9.32, "inception_v3": 11.6, "bert_base": 6.51},
    "RNN-based": {"resnet50": 8.75, "inception_v3": 12.8, "bert_base": None},
    "HSDAG": {"resnet50": 7.66, "inception_v3": 10.5, "bert_base": 2.67},
}
"""Table 2, ms; None if memory was not sufficient."""

ABLATIONS_MS: Mapping[str, Mapping[str, float]] = {
    "original": {"resnet50": 7.66, "inception_v3": 10.5, "bert_base": 2.67},
    "without output shape": {"resnet50": 7.68, "inception_v3": 11.7, "bert_base": 2.78},
    "without node ID": {"resnet50": 7.68, "inception_v3": 11.7, "bert_base": 2.79},
    "without structure": {"resnet50": 7.66, "inception_v3": 10.9, "bert_base": 2.68},
}
"""Table 3, ms."""

SEARCH_S: Mapping[str, Mapping[str, float | None]] = {
    "Placeto": {"resnet50": 1162, "inception_v3": 2808, "bert_base": 4512},
    "RNN-based": {"resnet50": 1212, "inception_v3": 3706, "bert_base": None},
    "HSDAG": {"resnet50": 1047, "inception_v3": 2454, "bert_base": 2765},
}
"""Table 5, seconds."""
