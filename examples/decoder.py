"""Decoder-only transformers with random weights, for text generation in tests, examples and benchmarks.

A decoder has the usual names of exported models: the inputs ``input_ids``, ``attention_mask`` and ``position_ids``, and the
output ``logits``. The keys and values of earlier tokens are variables of the model (``ReadValue`` and ``Assign``), as written
by optimum-intel, or inputs ``past_key_values.0.key`` and outputs ``present.0.key``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import FileError, UsageError
from placeit.core.files import replacing, replacing_both
from placeit.core.telemetry import import_openvino

__all__ = ["TINY", "Decoder", "Weights", "build_decoder", "write_decoder"]

Weights: TypeAlias = Literal["float32", "float16", "int8", "int4"]
"""Types of a decoder's weights. Integers have scales and zero points; the model decompresses them."""

_EPSILON = 1e-5
_ROTARY_BASE = 10000.0
_EMBEDDING_SCALE = 0.02  # small compared with the outputs of layers, so that the model does not repeat its last token
_QUERY_SCALE = 3.0  # large enough for attention to prefer some tokens, although weights are random
_GROUP = 32  # number of int4 weights that share a scale
_HIDDEN_BY_MASK = float(np.finfo(np.float32).min)
_TO_THE_END = 2**31 - 1
_OPSET = 20


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """The architecture of a decoder; the default has 109 million parameters.

    Attributes:
        style: ``llama`` has RMS normalizations, rotary positions and gated layers; ``gpt2`` has layer normalizations, learned
            positions, a plain GELU between two linear layers, and biases.
        layers: number of layers, each with an attention and a feed-forward network.
        width: size of the embedding of a token.
        heads: attention heads; they divide the width.
        kv_heads: heads of keys and values, which groups of attention heads share; None for as many as ``heads``.
        hidden: size of the hidden layer of the feed-forward networks.
        vocabulary: number of tokens.
        positions: maximum number of tokens of a text; learned positions only.
    """

    style: Literal["llama", "gpt2"] = "llama"
    layers: int = 12
    width: int = 768
    heads: int = 12
    kv_heads: int | None = None
    hidden: int = 2048
    vocabulary: int = 32000
    positions: int = 1024

    def __post_init__(self) -> None:
        sizes = (self.layers, self.width, self.heads, self.groups, self.hidden, self.vocabulary, self.positions)
        if min(sizes) < 1 or self.width % (2 * self.heads) or self.heads % self.groups:
            raise UsageError(
                f"There is no such decoder: {self}. Sizes are positive, heads divide the width into parts of an even size, and "
                "kv_heads divides heads."
            )

    @property
    def groups(self) -> int:
        """Heads of keys and values."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def head(self) -> int:
        """Size of a head."""
        return self.width // self.heads

    @property
    def caches(self) -> tuple[tuple[str, str], ...]:
        """Names of each cache as an input and as an output."""
        kinds = itertools.product(range(self.layers), ("key", "value"))
        return tuple((f"past_key_values.{layer}.{kind}", f"present.{layer}.{kind}") for layer, kind in kinds)


TINY = Decoder(layers=2, width=32, heads=4, kv_heads=2, hidden=64, vocabulary=256, positions=256)
"""A decoder that takes milliseconds to build and run."""


def build_decoder(
    decoder: Decoder,
    *,
    cache: Literal["state", "inputs"] = "state",
    beam_idx: bool = False,
    weights: Weights = "float32",
    seed: int = 0,
) -> Any:
    """Build a decoder as an ``openvino.Model``: for one text or, with ``beam_idx`` or caches as inputs, any number of texts.

    Args:
        decoder: its architecture.
        cache: ``state`` for variables of the model; ``inputs`` for inputs and outputs.
        beam_idx: whether a stateful model has the input ``beam_idx`` of optimum-intel for beam search; otherwise it is [0].
        weights: type of the weights of embeddings and linear layers. With int4, embedding tables, and linear layers whose
            number of inputs is not a multiple of 32, are int8, as in NNCF.
        seed: seed of the weights.
    """
    made = _OpenVinoWriter(weights, stateful=cache == "state", beam_idx=beam_idx)
    _write(decoder, made, seed)
    return made.finish()


def write_decoder(
    decoder: Decoder,
    path: str | Path,
    *,
    cache: Literal["state", "inputs"] | None = None,
    beam_idx: bool = False,
    weights: Weights = "float32",
    seed: int = 0,
) -> Path:
    """Write a decoder as OpenVINO IR (``.xml``, with its ``.bin``) or as ONNX (``.onnx``), and return the path.

    Args:
        decoder: its architecture.
        path: file to write.
        cache: see :func:`build_decoder`; None for ``state`` in IR and ``inputs`` in ONNX.
        beam_idx: see :func:`build_decoder`.
        weights: type of the weights of embeddings and linear layers; ``float32`` in ONNX.
        seed: seed of the weights.

    Raises:
        UsageError: the format does not have such a cache or weights.
        FileError: the file cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() == ".onnx":
        if cache == "state" or beam_idx or weights != "float32":
            raise UsageError(
                f"{path}: a decoder as ONNX has its cache as inputs and weights in float32; write IR (.xml) instead."
            )
        made = _OnnxWriter()
        _write(decoder, made, seed)
        with replacing(path) as temporary:
            temporary.write_bytes(made.finish().SerializeToString())
    else:
        built = build_decoder(decoder, cache=cache or "state", beam_idx=beam_idx, weights=weights, seed=seed)
        with replacing_both(path, path.with_suffix(".bin")) as (xml, binary):
            try:
                import_openvino().serialize(built, str(xml), str(binary))
            except RuntimeError as error:
                raise FileError(f"Cannot write {path}: {error}") from error
    return path


class _Writer(Protocol):
    """Writes a model op by op, with the op names and arguments of ONNX.

    Attributes:
        batch: number of texts in a step; -1 for any number.
    """

    batch: int

    def input(self, name: str, dtype: str, shape: Sequence[int]) -> Any: ...

    def constant(self, value: Any, dtype: Any = np.int64) -> Any: ...

    def weight(self, name: str, value: NDArray[np.float32], *, table: bool = False) -> Any:
        """Return a weight matrix, or with ``table`` an embedding table."""

    def linear(self, name: str, x: Any, weight: Any) -> Any:
        """Multiply by the transpose of a matrix."""

    def past(self, cache: tuple[str, str], shape: Sequence[int]) -> Any: ...

    def keep(self, cache: tuple[str, str], value: Any, shape: Sequence[int]) -> None: ...

    def output(self, name: str, value: Any, shape: Sequence[int]) -> None: ...

    def attention(self, name: str, query: Any, key: Any, value: Any, mask: Any, head: int) -> Any: ...

    def gelu(self, x: Any) -> Any: ...

    def op(self, kind: str, *values: Any, name: str = "", **attributes: Any) -> Any: ...


def _write(decoder: Decoder, made: _Writer, seed: int) -> None:
    """Write a decoder, op by op."""
    rng = np.random.default_rng(seed)
    llama, width, head = decoder.style == "llama", decoder.width, decoder.head

    def normal(rows: int, columns: int, scale: float) -> NDArray[np.float32]:
        drawn = rng.standard_normal((rows, columns), np.float32)
        drawn *= scale
        return drawn

    def around(middle: float) -> Any:
        return made.constant(rng.uniform(middle - 0.1, middle + 0.1, width), np.float32)

    def norm(name: str, x: Any) -> Any:
        if not llama:
            return made.op("LayerNormalization", x, around(1), around(0), name=name, epsilon=_EPSILON)
        square = made.op("ReduceMean", made.op("Pow", x, made.constant(2, np.float32)), made.constant([-1]), keepdims=1)
        root = made.op("Sqrt", made.op("Add", square, made.constant(_EPSILON, np.float32)))
        scaled = made.op("Mul", x, made.op("Div", made.constant(1, np.float32), root))
        return made.op("Mul", scaled, around(1), name=name)

    def linear(name: str, x: Any, inputs: int, outputs: int, scale: float = 1.0) -> Any:
        product = made.linear(name, x, made.weight(f"{name}.weight", normal(outputs, inputs, scale * inputs**-0.5)))
        if llama:
            return product
        bias = made.constant(rng.uniform(-0.1, 0.1, outputs), np.float32)
        return made.op("Add", product, bias, name=f"{name}.biased")

    def heads(x: Any, count: int) -> Any:
        return made.op("Transpose", made.op("Reshape", x, made.constant([0, 0, count, head])), perm=[0, 2, 1, 3])

    def cut(x: Any, begin: int, end: int) -> Any:
        return made.op("Slice", x, *(made.constant([number]) for number in (begin, end, 3, 1)))

    def rotate(name: str, x: Any) -> Any:
        if rotary is None:
            return x
        turned = made.op("Concat", made.op("Neg", cut(x, head // 2, _TO_THE_END)), cut(x, 0, head // 2), axis=-1)
        return made.op("Add", made.op("Mul", x, rotary[0]), made.op("Mul", turned, rotary[1]), name=name)

    def cached(x: Any) -> Any:
        cache = decoder.caches[len(presents)]
        present = made.op("Concat", made.past(cache, [made.batch, decoder.groups, -1, head]), x, axis=2, name=cache[1])
        presents.append(present)
        if decoder.groups == decoder.heads:
            return present
        each = made.op("Unsqueeze", present, made.constant([2]))
        each = made.op("Expand", each, made.constant([1, 1, decoder.heads // decoder.groups, 1, 1]))
        return made.op("Reshape", each, made.constant([0, decoder.heads, -1, head]))

    ids = made.input("input_ids", "int64", [made.batch, -1])
    mask = made.input("attention_mask", "int64", [made.batch, -1])
    positions = made.input("position_ids", "int64", [made.batch, -1])
    embedding = made.weight("embedding.weight", normal(decoder.vocabulary, width, _EMBEDDING_SCALE), table=True)
    x = made.op("Gather", embedding, ids, axis=0, name="embedding")
    rotary = None
    if llama:
        powers = _ROTARY_BASE ** (-np.arange(0, head, 2) / head)
        angle = made.op("Unsqueeze", made.op("Cast", positions, to="float32"), made.constant([1, 3]))
        angle = made.op("Mul", angle, made.constant(powers.reshape(1, 1, 1, -1), np.float32))
        angle = made.op("Concat", angle, angle, axis=3)
        rotary = made.op("Cos", angle, name="rotary.cos"), made.op("Sin", angle, name="rotary.sin")
    else:
        table = made.weight("positions.weight", normal(decoder.positions, width, _EMBEDDING_SCALE), table=True)
        x = made.op("Add", x, made.op("Gather", table, positions, axis=0), name="embedded")
    hides = _causal(made, ids, mask)
    presents: list[Any] = []
    for number in range(decoder.layers):
        layer = f"layers.{number}"
        normed = norm(f"{layer}.attention.norm", x)
        query = heads(linear(f"{layer}.attention.query", normed, width, width, _QUERY_SCALE), decoder.heads)
        key = heads(linear(f"{layer}.attention.key", normed, width, decoder.groups * head), decoder.groups)
        value = heads(linear(f"{layer}.attention.value", normed, width, decoder.groups * head), decoder.groups)
        query, key = rotate(f"{layer}.attention.query.rotated", query), rotate(f"{layer}.attention.key.rotated", key)
        seen = made.attention(f"{layer}.attention", query, cached(key), cached(value), hides, head)
        seen = made.op("Reshape", made.op("Transpose", seen, perm=[0, 2, 1, 3]), made.constant([0, 0, width]))
        x = made.op("Add", x, linear(f"{layer}.attention.output", seen, width, width), name=f"{layer}.attention.sum")
        normed = norm(f"{layer}.feed_forward.norm", x)
        inner = linear(f"{layer}.feed_forward.in", normed, width, decoder.hidden)
        if llama:
            gate = linear(f"{layer}.feed_forward.gate", normed, width, decoder.hidden)
            inner = made.op("Mul", made.op("Mul", gate, made.op("Sigmoid", gate)), inner)
        else:
            inner = made.gelu(inner)
        out = linear(f"{layer}.feed_forward.out", inner, decoder.hidden, width)
        x = made.op("Add", x, out, name=f"{layer}.feed_forward.sum")
    logits = made.linear("logits", norm("norm", x), embedding)
    made.output("logits", logits, [made.batch, -1, decoder.vocabulary])
    for cache, present in zip(decoder.caches, presents, strict=True):
        made.keep(cache, present, [made.batch, decoder.groups, -1, head])


def _causal(made: _Writer, ids: Any, mask: Any) -> Any:
    """Write the mask that is added to attention scores: ``float32[1, 1, new tokens, all tokens]``."""
    new, all_ = (made.op("Gather", made.op("Shape", value), made.constant(1), axis=0) for value in (ids, mask))
    zero, one = made.constant(0), made.constant(1)
    rows = made.op("Unsqueeze", made.op("Range", made.op("Sub", all_, new), all_, one), made.constant([1]))
    seen = made.op("LessOrEqual", made.op("Unsqueeze", made.op("Range", zero, all_, one), made.constant([0])), rows)
    kept = made.op("Unsqueeze", made.op("Cast", mask, to="bool"), made.constant([1, 2]))
    seen = made.op("And", made.op("Unsqueeze", seen, made.constant([0, 1])), kept)
    return made.op("Where", seen, made.constant(0, np.float32), made.constant(_HIDDEN_BY_MASK, np.float32), name="mask")


class _OpenVinoWriter:
    """Writes an ``openvino.Model``, like models by the PyTorch converter and by optimum-intel."""

    def __init__(self, weights: Weights, *, stateful: bool, beam_idx: bool) -> None:
        self._ov = import_openvino()
        ops = self._ops = self._ov.opset15
        self._weights, self._stateful = weights, stateful
        self.batch = -1 if beam_idx or not stateful else 1
        self._parameters: list[Any] = []
        self._results: list[Any] = []
        self._sinks: list[Any] = []
        self._make: dict[str, Callable[..., Any]] = {
            "Add": ops.add,
            "And": ops.logical_and,
            "Cast": lambda x, to: ops.convert(x, {"float32": "f32", "bool": "boolean"}[to]),
            "Concat": lambda *values, axis: ops.concat(list(values), axis),
            "Cos": ops.cos,
            "Div": ops.divide,
            "Expand": lambda x, shape: ops.broadcast(x, shape, broadcast_spec="BIDIRECTIONAL"),
            "Gather": lambda x, places, axis: ops.gather(x, places, ops.constant(axis, self._ov.Type.i64)),
            "LayerNormalization": self._layer_norm,
            "LessOrEqual": ops.less_equal,
            "Mul": ops.multiply,
            "Neg": lambda x: ops.multiply(x, self.constant(-1, np.float32)),
            "Pow": ops.power,
            "Range": lambda *values: ops.range(*values, "i64"),
            "ReduceMean": lambda x, axes, keepdims: ops.reduce_mean(x, axes, bool(keepdims)),
            "Reshape": lambda x, shape: ops.reshape(x, shape, True),
            "Shape": lambda x: ops.shape_of(x, "i64"),
            "Sigmoid": ops.sigmoid,
            "Sin": ops.sin,
            "Slice": lambda x, begin, end, axes, step: ops.slice(x, begin, end, step, axes),
            "Sqrt": ops.sqrt,
            "Sub": ops.subtract,
            "Transpose": lambda x, perm: ops.transpose(x, ops.constant(perm, self._ov.Type.i64)),
            "Unsqueeze": ops.unsqueeze,
            "Where": ops.select,
        }
        self._beam = self.input("beam_idx", "int32", [-1]) if beam_idx else ops.constant(np.zeros(1, np.int32))
        self._rows: Any = None

    def finish(self) -> Any:
        inputs = sorted(self._parameters, key=lambda parameter: parameter is self._beam)  # the last one
        return self._ov.Model(self._results, self._sinks, inputs, "decoder")

    def input(self, name: str, dtype: str, shape: Sequence[int]) -> Any:
        made = self._ops.parameter(self._ov.PartialShape(list(shape)), self._ov.Type(np.dtype(dtype)), name=name)
        made.output(0).get_tensor().set_names({name})
        self._parameters.append(made)
        return made

    def constant(self, value: Any, dtype: Any = np.int64) -> Any:
        return self._ops.constant(np.asarray(value, dtype))

    def weight(self, name: str, value: NDArray[np.float32], *, table: bool = False) -> Any:
        ops = self._ops
        if self._weights == "float32":
            return ops.constant(value, name=name)
        if self._weights == "float16":
            return ops.convert(ops.constant(value.astype(np.float16), name=name), "f32", name=f"{name}.converted")
        rows, columns = value.shape
        bits, group = (8, columns) if table or self._weights == "int8" or columns % _GROUP else (4, _GROUP)
        parts = value.reshape(rows, -1, group)
        low, high = parts.min(2, keepdims=True, initial=0), parts.max(2, keepdims=True, initial=0)
        scale = np.maximum((high - low) / (2**bits - 1), 1e-6).astype(np.float16)
        zero = np.rint(-low / scale).astype(np.uint8)
        whole = np.clip(np.rint(parts / scale) + zero, 0, 2**bits - 1).astype(np.uint8)
        if bits == 8:
            whole, zero, scale = (part.reshape(rows, -1) for part in (whole, zero, scale))
        difference = ops.subtract(
            *(
                ops.convert(self._whole(part, bits, f"{name}{suffix}"), "f16")
                for part, suffix in ((whole, ""), (zero, ".zero_point"))
            )
        )
        made = ops.multiply(difference, ops.constant(scale, name=f"{name}.scale"))
        if bits == 4:
            made = ops.reshape(made, self.constant([rows, columns]), False)
        return ops.convert(made, "f32", name=f"{name}.decompressed")

    def _whole(self, value: NDArray[np.uint8], bits: int, name: str) -> Any:
        if bits == 8:
            return self._ops.constant(value, name=name)
        flat = np.append(value.ravel(), np.zeros(value.size % 2, np.uint8))
        tensor = self._ov.Tensor(self._ov.Type.u4, list(value.shape))
        tensor.data.reshape(-1)[...] = flat[::2] | flat[1::2] << 4
        made = self._ov.op.Constant(tensor)
        made.set_friendly_name(name)
        return made

    def linear(self, name: str, x: Any, weight: Any) -> Any:
        return self._ops.matmul(x, weight, transpose_a=False, transpose_b=True, name=name)

    def _layer_norm(self, x: Any, scale: Any, bias: Any, epsilon: float) -> Any:
        flat = self._ops.mvn(x, self.constant([-1]), normalize_variance=True, eps=epsilon, eps_mode="INSIDE_SQRT")
        return self._ops.add(self._ops.multiply(flat, scale), bias)

    def past(self, cache: tuple[str, str], shape: Sequence[int]) -> Any:
        if not self._stateful:
            return self.input(cache[0], "float32", shape)
        ops = self._ops
        read = ops.read_value(self._empty(shape[1:]), "".join(cache), self._ov.Type.f32, self._ov.PartialShape(list(shape)))
        read.set_friendly_name(cache[0])
        return ops.gather(read, self._beam, self.constant(0))

    def _empty(self, shape: Sequence[int]) -> Any:
        """Return an empty cache, with a row for each text of a step unless the model is for one text."""
        ops, sizes = self._ops, np.array([max(size, 0) for size in shape])
        if self.batch == 1:
            return ops.constant(np.zeros((1, *sizes), np.float32))
        if self._rows is None:
            self._rows = ops.gather(ops.shape_of(self._parameters[-1]), self.constant([0]), self.constant(0))
        zero = ops.convert(ops.constant(np.float16(0)), "f32")
        return ops.broadcast(zero, ops.concat([self._rows, self.constant(sizes)], 0))

    def keep(self, cache: tuple[str, str], value: Any, shape: Sequence[int]) -> None:
        if self._stateful:
            self._sinks.append(self._ops.assign(value, "".join(cache)))
            self._sinks[-1].set_friendly_name(f"{cache[1]}.kept")
        else:
            self.output(cache[1], value, shape)

    def output(self, name: str, value: Any, shape: Sequence[int]) -> None:  # noqa: ARG002
        value.output(0).get_tensor().add_names({name})
        self._results.append(self._ops.result(value, name=f"{name}.result"))

    def attention(self, name: str, query: Any, key: Any, value: Any, mask: Any, head: int) -> Any:  # noqa: ARG002
        made = self._ops.scaled_dot_product_attention(query, key, value, mask)
        made.set_friendly_name(name)
        return made

    def gelu(self, x: Any) -> Any:
        return self._ops.gelu(x, "tanh")

    def op(self, kind: str, *values: Any, name: str = "", **attributes: Any) -> Any:
        made = self._make[kind](*values, **attributes)
        if name:
            made.set_friendly_name(name)
        return made


class _OnnxWriter:
    """Writes an ``onnx.ModelProto``."""

    batch = -1

    def __init__(self) -> None:
        import onnx

        self._onnx = onnx
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def finish(self) -> Any:
        helper = self._onnx.helper
        graph = helper.make_graph(self._nodes, "decoder", self._inputs, self._outputs, self._constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=9)

    def _info(self, name: str, dtype: str, shape: Sequence[int]) -> Any:
        kind = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self._onnx.helper.make_tensor_value_info(name, kind, [None if size < 0 else size for size in shape])

    def input(self, name: str, dtype: str, shape: Sequence[int]) -> str:
        self._inputs.append(self._info(name, dtype, shape))
        return name

    def output(self, name: str, value: str, shape: Sequence[int]) -> None:  # noqa: ARG002
        self._outputs.append(self._info(name, "float32", shape))

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        return self.weight(f"constant.{len(self._constants)}", np.asarray(value, dtype))

    def weight(self, name: str, value: NDArray[Any], *, table: bool = False) -> str:  # noqa: ARG002
        self._constants.append(self._onnx.numpy_helper.from_array(value, name))
        return name

    def linear(self, name: str, x: str, weight: str) -> str:
        return self.op("MatMul", x, self.op("Transpose", weight, perm=[1, 0]), name=name)

    def past(self, cache: tuple[str, str], shape: Sequence[int]) -> str:
        return self.input(cache[0], "float32", shape)

    def keep(self, cache: tuple[str, str], value: str, shape: Sequence[int]) -> None:
        self.output(cache[1], value, shape)

    def attention(self, name: str, query: str, key: str, value: str, mask: str, head: int) -> str:
        scores = self.op("MatMul", query, self.op("Transpose", key, perm=[0, 1, 3, 2]))
        scores = self.op("Mul", scores, self.constant(head**-0.5, np.float32))
        shares = self.op("Softmax", self.op("Add", scores, mask), axis=-1)
        return self.op("MatMul", shares, value, name=name)

    def gelu(self, x: str) -> str:
        return self.op("Gelu", x, approximate="tanh")

    def op(self, kind: str, *values: str, name: str = "", **attributes: Any) -> str:
        name = name or f"{kind}.{len(self._nodes)}"
        if kind == "Cast":
            attributes["to"] = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(attributes["to"]))
        self._nodes.append(self._onnx.helper.make_node(kind, values, [name], name=name, **attributes))
        return name
