"""A collection of small models of real kinds: from packages, from published architectures, and with other contents of files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from benchmarks._architectures import graphs, language, quantized, vision
from benchmarks._architectures.packaged import LIGHT, PACKAGED
from benchmarks._architectures.sample import Make, Sample, exported, program
from examples.models import export_model

__all__ = ["KINDS", "LIGHT", "PACKAGED", "Sample"]


def _built_in(name: str, **options: int) -> Make:
    return lambda folder: Sample(export_model(name, folder / f"{name}.onnx", **options))


_mobilenet = exported(vision.MobileNet, vision.image(96), ["scores"])
_vit = exported(vision.VisionTransformer, vision.image(96), ["scores"])
_encoder = exported(language.Encoder, language.tokens, ["states", "pooled"])
_lstm = exported(language.DeepSpeech, language.spectrogram, ["letters"])
_kept = [name.replace("past", "present") for name in language.PAST]
_open = {name: {2: "past"} for name in language.PAST} | {"attention_mask": {1: "total"}}

KINDS: Mapping[str, Make] = {
    **LIGHT,
    **PACKAGED,
    "resnet50": _built_in("resnet50"),
    "inception_v3": _built_in("inception_v3"),
    "bert_base": _built_in("bert_base", seq=32),
    "vgg": exported(vision.vgg, vision.image(96), ["scores"]),
    "mobilenet": _mobilenet,
    "mobilenet_batch": exported(vision.MobileNet, vision.image(96, 2), ["scores"], axes={"image": {0: "batch"}}),
    "vit": _vit,
    "unet": exported(vision.UNet, vision.noise, ["noise"], given=True),
    "encoder": _encoder,
    "encoder_dynamic": exported(
        language.Encoder, language.tokens, ["states", "pooled"], axes={"ids": {0: "batch", 1: "length"}}
    ),
    "tied_encoder": exported(language.TiedEncoder, language.tokens, ["scores"]),
    "llama_decoder": exported(language.LlamaDecoder, language.cached, ["scores", *_kept], axes=_open, given=True),
    "whisper_decoder": exported(
        language.WhisperDecoder, language.spoken, ["scores", "new_keys", "new_values"],
        axes={"keys": {3: "past"}, "values": {3: "past"}}, given=True,
    ),
    "experts": exported(language.Experts, language.features, ["made"]),
    "experts_sparse": exported(partial(language.Experts, sparse=True), language.features, ["made"]),
    "lstm": _lstm,
    "gru": exported(language.StreamingGru, language.frames(), ["scores", "state_out"], axes={"frames": {2: "length"}}),
    "half_cnn": quantized.half_of(_mobilenet),
    "half_transformer": exported(language.Encoder, language.tokens, ["states", "pooled"], half=True),
    "int8_cnn": quantized.static_int8(_mobilenet),
    "int8_transformer": quantized.static_int8(_vit),
    "dynamic_int8_lstm": quantized.dynamic_int8(_lstm),
    "dynamic_int8_transformer": quantized.dynamic_int8(_encoder),
    "tree_ensemble": graphs.tree_ensemble,
    "contrib": graphs.contrib,
    "contrib_own": graphs.contrib_own,
    "branch": graphs.branch,
    "loop": graphs.loop,
    "scan": graphs.scan,
    "many_ends": graphs.many_ends,
    "old": graphs.old,
    "external_weights": graphs.external_weights,
    "comma": graphs.named("a, b=c;d.onnx", "x,0", "a b", "p/q:r", "t.1", "o(1),2"),
    "emoji": graphs.named("модель 🙂.onnx", "вход 🙂", "層", "🙂", "выход"),
    "ir": graphs.intermediate(_mobilenet),
    "ir_half": graphs.intermediate(_encoder, half=True),
    "ir_int8": graphs.intermediate(quantized.static_int8(_mobilenet)),
    "pt2_cnn": program(vision.MobileNet, vision.image(96)),
    "pt2_vit": program(vision.VisionTransformer, vision.image(96)),
    "pt2_lstm": program(language.DeepSpeech, language.spectrogram),
}  # fmt: skip
"""Functions that make each kind, by name."""


def make(name: str, folder: Path) -> Sample:
    """Write a kind of model into a folder, which is made.

    Raises:
        UsageError: the package that it comes with is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return KINDS[name](folder)
