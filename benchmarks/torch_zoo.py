"""PyTorch modules as their users have them: from a module to an answer on one core, against PyTorch and OpenVINO alone.

Modules have random weights, from the configurations of the packages that are installed (torchvision, timm, transformers,
diffusers); the first three are made of ``torch.nn`` alone. Each module is given to ``placeit.optimize`` with time to compile
it. Then the answer races with the eager module, the module under ``torch.compile``, and its conversion to OpenVINO, each on the
same core with one thread, called with tensors, and by the caller's clock. A module without an answer has a row with the reason.

The core must be free. Compiling takes up to minutes for each module. Some of them in about ten minutes:

    python -m benchmarks.torch_zoo --only encoder bert llama whisper unet --seconds 60
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

import placeit
from benchmarks._harness import Args, Report, main, timed
from benchmarks._models import progress, settled_race, two_cores
from benchmarks._plain import Plain, bound_thread, openvino_options
from placeit.backends.convert import convert
from placeit.backends.torch.model import TorchModel, load
from placeit.core.errors import PlaceitError
from placeit.devices.openvino import openvino_core
from placeit.measuring.statistics import faster
from placeit.profiler.cache import Cache
from placeit.runtime.devices.pytorch import use_threads

Made: TypeAlias = tuple[nn.Module, dict[str, Any]]
"""A module, and the keyword arguments of a call."""

QUICK = ("mlp", "conv_net", "encoder")
BUDGET_S, QUICK_BUDGET_S = 180.0, 90.0
RIVALS = ("eager", "compiled", "OpenVINO")
_MOST, _ERROR = 1.03, 1e-5


def _ids(count: int = 32) -> torch.Tensor:
    return torch.randint(3, 900, (1, count), generator=torch.Generator().manual_seed(0))


def _image(size: int = 96) -> torch.Tensor:
    return torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0))


def _mlp() -> Made:
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10)), {"input": torch.ones(4, 64)}


def _conv_net() -> Made:
    layers = [
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2),
        nn.BatchNorm2d(32),
        nn.ReLU(),
    ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)), {"input": _image(64)}


def _encoder() -> Made:
    layer = nn.TransformerEncoderLayer(128, 4, 256, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), {"src": torch.ones(1, 32, 128)}


def _torchvision(name: str) -> Made:
    import torchvision

    return torchvision.models.get_model(name, weights=None), {"x": _image(224)}


def _detector(name: str) -> Made:
    import torchvision

    return torchvision.models.get_model(name, weights=None, weights_backbone=None), {"images": [_image(320)[0]]}


def _timm(name: str) -> Made:
    import timm

    return timm.create_model(name, pretrained=False), {"x": _image(224)}


def _transformers(kind: str, inputs: Mapping[str, Any], **config: Any) -> Made:
    import transformers

    made = getattr(transformers, f"{kind}Config")(**config)
    model = next(found for end in ("Model", "ForCausalLM") if (found := getattr(transformers, kind + end, None)) is not None)
    return model(made), dict(inputs)


def _diffusers(kind: str, inputs: Mapping[str, Any], **config: Any) -> Made:
    import diffusers

    return getattr(diffusers, kind)(**config), dict(inputs)


_SMALL = {"vocab_size": 1000, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}
_SMALL_IMAGE = {
    "hidden_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 384,
    "image_size": 96,
}
_TWO_PARTS = {
    "vocab_size": 1000,
    "d_model": 128,
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 256),
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
ZOO: Mapping[str, Callable[[], Made]] = {
    "mlp": _mlp,
    "conv_net": _conv_net,
    "encoder": _encoder,
    **{
        name: functools.partial(_torchvision, name)
        for name in (
            "resnet50",
            "mobilenet_v3_small",
            "vit_b_16",
            "swin_t",
            "densenet121",
            "shufflenet_v2_x1_0",
            "regnet_y_400mf",
        )
    },
    **{
        name: functools.partial(_timm, name)
        for name in ("convnext_atto", "efficientnet_b0", "mixer_s32_224", "ghostnet_100", "levit_128s")
    },
    **{
        kind.lower(): functools.partial(_transformers, kind, {"input_ids": _ids()}, **_SMALL)
        for kind in ("Bert", "Roberta", "Electra", "MPNet", "RoFormer")
    },
    **{
        kind.lower(): functools.partial(
            _transformers, kind, {"input_ids": _ids()}, use_cache=False, num_key_value_heads=4, **_SMALL
        )
        for kind in ("Llama", "Qwen2", "Mistral")
    },
    "gpt2": functools.partial(
        _transformers, "GPT2", {"input_ids": _ids()}, vocab_size=1000, n_embd=256, n_layer=4, n_head=4, use_cache=False
    ),
    **{
        kind.lower(): functools.partial(_transformers, kind, {"pixel_values": _image()}, **_SMALL_IMAGE)
        for kind in ("ViT", "DeiT")
    },
    **{
        kind.lower(): functools.partial(_transformers, kind, {"input_ids": _ids()}, **_SMALL)
        for kind in ("ConvBert", "DebertaV2", "Nystromformer")
    },
    **{
        kind.lower(): functools.partial(_transformers, kind, {"input_ids": _ids()}, use_cache=False, **_SMALL)
        for kind in ("Phi", "GPTNeoX", "Olmo2")
    },
    "t5": functools.partial(
        _transformers,
        "T5",
        {"input_ids": _ids(), "decoder_input_ids": _ids(8), "use_cache": False},
        vocab_size=1000,
        d_model=128,
        d_kv=32,
        d_ff=256,
        num_layers=2,
        num_heads=4,
    ),
    "bart": functools.partial(_transformers, "Bart", {"input_ids": _ids(), "use_cache": False}, **_TWO_PARTS),
    "whisper": functools.partial(
        _transformers,
        "Whisper",
        {"input_features": torch.ones(1, 80, 64), "decoder_input_ids": _ids(8), "use_cache": False},
        max_source_positions=32,
        **_TWO_PARTS,
    ),
    "clip": functools.partial(
        _transformers,
        "CLIP",
        {"input_ids": _ids(), "pixel_values": _image()},
        text_config={**_SMALL, "eos_token_id": 2},
        vision_config={**_SMALL_IMAGE, "patch_size": 16},
    ),
    "dinov2": functools.partial(
        _transformers, "Dinov2", {"pixel_values": _image(112)}, hidden_size=192, num_hidden_layers=4, num_attention_heads=4
    ),
    "convnext": functools.partial(_transformers, "ConvNext", {"pixel_values": _image()}, hidden_sizes=[32, 48, 64, 96]),
    # a tone: a constant signal has no variance, and its normalisation would amplify rounding errors
    "wav2vec2": functools.partial(
        _transformers, "Wav2Vec2", {"input_values": torch.sin(torch.arange(8000) / 9)[None]}, conv_dim=[64] * 7, **_SMALL
    ),
    "mamba": functools.partial(
        _transformers,
        "Mamba",
        {"input_ids": _ids(), "use_cache": False},
        vocab_size=1000,
        hidden_size=128,
        num_hidden_layers=2,
    ),
    "segformer": functools.partial(_transformers, "Segformer", {"pixel_values": _image(128)}),
    **{
        kind.lower(): functools.partial(
            _transformers,
            kind,
            {"input_ids": _ids()},
            use_cache=False,
            num_key_value_heads=2,
            head_dim=64,
            pad_token_id=0,
            **_SMALL,
        )
        for kind in ("Qwen3", "Gemma2")
    },
    "mixtral": functools.partial(
        _transformers, "Mixtral", {"input_ids": _ids()}, use_cache=False, num_key_value_heads=4, num_local_experts=4, **_SMALL
    ),
    "modernbert": functools.partial(_transformers, "ModernBert", {"input_ids": _ids()}, pad_token_id=0, **_SMALL),
    "siglip": functools.partial(
        _transformers,
        "Siglip",
        {"input_ids": _ids(), "pixel_values": _image()},
        text_config={**_SMALL, "hidden_size": 192},
        vision_config={**_SMALL_IMAGE, "patch_size": 16},
    ),
    "yolos": functools.partial(_transformers, "Yolos", {"pixel_values": _image()}, **_SMALL_IMAGE | {"image_size": [96, 96]}),
    "unet": functools.partial(
        _diffusers,
        "UNet2DConditionModel",
        {"sample": torch.ones(1, 4, 32, 32), "timestep": torch.tensor(10), "encoder_hidden_states": torch.ones(1, 16, 64)},
        sample_size=32,
        block_out_channels=(64, 128),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=64,
        layers_per_block=1,
        norm_num_groups=16,
    ),
    "vae": functools.partial(
        _diffusers, "AutoencoderKL", {"sample": _image(64)}, block_out_channels=(32,), norm_num_groups=8, layers_per_block=1
    ),
    "dit": functools.partial(
        _diffusers,
        "DiTTransformer2DModel",
        {"hidden_states": torch.ones(1, 4, 16, 16), "timestep": torch.tensor([10]), "class_labels": torch.tensor([3])},
        num_layers=2,
        sample_size=16,
        num_attention_heads=4,
        attention_head_dim=16,
    ),
    "flux": functools.partial(
        _diffusers,
        "FluxTransformer2DModel",
        {
            "hidden_states": torch.ones(1, 64, 16),
            "encoder_hidden_states": torch.ones(1, 16, 32),
            "pooled_projections": torch.ones(1, 32),
            "timestep": torch.tensor([0.5]),
            "img_ids": torch.ones(64, 3),
            "txt_ids": torch.ones(16, 3),
        },
        in_channels=16,
        num_layers=1,
        num_single_layers=2,
        num_attention_heads=4,
        attention_head_dim=32,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(8, 12, 12),
    ),
    "ssdlite": functools.partial(_detector, "ssdlite320_mobilenet_v3_large"),
}
"""How each module is made; ImportError if its package is not installed."""


def compiled(module: nn.Module) -> Callable[..., Any]:
    """Compile a module as its users do."""
    made: Callable[..., Any] = torch.compile(module, dynamic=False)
    return made


def run(args: Args, report: Report) -> None:
    core, _ = two_cores()
    report.note("  The first core must be free: other work slows down what runs there.")
    ended, worst, error = list[bool](), list[float](), 0.0
    row: dict[str, Any]
    for name in args.models or (QUICK if args.quick else ZOO):
        progress(name)
        torch.manual_seed(args.seed)
        row = dict.fromkeys(("module", "ops", "answer", "error", "eager_ms", *(f"over_{one}" for one in (*RIVALS, "best"))))
        row |= {"module": name, "reason": ""}
        try:
            module, inputs = ZOO[name]()
        except Exception as why:  # noqa: BLE001 (a package is missing, or does not work with this PyTorch)
            row["reason"] = f"not made: {type(why).__name__}: {why}"
        else:
            ended.append(_module(row, module.eval(), inputs, core, args))
        report.row(**row)
        report.note("  " + ", ".join(f"{what} {value}" for what, value in row.items() if value not in (None, "")))
        worst += [row["over_best"]] if row["over_best"] is not None else []
        error = max(error, row["error"] or 0.0)
    report.claim("modules with an answer or a reason", float(np.mean(ended)) if ended else None, "", at_least=1)
    report.claim("largest output error", error, "", at_most=_ERROR)
    report.claim("answer over the best of the others, worst", max(worst, default=None), "", at_most=_MOST)


def _module(row: dict[str, Any], module: nn.Module, inputs: dict[str, Any], core: int, args: Args) -> bool:
    """Fill a module's row; return whether there is an answer or an error of placeit that says why not."""
    try:
        with ExitStack() as stack:
            _race(row, load(module, (), kwargs=inputs, name=row["module"]), module, inputs, core, args, stack)
    except PlaceitError as error:
        row["reason"] = str(error)
    except Exception as error:  # noqa: BLE001 (what a user would see as a stack trace is a figure)
        row["reason"] = f"{type(error).__name__}: {error}"
        return False
    return True


def _race(
    row: dict[str, Any], model: TorchModel, module: nn.Module, inputs: dict[str, Any], core: int, args: Args, stack: ExitStack
) -> None:
    row["ops"] = len(model.graph)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    budget = args.seconds or (QUICK_BUDGET_S if args.quick else BUDGET_S)
    found = placeit.optimize(model, f"CPU@{core}", budget=budget, seed=args.seed, cache=Cache(folder))
    stack.enter_context(found)
    row["answer"] = found.chosen.name
    thread = stack.enter_context(bound_thread(core))
    thread.submit(use_threads, 1).result()
    calls = {"eager": _called(module, inputs, thread), "compiled": _called(compiled(module), inputs, thread)}
    rivals = {who: plain for who, plain in calls.items() if _works(who, plain, row)}
    try:
        rivals["OpenVINO"] = _openvino(model, folder, thread)
    except Exception as error:  # noqa: BLE001 (OpenVINO's own errors, too)
        row["reason"] = f"OpenVINO: {type(error).__name__}: {error}"
    placed = timed(functools.partial(found, **inputs))
    results = settled_race({who: plain.time for who, plain in rivals.items()} | {"placeit": placed}, rounds=10, seed=args.seed)
    row["eager_ms"] = results["eager"].median * 1e3
    for who in rivals:
        row[f"over_{who}"] = faster(results["placeit"], results[who]).ratio
    row["over_best"] = max(row[f"over_{who}"] for who in rivals)
    wanted: list[Any] = list(rivals["eager"].run())
    pairs = zip(_tensors(found(**inputs)), wanted, strict=True)
    row["error"] = max(float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-30)) for ours, theirs in pairs)


def _works(who: str, plain: Plain, row: dict[str, Any]) -> bool:
    """Run a rival once; what PyTorch does not compile has no figure."""
    try:
        plain.run()
    except Exception as error:
        if who == "eager":
            raise
        row["reason"] = f"{who}: {type(error).__name__}: {str(error).splitlines()[0]}"
        return False
    return True


def _called(call: Callable[..., Any], inputs: Mapping[str, Any], thread: Executor) -> Plain:
    def infer() -> list[Any]:
        with torch.inference_mode():
            return _tensors(call(**inputs))

    return Plain(infer, thread)


def _tensors(result: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(_plain(result)) if isinstance(leaf, torch.Tensor)]


def _plain(result: Any) -> Any:
    """Return the outputs of transformers and diffusers as tuples, whether or not they are registered types."""
    return result.to_tuple() if hasattr(result, "to_tuple") else result


def _openvino(model: TorchModel, folder: Path, thread: Executor) -> Plain:
    convert(model, folder / "model.xml")
    compile_it = functools.partial(openvino_core().compile_model, folder / "model.xml", "CPU", openvino_options(1))
    program = thread.submit(compile_it).result()  # the plugin takes the cores of the thread that compiles
    values = [torch.from_numpy(model.examples[one.get_any_name()]) for one in program.inputs]
    return Plain(_with_tensors(program, values), thread)


def _with_tensors(program: Any, values: list[torch.Tensor]) -> Callable[[], list[Any]]:
    """Call a compiled model of OpenVINO as the others are called: with tensors, for tensors that later calls leave alone."""
    request = program.create_infer_request()
    inputs = [request.get_input_tensor(i).data for i in range(len(values))]
    outputs = [request.get_output_tensor(i).data for i in range(len(program.outputs))]

    def infer() -> list[Any]:
        for memory, value in zip(inputs, values, strict=True):
            memory[...] = value.numpy()
        request.infer(share_outputs=True)
        return [torch.from_numpy(memory.copy()) for memory in outputs]

    return infer


if __name__ == "__main__":
    main("torch_zoo", run, models=tuple(ZOO), seconds=BUDGET_S)
