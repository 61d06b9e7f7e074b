"""The models of PlaceBench, as task graphs of groups of ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks._anytime_problems import measured_model
from benchmarks._architectures import language, vision
from benchmarks.placebench import networks
from examples.models import BertBase, InceptionV3, ResNet50, example_inputs
from placeit.backends.torch.graph import build_graph
from placeit.backends.torch.program import export, lower
from placeit.core.graph import OpGraph
from placeit.learning.workloads.tensor_graphs import tensor_graph
from placeit.profiler.op_traits import OpTraits

__all__ = ["MODELS", "NamedModel"]

_SMALL, _LARGE = ("boards", "soc", "edge"), ("gpus4", "gpus8", "gpus64")


class NamedModel(NamedTuple):
    """A model.

    Attributes:
        kind: kind of its architecture.
        origin: where the architecture is published, and its size here.
        clusters: names of the clusters that it is placed on.
        graph: builds the graph of its ops.
    """

    kind: str
    origin: str
    clusters: tuple[str, ...]
    graph: Callable[[], OpGraph]


def _torch(make: Callable[[], nn.Module], *inputs: Callable[[], Tensor]) -> Callable[[], OpGraph]:
    """Return a function that builds the graph of a module; weights take no memory, because nothing writes them."""

    def graph() -> OpGraph:
        with torch.device("meta"):
            module = make().eval()
        module = module.to_empty(device="cpu")
        for buffer in module.buffers():
            buffer.zero_()  # some are numbers of rows, and are looked up while the program is lowered
        with torch.no_grad():
            return build_graph(lower(export(module, tuple(make_input() for make_input in inputs), {}, "a model"), "a model"))[0]

    return graph


def _f(*shape: int) -> Callable[[], Tensor]:
    return partial(torch.zeros, shape)


def _i(*shape: int) -> Callable[[], Tensor]:
    return partial(torch.zeros, shape, dtype=torch.int64)


def _given(make: Callable[[], Mapping[str, Tensor]]) -> list[Callable[[], Tensor]]:
    return [partial(make().__getitem__, name) for name in make()]


def _light(name: str) -> Callable[[], OpGraph]:
    """Return a function that reads a graph of the package onnx; the file has no weights, whose bytes follow from the ops."""

    def graph() -> OpGraph:
        read = measured_model(f"light_{name}").graph
        return replace(read, param_bytes=OpTraits.of_graph(read).size[:, 1])

    return graph


def _program(name: str, shards: int) -> Callable[[], OpGraph]:
    return lambda: tensor_graph(name, paper_sizes=True, shards=shards).graph


def _cached(of: type[language.LlamaDecoder], past: int) -> list[Callable[[], Tensor]]:
    kept = [_f(1, of.CACHED, past, of.EACH)] * (2 * of.DEPTH)
    return [_i(1, 1), _i(1, 1), partial(torch.ones, (1, past + 1), dtype=torch.int64), *kept]


def _heard(of: type[language.WhisperDecoder], past: int, sounds: int) -> list[Callable[[], Tensor]]:
    kept = _f(of.DEPTH, 1, of.HEADS, past, of.WIDTH // of.HEADS)
    return [_i(1, 1), _i(1, 1), _f(1, sounds, of.WIDTH), kept, kept]


_graph_edges = [_i(20_000)] * 2
_n = networks

MODELS: Mapping[str, NamedModel] = {
    "resnet50": NamedModel("CNN", "He et al., 2016; batch 8", ("boards", "soc", *_LARGE), _torch(ResNet50, _f(8, 3, 224, 224))),
    "inception_v1": NamedModel("CNN", "Szegedy et al., 2015; of the package onnx", _SMALL, _light("inception_v1")),
    "inception_v2": NamedModel("CNN", "Ioffe and Szegedy, 2015; of the package onnx", _SMALL, _light("inception_v2")),
    "inception_v3": NamedModel("CNN", "Szegedy et al., 2016; batch 8", ("soc", *_LARGE),
        _torch(InceptionV3, _f(8, 3, 299, 299))),
    "densenet121": NamedModel("CNN", "Huang et al., 2017; of the package onnx", _SMALL, _light("densenet121")),
    "squeezenet": NamedModel("CNN", "Iandola et al., 2016; of the package onnx", _SMALL, _light("squeezenet")),
    "shufflenet": NamedModel("CNN", "Zhang et al., 2018; of the package onnx", _SMALL, _light("shufflenet")),
    "mobilenet": NamedModel("CNN", "Howard et al., 2019, less deep", _SMALL, _torch(vision.MobileNet, _f(1, 3, 224, 224))),
    "vgg": NamedModel("CNN", "Simonyan and Zisserman, 2015, less deep", _SMALL, _torch(vision.vgg, _f(1, 3, 96, 96))),
    "nasnet": NamedModel("CNN", "Zoph et al., 2018; 9 cells, batch 8", ("edge", *_LARGE),
        _torch(_n.NasNet, _f(8, 3, 224, 224))),
    "hrnet": NamedModel("CNN", "Wang et al., 2020; width 48, batch 4", ("soc", *_LARGE),
        _torch(_n.HighResolution, _f(4, 3, 256, 256))),
    "bert_base": NamedModel("transformer", "Devlin et al., 2019; 128 tokens", ("soc", "edge", "gpus4", "gpus8"),
        _torch(BertBase, *_given(partial(example_inputs, "bert_base")))),
    "encoder": NamedModel("transformer", "Vaswani et al., 2017; 4 layers of width 128", _SMALL,
        _torch(language.Encoder, _i(1, 32))),
    "albert": NamedModel("transformer", "Lan et al., 2020; one layer of width 768, 12 times", _SMALL,
        _torch(partial(language.TiedEncoder, 768, 12), _i(1, 128))),
    "vit": NamedModel("transformer", "Dosovitskiy et al., 2021; 6 layers of width 192", _SMALL,
        _torch(vision.VisionTransformer, _f(1, 3, 96, 96))),
    "vit_base": NamedModel("transformer", "Dosovitskiy et al., 2021; 12 layers of width 768, batch 8", _LARGE,
        _torch(partial(vision.VisionTransformer, 768, 12), _f(8, 3, 96, 96))),
    "gpt": NamedModel("transformer", "Radford et al., 2019; 12 layers of width 768, 512 tokens", _LARGE,
        _torch(partial(_n.gpt, 768, 12, 12), _i(1, 512), _f(512, 512))),
    "translator": NamedModel("transformer", "Vaswani et al., 2017, big; 128 tokens", _LARGE,
        _torch(_n.Translator, _i(1, 128), _i(1, 128))),
    "experts4": NamedModel("MoE", "Shazeer et al., 2017; 2 layers of 4", _SMALL, _torch(language.Experts, _f(32, 128))),
    "experts8": NamedModel("MoE", "Shazeer et al., 2017; 4 layers of 8, width 1024", _LARGE,
        _torch(partial(_n.mixture, 1024, 4, 8), _f(512, 1024))),
    "experts32": NamedModel("MoE", "Shazeer et al., 2017; 2 layers of 32, width 1024", _LARGE,
        _torch(partial(_n.mixture, 1024, 2, 32), _f(1024, 1024))),
    "switch": NamedModel("MoE", "Fedus et al., 2022; 4 layers of 8 experts, width 1024", _LARGE,
        _torch(_n.sparse_transformer, _f(1, 512, 1024))),
    "unet": NamedModel("diffusion", "Rombach et al., 2022; width 32", _SMALL, _torch(vision.UNet, *_given(vision.noise))),
    "unet_wide": NamedModel("diffusion", "Rombach et al., 2022; width 320", ("soc", *_LARGE),
        _torch(partial(vision.UNet, 320), *_given(vision.noise))),
    "dit": NamedModel("diffusion", "Peebles and Xie, 2023; 12 layers of width 768", _LARGE,
        _torch(_n.DiffusionTransformer, _f(2, 4, 32, 32), _f(2, 256))),
    "whisper_small": NamedModel("speech, with state", "Radford et al., 2023; 3 layers of width 192", _SMALL,
        _torch(language.WhisperDecoder, *_heard(language.WhisperDecoder, 8, 50))),
    "whisper": NamedModel("speech, with state", "Radford et al., 2023; 12 layers of width 768", ("boards", "gpus4", "gpus8"),
        _torch(_n.Whisper, *_heard(_n.Whisper, 64, 1500))),
    "wavenet": NamedModel("speech", "van den Oord et al., 2016; 20 layers, 1 s", ("boards", "soc", "edge", "gpus4"),
        _torch(_n.WaveNet, _f(1, 1, 16_000))),
    "vocoder": NamedModel("speech", "Kong et al., 2020; 100 frames", ("boards", "edge", *_LARGE),
        _torch(_n.Vocoder, _f(1, 80, 100))),
    "gcn": NamedModel("GNN", "Kipf and Welling, 2017; 4 layers, 5,000 nodes", _SMALL,
        _torch(partial(_n.GraphNet, 128, 4), _f(5000, 128), *_graph_edges)),
    "gat": NamedModel("GNN", "Velickovic et al., 2018; 4 layers, 5,000 nodes", ("boards", "soc", "gpus4"),
        _torch(partial(_n.GraphNet, 128, 4, 1, True), _f(5000, 128), *_graph_edges)),
    "rgcn": NamedModel("GNN", "Schlichtkrull et al., 2018; 3 layers, 12 relations", ("soc", *_LARGE),
        _torch(partial(_n.GraphNet, 256, 3, 12), _f(5000, 256), *(_graph_edges * 12))),
    "lstm": NamedModel("recurrent", "Hochreiter and Schmidhuber, 1997; 4 layers of width 1024, 8 steps", _LARGE,
        _torch(_n.StackedLstm, _f(8, 64, 1024))),
    "gnmt": NamedModel("recurrent", "Wu et al., 2016; 2 layers of width 1024, 12 steps", _LARGE,
        _torch(partial(_n.StackedLstm, 1024, 2, True), _f(12, 64, 1024))),
    "tree_lstm": NamedModel("recurrent", "Tai et al., 2015; 32 leaves", ("boards", "edge", "gpus4", "gpus8"),
        _torch(_n.TreeLstm, _f(32, 16, 512))),
    "llama_small": NamedModel("decoder with state", "Touvron et al., 2023; 4 layers of width 256", _SMALL,
        _torch(language.LlamaDecoder, *_cached(language.LlamaDecoder, 32))),
    "llama": NamedModel("decoder with state", "Touvron et al., 2023; 4 layers of width 2048, 512 cached tokens",
        ("boards", "soc", "gpus4", "gpus8"),
        _torch(_n.Llama, *_cached(_n.Llama, 512))),
    "mamba": NamedModel("decoder with state", "Gu and Dao, 2023; 8 layers of width 1024", ("boards", "soc", "gpus4"),
        _torch(_n.Mamba, _f(4, 1024), *[_f(4, 2048, 16)] * 8)),
    "dlrm": NamedModel("recommender", "Naumov et al., 2019; 26 features, batch 256", ("edge", *_LARGE),
        _torch(_n.Dlrm, _f(256, 13), *[_i(256)] * 26)),
    "chain_mm": NamedModel("tensor program", "Yao et al., 2025 (DOPPLER); 4 shards", _LARGE, _program("chain-mm", 4)),
    "ffnn": NamedModel("tensor program", "Yao et al., 2025 (DOPPLER); 4 shards", _LARGE, _program("ffnn", 4)),
    "llama_block": NamedModel("tensor program", "Yao et al., 2025 (DOPPLER); 4 shards", _LARGE, _program("llama-block", 4)),
    "llama_layer": NamedModel("tensor program", "Yao et al., 2025 (DOPPLER); 4 shards", _LARGE, _program("llama-layer", 4)),
}  # fmt: skip
"""The models by name."""
