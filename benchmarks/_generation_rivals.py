"""What generates text with a decoder, one token at a time: placeit, and what people would use in its place."""

from __future__ import annotations

import functools
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from benchmarks._child import peak_memory
from benchmarks._models import two_cores
from benchmarks._plain import bound_thread, openvino_options
from examples.generate_text import EVERY, shapes, step_inputs
from placeit.core.errors import UsageError
from placeit.core.placement import Placement
from placeit.core.telemetry import import_onnxruntime, import_openvino
from placeit.devices.openvino import openvino_core
from placeit.session import Session
from placeit.workbench.options import Constraints, Inputs
from placeit.workloads.decoder import Decoder, write_decoder

__all__ = [
    "ALL_CORES",
    "KINDS",
    "NAMES",
    "ONE_CORE",
    "ONE_DEVICE",
    "ONNX_RUNTIME",
    "SPLIT",
    "TORCH",
    "Files",
    "Steps",
    "Text",
    "Texts",
    "in_segments",
    "memory",
    "opened",
    "plain_steps",
    "resident",
    "session_of",
    "write_files",
]

NAMES = EVERY[:3]
"""Inputs of the decoders here."""
ONE_CORE, ALL_CORES = "OpenVINO, one core", "OpenVINO, all cores"
ONE_DEVICE, SPLIT = "placeit, one device", "placeit, two devices"
ONNX_RUNTIME, TORCH, OFFLOADED = "ONNX Runtime", "PyTorch", "PyTorch, half on disk"
SDPA, PAGED = "openvino_genai, stateful", "openvino_genai, paged attention"
KINDS = (ONE_CORE, ONE_DEVICE, ALL_CORES, SPLIT, ONNX_RUNTIME, SDPA, PAGED, TORCH, OFFLOADED)

Steps: TypeAlias = Callable[[Mapping[str, NDArray[np.generic]]], NDArray[np.generic]]
"""Runs a decoder on some tokens and what it remembers of earlier ones; the logits of the last token."""

_PRECISION = {"INFERENCE_PRECISION_HINT": "f32"}


@dataclass(frozen=True)
class Files:
    """A decoder in files.

    Attributes:
        decoder: its architecture.
        stateful: as IR, in the folder of its own that ``openvino_genai`` wants.
        onnx: with caches as inputs and outputs.
    """

    decoder: Decoder
    stateful: Path
    onnx: Path

    @property
    def weight_bytes(self) -> int:
        return self.stateful.with_suffix(".bin").stat().st_size

    @property
    def table_bytes(self) -> int:
        """Of the embeddings of all tokens, which the logits are computed by as well."""
        return self.decoder.vocabulary * self.decoder.width * 4


def write_files(decoder: Decoder, folder: Path, seed: int) -> Files:
    """Write a decoder in all forms that rivals read, with the same weights."""
    genai = folder / "genai"
    genai.mkdir()
    stateful = write_decoder(decoder, folder / "decoder.xml", seed=seed)
    # openvino_genai wants the input of beam search, which others do without
    write_decoder(decoder, genai / "openvino_model.xml", beam_idx=True, seed=seed)
    return Files(decoder, stateful, write_decoder(decoder, folder / "decoder.onnx", seed=seed))


class Text(Protocol):
    """A text that is continued by the most likely tokens, one at a time."""

    def first(self, prompt: Sequence[int]) -> tuple[int, float]:
        """Forget the text before, read a prompt, and return the token after it and the seconds that it took."""

    def further(self, token: int) -> tuple[int, float]:
        """Return the token after that, and its seconds."""


class _Stepped:
    """A text by steps of a decoder.

    Args:
        steps: what runs the decoder.
        reset: has it forget the tokens before.
        thread: where both are run; None for the caller's own.
    """

    def __init__(self, steps: Steps, reset: Callable[[], object], thread: Executor | None = None) -> None:
        self._steps, self._reset, self._thread, self._past = steps, reset, thread, 0

    def first(self, prompt: Sequence[int]) -> tuple[int, float]:
        self._on_thread(self._reset)
        self._past = 0
        return self._next(prompt)

    def further(self, token: int) -> tuple[int, float]:
        return self._next([token])

    def _next(self, tokens: Sequence[int]) -> tuple[int, float]:
        inputs = step_inputs(NAMES, tokens, self._past)
        self._past += len(tokens)
        found: tuple[int, float] = self._on_thread(functools.partial(self._timed, inputs))
        return found

    def _timed(self, inputs: Mapping[str, NDArray[np.generic]]) -> tuple[int, float]:
        begin = time.perf_counter()
        token = int(self._steps(inputs).argmax())
        return token, time.perf_counter() - begin

    def _on_thread(self, work: Callable[[], Any]) -> Any:
        return work() if self._thread is None else self._thread.submit(work).result()


class Texts:
    """Has one rival continue prompts, so that it can take turns with others after each token.

    Args:
        text: what generates it.
        prompts: each is continued by ``tokens`` tokens; after the last one, the first is next.
        tokens: at least 2.

    Attributes:
        found: tokens of each text so far.
    """

    def __init__(self, text: Text, prompts: Sequence[Sequence[int]], tokens: int) -> None:
        self._text, self._prompts, self._tokens = text, prompts, tokens
        self.found: list[list[int]] = []

    def first(self) -> float:
        """Begin a text; return the seconds that its first token took."""
        token, seconds = self._text.first(self._prompts[len(self.found) % len(self._prompts)])
        self.found.append([token])
        return seconds

    def further(self) -> float:
        """Add a token to the text, or to the next one if it has all; return the seconds that the token took."""
        if not self.found or len(self.found[-1]) == self._tokens:
            self.first()
        token, seconds = self._text.further(self.found[-1][-1])
        self.found[-1].append(token)
        return seconds


def plain_steps(compiled: Any) -> tuple[Steps, Callable[[], object]]:
    """A decoder that plain OpenVINO has compiled, with its state, and what resets that."""
    request, logits = compiled.create_infer_request(), compiled.output("logits")
    return lambda inputs: request.infer(dict(inputs), share_outputs=True)[logits][0, -1], request.reset_state


def session_of(
    model: Path, devices: Path | Sequence[str], prompt: int, tokens: int, *, memory: Mapping[str, float] | None = None
) -> Session:
    """Open a decoder for texts of a prompt and some tokens; costs are those of a token in the middle of them."""
    half = tokens // 2
    sizes = shapes(NAMES, prompt + half, tokens - half, "token")
    constraints = Constraints(memory=memory or {})
    return Session(model, devices, inputs=Inputs(shapes=sizes), constraints=constraints, cache=None)


def in_segments(session: Session, segments: ArrayLike) -> Placement:
    """Place each group, ``int[G]``, on the device of that number, and all that one device has in one segment."""
    of = np.asarray(segments, np.int32)
    return replace(session.placement(of), segments=of[session.grouping.group_of])


def opened(kind: str, files: Files, stack: ExitStack, *, prompt: int, tokens: int, placement: Placement | None = None) -> Text:
    """Open a rival; it lives as long as the stack.

    Args:
        kind: one of :data:`KINDS`.
        files: the decoder.
        stack: what closes it.
        prompt: tokens of the longest prompt.
        tokens: after it.
        placement: of what runs on two devices.

    Raises:
        UsageError: a package that it needs is not installed.
    """
    first, second = two_cores()
    if kind in (ONE_DEVICE, SPLIT):
        devices = [f"CPU@{core}" for core in ((first,) if kind == ONE_DEVICE else (first, second))]
        session = stack.enter_context(session_of(files.stateful, devices, prompt, tokens))
        groups = len(session.grouping.groups)
        server = stack.enter_context(session.serve(in_segments(session, [0] * groups) if placement is None else placement))
        sequence = stack.enter_context(server.sequence())
        return _Stepped(lambda inputs: sequence.run(inputs)["logits"][0, -1], sequence.reset)
    if kind == ONE_CORE:
        thread = stack.enter_context(bound_thread(first))
        compiled = openvino_core().compile_model(files.stateful, "CPU", openvino_options(1))
        return _Stepped(*plain_steps(compiled), thread)
    if kind == ALL_CORES:
        return _Stepped(*plain_steps(openvino_core().compile_model(files.stateful, "CPU", _PRECISION)))
    if kind == ONNX_RUNTIME:
        runs = _OnnxRuntime(files)
        return _Stepped(runs.step, runs.reset)
    if kind in (SDPA, PAGED):
        return _GenAi(files, "SDPA" if kind == SDPA else "PA", tokens)
    from benchmarks._generation_torch import TorchText

    try:
        module = TorchText(files, 0.5 if kind == OFFLOADED else None, stack)
    except ImportError as error:
        raise UsageError(f"It needs accelerate (pip install accelerate): {error}.") from error
    return _Stepped(module.step, module.reset)


class _OnnxRuntime:
    """A decoder in ONNX Runtime, whose caches stay where they are: outputs of a step are bound as inputs of the next one."""

    def __init__(self, files: Files) -> None:
        self._runtime = import_onnxruntime()
        options = self._runtime.SessionOptions()
        options.add_session_config_entry("session.force_spinning_stop", "1")  # as others have their turn after it
        self._session = self._runtime.InferenceSession(files.onnx, options, providers=["CPUExecutionProvider"])
        self._decoder = files.decoder
        self.reset()

    def reset(self) -> None:
        empty = np.zeros((1, self._decoder.groups, 0, self._decoder.head), np.float32)
        self._caches = [self._runtime.OrtValue.ortvalue_from_numpy(empty) for _ in self._decoder.caches]

    def step(self, inputs: Mapping[str, NDArray[np.generic]]) -> NDArray[np.generic]:
        bound = self._session.io_binding()
        for name, value in inputs.items():
            bound.bind_cpu_input(name, value)
        bound.bind_output("logits")
        for (past, present), cache in zip(self._decoder.caches, self._caches, strict=True):
            bound.bind_ortvalue_input(past, cache)
            bound.bind_output(present)
        self._session.run_with_iobinding(bound)
        logits, *self._caches = bound.get_outputs()
        return np.asarray(logits.numpy()[0, -1])


class _GenAi:
    """A decoder in ``openvino_genai``, which does not wait between tokens: all of a text is made when its first one is due."""

    def __init__(self, files: Files, attention: str, tokens: int) -> None:
        try:
            import openvino_genai
        except ImportError as error:
            raise UsageError(f"It needs openvino_genai (pip install openvino-genai): {error}.") from error
        openvino = import_openvino()
        made = self._made = list[tuple[int, float]]()
        self._left = deque[tuple[int, float]]()

        class Noting(openvino_genai.StreamerBase):  # type: ignore[misc,name-defined]
            def write(self, token: int | list[int]) -> Any:
                made.append((token if isinstance(token, int) else token[-1], time.perf_counter()))
                return openvino_genai.StreamingStatus.RUNNING

            def end(self) -> None:
                pass

        self._streamer, self._config = Noting, openvino_genai.GenerationConfig()
        self._config.max_new_tokens, self._config.ignore_eos, self._config.do_sample = tokens, True, False
        self._config.set_eos_token_id(0)  # it wants one, though it ignores it
        self._tensors, self._inputs = openvino.Tensor, openvino_genai.TokenizedInputs
        options = _PRECISION | {"ATTENTION_BACKEND": attention}
        self._pipeline = openvino_genai.LLMPipeline(str(files.stateful.parent / "genai"), "CPU", **options)

    def first(self, prompt: Sequence[int]) -> tuple[int, float]:
        self._made.clear()
        ids = np.array([prompt])
        asked = self._inputs(self._tensors(ids), self._tensors(np.ones_like(ids)))
        begin = time.perf_counter()
        self._pipeline.generate(asked, self._config, streamer=self._streamer())
        ends = [moment for _, moment in self._made]
        taken = np.diff([begin, *ends]).tolist()
        self._left = deque((token, seconds) for (token, _), seconds in zip(self._made, taken, strict=True))
        return self._left.popleft()

    def further(self, token: int) -> tuple[int, float]:  # noqa: ARG002 (it knows)
        return self._left.popleft()


def resident() -> int:
    """Bytes of this process that are in memory, files that it has mapped included."""
    match = re.search(r"VmRSS:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


def memory(kind: str, files: Files, prompt: Sequence[int], tokens: int, placement: Placement | None) -> dict[str, float]:
    """Return the bytes of this process, which does nothing else: before, after a rival is loaded and has run, and the most."""
    before = resident()
    with ExitStack() as stack:
        text = opened(kind, files, stack, prompt=len(prompt), tokens=tokens, placement=placement)
        loaded = resident()
        token, _ = text.first(prompt)
        for _ in range(tokens - 1):
            token, _ = text.further(token)
        return {"before": before, "loaded": loaded, "after": resident(), "peak": peak_memory()}
