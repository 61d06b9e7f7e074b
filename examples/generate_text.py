"""Generate text with a decoder whose layers and caches are placed on several devices; takes two minutes.

python -m examples.generate_text --devices CPU@0,CPU@1 --tokens 64 --texts 4

The default model has 12 layers and 109 million parameters with random weights, so its text is meaningless. Tokens are numbers
here; ``placeit generate-text`` has tokenizers and sampling. Other models are OpenVINO IR with state, as exported by
optimum-intel, or ONNX files with caches (``past_key_values.0.key``, ``present.0.key``).

``--measure`` selects what is optimized: ``token`` (each further token), ``first`` (the first token, after a prompt), ``text``
(both, weighted by the number of tokens) or ``many`` (further tokens of many texts at once). The placement respects the memory
of devices in a cluster file (examples/cluster.yaml). The tokens are compared with the uncut model's in plain OpenVINO.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from examples.decoder import Decoder, write_decoder
from placeit import Inputs, PlaceitError, Placement, Session
from placeit.core.sizes import SizeRange
from placeit.core.units import percentage
from placeit.devices.openvino import explaining, openvino_core

INPUTS = ("input_ids", "attention_mask", "position_ids", "beam_idx")
Arrays = Mapping[str, NDArray[np.generic]]
Step = Callable[[dict[str, NDArray[np.generic]]], Arrays]


def step_inputs(names: Sequence[str], tokens: ArrayLike, past: int) -> dict[str, NDArray[np.generic]]:
    """Return the inputs for a step.

    Args:
        names: names of the model's inputs.
        tokens: new tokens of a text, or of several texts as rows.
        past: number of earlier tokens of each text.
    """
    new = np.atleast_2d(tokens)
    texts, end = len(new), past + new.shape[1]
    positions, beams = np.tile(np.arange(past, end), (texts, 1)), np.arange(texts, dtype=np.int32)
    values = (new, np.ones((texts, end), np.int64), positions, beams)
    return {name: value for name, value in zip(INPUTS, values, strict=True) if name in names}


def generate(step: Step, names: Sequence[str], prompt: Sequence[int], tokens: int) -> tuple[list[int], list[float]]:
    """Continue a prompt by the most likely tokens; return them and the seconds of each."""
    generated: list[int] = []
    seconds: list[float] = []
    new, past = list(prompt), 0
    for _ in range(tokens):
        begin = time.perf_counter()
        logits = step(step_inputs(names, new, past))["logits"]
        seconds.append(time.perf_counter() - begin)
        past += len(new)
        new = [int(logits[0, -1].argmax())]
        generated += new
    return generated, seconds


def shapes(names: Sequence[str], prompt: int, tokens: int, measure: str) -> dict[str, tuple[int | SizeRange, ...]]:
    """Return the ranges of the input sizes, with a prompt and one token after it as typical sizes."""
    longest, times = prompt + tokens, {"first": (1, 0), "text": (1, tokens)}.get(measure, (0, 1))
    new, total = SizeRange(1, longest, (prompt, 1), times), SizeRange(1, longest, (prompt, prompt + 1), times)
    return {name: shape for name, shape in zip(INPUTS, ((1, new), (1, total), (1, new), (1,)), strict=True) if name in names}


def uncut(model: Any) -> Step:
    """Compile the whole model with plain OpenVINO, on all cores.

    A process should have a single core: OpenVINO frees the stack for signal handlers of the first thread with any of them.
    """
    compiled = openvino_core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    request, logits = compiled.create_infer_request(), compiled.output("logits")
    return lambda inputs: {"logits": request.infer(inputs)[logits]}


def halves(session: Session) -> Placement:
    """Place the first half of the groups on the first device and the others on the second one, each as one segment."""
    second = np.arange(len(session.grouping.groups)) * 2 // len(session.grouping.groups)
    placed = session.placement(second)
    return replace(placed, segments=second[session.grouping.group_of].astype(np.int32))


def main(arguments: Sequence[str] | None = None) -> int:
    """Place a decoder and continue some prompts concurrently. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, help="a stateful IR, or ONNX with caches; default: a generated model")
    parser.add_argument("--devices", default="CPU@0,CPU@1", help="names, or a cluster file (default: CPU@0,CPU@1)")
    parser.add_argument("--layers", type=int, default=12, help="layers of the generated model (default: 12)")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of each prompt (default: 64)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens to generate after each prompt (default: 64)")
    parser.add_argument("--texts", type=int, default=1, help="prompts to continue at once (default: 1)")
    parser.add_argument(
        "--measure",
        choices=("token", "first", "text", "many"),
        default="token",
        help="what to optimize for (default: token)",
    )
    parser.add_argument("--budget", type=float, default=60, help="time limit of the search, in seconds (default: 60)")
    parser.add_argument("--halves", action="store_true", help="place half of the groups on each of two devices; no search")
    options = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory() as folder:
            model = options.model or write_decoder(Decoder(layers=options.layers), Path(folder) / "decoder.xml")
            return _generate(model, options)
    except PlaceitError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _generate(model: Path, options: argparse.Namespace) -> int:
    sizes = shapes(inputs_of(model), options.prompt, options.tokens, options.measure)
    names, rng = [*sizes], np.random.default_rng(0)
    prompts = [rng.integers(0, 256, options.prompt).tolist() for _ in range(options.texts)]
    with Session(model, options.devices, inputs=Inputs(shapes=sizes)) as session:
        if options.halves:
            placement = halves(session)
        else:
            objective = "throughput" if options.measure == "many" else "latency"
            found = session.optimize(budget=options.budget, objective=objective, progress=_progress)
            print(f"\nchosen: {found.chosen.name}; {found.reason}")
            placement = found.placement
        print("ops:", ", ".join(f"{device} {count}" for device, count in placement.counts().items() if count))

        def text(prompt: Sequence[int]) -> tuple[list[int], list[float]]:
            with server.sequence() as sequence:
                return generate(sequence.run, names, prompt, options.tokens)

        with session.serve(placement) as server, ThreadPoolExecutor(len(prompts)) as threads:
            begin = time.perf_counter()
            texts = list(threads.map(text, prompts))
            taken = time.perf_counter() - begin
        tokens, seconds = generate(uncut(session.model.ov_model), names, prompts[0], options.tokens)
    _show("placed", [each for _, each in texts])
    _show("uncut, by plain OpenVINO on all cores", [seconds])
    print(f"{len(prompts)} at once: {len(prompts) * options.tokens / taken:.1f} tokens per second")
    same = texts[0][0] == tokens
    print(f"tokens: {'the same as uncut' if same else 'DIFFERENT from uncut'}: {' '.join(map(str, tokens[:10]))} ...")
    return 0 if same else 1


def inputs_of(model: Path) -> list[str]:
    """Return the names of a decoder's inputs that are not caches."""
    with explaining(f"{model} cannot be read"):
        names = {name for port in openvino_core().read_model(model).inputs for name in port.get_names()}
    return [name for name in INPUTS if name in names]


def _show(what: str, seconds: Sequence[Sequence[float]]) -> None:
    first, further = [each[0] for each in seconds], [one for each in seconds for one in each[1:]]
    print(f"{what}: first token {np.median(first) * 1e3:.1f} ms, each further one {np.median(further) * 1e3:.1f} ms")


def _progress(what: str, share: float) -> None:
    if sys.stderr.isatty():
        print(f"\r{what:60.60} {percentage(share)}\x1b[K", end="", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
