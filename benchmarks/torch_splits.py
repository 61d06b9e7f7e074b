"""PyTorch modules in two shards on two one-core devices, against compiled PyTorch on one core and on both.

ChainMM and FFNN are the tensor programs of the DOPPLER paper (Appendix C), as modules in two shards. ``placeit.optimize`` gets
the two cores as plain devices, with time to compile the whole module and its best split. Then the answer races with the uncut
module under ``torch.compile(mode="max-autotune-no-cudagraphs")`` and under AOTInductor, each on one core with one thread and on
both with two, by the caller's clock. All run in every round, and ratios have 95 % intervals.

Both cores must be free. Compiling takes minutes.
"""

from __future__ import annotations

import copy
import functools
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn

import placeit
from benchmarks._harness import Args, Report, main, timed
from benchmarks._models import progress, settled_race, two_cores
from benchmarks._plain import Plain, bound_thread
from placeit.backends.torch.inductor import compile_package
from placeit.measuring.statistics import faster
from placeit.profiler.cache import Cache
from placeit.runtime.devices.pytorch import use_threads

BUDGET_S, QUICK_BUDGET_S = 300.0, 120.0
ROUNDS, QUICK_ROUNDS = 30, 6
SIZES = {"chain_mm": (1024,), "ffnn": (512, 256, 4096)}
QUICK_SIZES = {"chain_mm": (256,), "ffnn": (128, 64, 1024)}
_ERROR, _ONE_CORE, _BOTH_CORES = 1e-5, 0.55, 1.0


class ChainMM(nn.Module):
    """``(A B) + (C (D E))`` of square matrices; B and E are weights, whose columns are divided into shards."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.b, self.e = _shards(size, size, 1), _shards(size, size, 1)
        self.inputs = tuple(torch.randn(size, size) / size**0.5 for _ in "ACD")

    def forward(self, a: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        return torch.cat([a @ b + c @ (d @ e) for b, e in zip(self.b, self.e, strict=True)], 1)


class FFNN(nn.Module):
    """``softmax(relu(X W1 + b1) W2 + b2)``; the hidden layer is divided into shards."""

    def __init__(self, batch: int, features: int, hidden: int) -> None:
        super().__init__()
        self.w1, self.w2, self.b1 = _shards(features, hidden, 1), _shards(hidden, features, 0), _shards(1, hidden, 1)
        self.b2 = nn.Parameter(torch.randn(features))
        self.inputs = (torch.randn(batch, features),)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [torch.relu(x @ w1 + b1) @ w2 for w1, b1, w2 in zip(self.w1, self.b1, self.w2, strict=True)]
        return torch.softmax(sum(parts[1:], parts[0]) + self.b2, 1)


def _shards(rows: int, columns: int, dim: int) -> nn.ParameterList:
    return nn.ParameterList([half.clone() for half in (torch.randn(rows, columns) / rows**0.5).chunk(2, dim)])


def uncut(module: nn.Module) -> nn.Module:
    """Return the same module in one shard."""
    made = type(module).__new__(type(module))
    nn.Module.__init__(made)
    for name, one in module.named_children():
        dim = 0 if name == "w2" else 1
        made.add_module(name, nn.ParameterList([torch.cat([*one], dim)]))  # type: ignore[misc]
    for name, one in module.named_parameters(recurse=False):
        made.register_parameter(name, one)
    return made.eval()


MODULES: Mapping[str, type[ChainMM | FFNN]] = {"chain_mm": ChainMM, "ffnn": FFNN}


def run(args: Args, report: Report) -> None:
    cores = two_cores()
    report.note("  The first two cores must be free: other work slows down what runs there.")
    for name in args.models or MODULES:
        torch.manual_seed(args.seed)
        module = MODULES[name](*(QUICK_SIZES if args.quick else SIZES)[name]).eval()
        progress(name)
        with ExitStack() as stack, torch.no_grad():
            _race(name, module, cores, args, report, stack)


def _race(name: str, module: ChainMM | FFNN, cores: tuple[int, int], args: Args, report: Report, stack: ExitStack) -> None:
    """Place a module, and race the answer with compiled PyTorch; fill the report."""
    folder, inputs = Path(stack.enter_context(tempfile.TemporaryDirectory())), module.inputs
    budget = args.seconds or (QUICK_BUDGET_S if args.quick else BUDGET_S)
    devices = [f"CPU@{core}" for core in cores]
    found = placeit.optimize(module, devices, example=inputs, budget=budget, seed=args.seed, cache=Cache(folder))
    stack.enter_context(found)
    rivals = _rivals(uncut(module), inputs, cores, folder, stack)
    ours = timed(functools.partial(found, *inputs))
    rounds = QUICK_ROUNDS if args.quick else ROUNDS
    results = settled_race({who: one.time for who, one in rivals.items()} | {"placeit": ours}, rounds=rounds, seed=args.seed)
    wanted = module(*inputs)
    error = float((found(*inputs) - wanted).abs().max() / wanted.abs().max())
    ratios = {who: faster(results["placeit"], results[who]) for who in rivals}
    for who, ratio in ratios.items():
        report.row(
            module=name,
            answer=found.chosen.name,
            devices=found.placement.ops_by_device,
            ms=results["placeit"].median * 1e3,
            rival=who,
            rival_ms=results[who].median * 1e3,
            ratio=ratio.ratio,
            low=ratio.ci_low,
            high=ratio.ci_high,
        )
    for where, most in (("one core", _ONE_CORE), ("both cores", _BOTH_CORES)):
        worst = max(one.ratio for who, one in ratios.items() if who.endswith(where))
        report.claim(f"{name}: time over compiled PyTorch on {where}", worst, "", at_most=most)
    report.claim(f"{name}: output error", error, "", at_most=_ERROR)


def _rivals(
    module: nn.Module, inputs: tuple[torch.Tensor, ...], cores: tuple[int, int], folder: Path, stack: ExitStack
) -> dict[str, Plain]:
    """Compile an uncut module for one core and for both."""
    found: dict[str, Plain] = {}
    torch.export.save(torch.export.export(module, inputs), folder / "module.pt2")
    for where, some in (("one core", cores[:1]), ("both cores", cores)):
        thread = stack.enter_context(bound_thread(*some))
        thread.submit(use_threads, len(some)).result()
        for way, make in (("torch.compile", _compiled), ("AOTInductor", _packaged)):
            progress(f"compiling the rival: {way}, {where}")
            call = thread.submit(make, module, inputs, len(some), folder).result()
            found[f"{way}, {where}"] = Plain(call, thread)
    return found


def _compiled(module: nn.Module, inputs: tuple[torch.Tensor, ...], threads: int, _: Path) -> Callable[[], Any]:
    call = torch.compile(copy.deepcopy(module), mode="max-autotune-no-cudagraphs", dynamic=False)
    with torch._inductor.config.patch({"cpp.threads": threads}), torch.inference_mode():
        call(*inputs)

    def infer() -> Any:
        with torch.inference_mode():
            return [call(*inputs)]

    return infer


def _packaged(_: nn.Module, inputs: tuple[torch.Tensor, ...], threads: int, folder: Path) -> Callable[[], Any]:
    target = str(folder / f"module_{threads}.pt2")
    compile_package(str(folder / "module.pt2"), target, threads)
    call: Any = torch._inductor.aoti_load_package(target)
    return lambda: [call(*inputs)]


if __name__ == "__main__":
    main("torch_splits", run, models=tuple(MODULES), seconds=BUDGET_S)
