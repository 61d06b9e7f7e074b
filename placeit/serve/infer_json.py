"""The JSON of inference over HTTP: requests and their answers, with tensors in the JSON or as bytes behind it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeVar

from placeit.backends.base import TensorSpec
from placeit.serve.client_sequences import Asked
from placeit.serve.refusal import invalid
from placeit.serve.served_model import ServedModel
from placeit.serve.service import APART_BYTES
from placeit.serve.shared_memory import Part, Regions
from placeit.serve.tensors import Array, datatype_of, of_bytes, of_json, sized, to_bytes, to_json, whole_number
from placeit.serve.wanted import Wanted, priority_of, timeout_of
from placeit.serving.answers import Outputs

__all__ = ["InferRequest", "read", "read_raw", "written"]

_FIELDS: Final = 4096  # most fields, names and lists of a request's JSON, besides the values of its tensors
_SCANNED_BYTES: Final = 1 << 16  # bytes of JSON that are scanned at a time; other threads can run in between

_KEPT: Final = 64  # heads of requests that are kept by model, and of their answers by head
_KEPT_BYTES: Final = 1 << 12  # most bytes of a head that is kept

T = TypeVar("T")


@dataclass(frozen=True)
class _Sent:
    """An input in the JSON of a request: its spec as it is sent, and where its values are.

    Attributes:
        spec: of the input.
        data: the values as JSON has them; None if they are elsewhere.
        size: bytes behind the JSON; None if the values are elsewhere.
        part: of shared memory; None if the values are elsewhere.
    """

    spec: TensorSpec
    data: Any = None
    size: int | None = None
    part: Part | None = None


@dataclass(frozen=True)
class _Head:
    """The JSON of a request.

    Attributes:
        id: the id that the client has given it; None without one.
        sent: its inputs.
        outputs: the outputs to return.
        timeout_s: seconds in which it has to be answered; None for no limit.
        sequence: its sequence; None if it belongs to no sequence.
        priority: that the client asks for; 0 for none.
        answers: the JSON of answers by the types and shapes of outputs, if these are all sent as bytes.
    """

    id: str | None
    sent: Sequence[_Sent]
    outputs: Sequence[Wanted]
    timeout_s: float | None = None
    sequence: Asked | None = None
    priority: int = 0
    answers: dict[object, bytes] = field(default_factory=dict)

    @property
    def plain(self) -> bool:
        """True if requests with the same JSON, and their answers, differ only in the bytes behind it."""
        return self.id is None and self.sequence is None and all(one.size is not None for one in self.sent)


@dataclass(frozen=True)
class InferRequest:
    """A request for inference, as a client has sent it.

    Attributes:
        head: its JSON.
        inputs: by name.
        borrowed: inputs that lie in shared memory, by their specs.
    """

    head: _Head
    inputs: Mapping[str, Array]
    borrowed: Sequence[tuple[TensorSpec, Part]] = ()


def read_raw(model: ServedModel, body: bytes | memoryview) -> InferRequest:
    """Read a request whose body is the bytes of the model's only input. Raises RefusedError."""
    if len(model.inputs) != 1:
        raise invalid(f"The model '{model.name}' has {len(model.inputs)} inputs: a body without JSON is one of one input.")
    inputs = {name: of_bytes(body, sized(spec, len(body))) for name, spec in model.inputs.items()}
    return InferRequest(_Head(None, (), [Wanted(name) for name in model.outputs]), inputs)


def read(model: ServedModel, body: bytes | memoryview, size: int) -> InferRequest:
    """Read a request whose first bytes are JSON. Raises RefusedError."""
    text = bytes(body[:size])
    head = model.heads.get(text)
    if head is None:
        head = _head(model, text)
        if size <= _KEPT_BYTES and head.plain:
            if len(model.heads) >= _KEPT:
                model.heads.clear()
            model.heads[text] = head
    inputs: dict[str, Array] = {}
    borrowed: list[tuple[TensorSpec, Part]] = []
    rest = memoryview(body)[size:]
    for one in head.sent:
        spec, taken = one.spec, one.size
        if one.part is not None:
            borrowed.append((spec, one.part))
        elif taken is None:
            inputs[spec.name] = of_json(one.data, spec)
        else:
            if taken > len(rest):
                raise invalid(
                    f"The input '{spec.name}' has no 'data', and the parameter 'binary_data_size' {taken}; {len(rest)} bytes "
                    "are left for it behind the JSON."
                )
            inputs[spec.name] = of_bytes(rest[:taken], spec)
            rest = rest[taken:]
    if len(rest):
        raise invalid(f"Behind the JSON, {len(rest)} bytes belong to no input.")
    return InferRequest(head, inputs, borrowed)


def _head(model: ServedModel, text: bytes) -> _Head:
    """Read the JSON of a request. Raises RefusedError."""
    if len(text) >= APART_BYTES:
        _check_bounds(text, model.max_values)
    asked = _parsed(text)
    parameters = _parameters(asked)
    if asked.get("id") is not None:
        _field(asked, "id", str)
    timeout_s = timeout_of(parameters)
    tensors = _objects(asked, "inputs")
    model.named_once("input", [_field(tensor, "name", str) for tensor in tensors])
    sent = [_sent(model, tensor) for tensor in tensors]
    binary = _field(parameters, "binary_data_output", bool, False)
    wanted = _objects(asked, "outputs", []) or [{"name": name} for name in model.outputs]
    model.named_once("output", [_field(one, "name", str) for one in wanted])
    outputs = [Wanted.of(one["name"], _parameters(one), binary=binary) for one in wanted]
    sequence = Asked.of(parameters, asked.get("id") or "")
    return _Head(asked.get("id"), sent, outputs, timeout_s, sequence, priority_of(parameters))


def _sent(model: ServedModel, tensor: dict[str, Any]) -> _Sent:
    """Read the JSON of an input. Raises RefusedError."""
    shape, of = _field(tensor, "shape", list), _parameters(tensor)
    if any(whole_number(size) is None for size in shape):
        raise invalid(f"The 'shape' of the input '{tensor['name']}' has to consist of whole numbers of at least 0.")
    spec = model.spec(tensor["name"], _field(tensor, "datatype", str), shape)
    taken, part = of.get("binary_data_size"), Part.of(of)
    if part is not None:
        if "data" in tensor or taken is not None:
            raise invalid(f"The input '{spec.name}' is both in shared memory and in the request: send either.")
        return _Sent(spec, part=part)
    if taken is None:
        if "data" not in tensor:
            raise invalid(f"The input '{spec.name}' has neither 'data' nor the parameter 'binary_data_size'.")
        return _Sent(spec, data=tensor["data"])
    if "data" in tensor or whole_number(taken) is None:
        raise invalid(
            f"The input '{spec.name}' has {'' if 'data' in tensor else 'no '}'data', and the parameter 'binary_data_size' "
            f"{taken!r}: that is the number of its bytes behind the JSON, and then it has no 'data'."
        )
    return _Sent(spec, size=taken)


def _check_bounds(text: bytes, values: int) -> None:
    """Refuse JSON with more parts than any request of its model, since parsing it would take many times its memory.

    Args:
        text: the JSON.
        values: most values of all inputs of the model together.

    Raises:
        RefusedError: it has too many parts.
    """
    lists = min(values, _SCANNED_BYTES) + _FIELDS
    bounds = (
        (b"{", _FIELDS, "objects"),
        (b"[", lists, "lists"),
        (b'"', 4 * _FIELDS, "texts"),
        (b",", values + _FIELDS, "values"),
    )
    for sign, most, what in bounds:
        found = 0
        for at in range(0, len(text), _SCANNED_BYTES):
            found += text.count(sign, at, at + _SCANNED_BYTES)
            if found > most:
                raise invalid(
                    f"The JSON of this request has more {what} than the inputs of the model can have: check their shapes, and "
                    "send large tensors in binary form, or as flat lists."
                )


def _parsed(text: bytes) -> dict[str, Any]:
    """Parse a JSON object; other threads can run while many numbers are read. Raises RefusedError."""
    try:
        found = (_PARSER if len(text) < APART_BYTES else _INTERRUPTED).decode(text.decode())
    except RecursionError:
        raise invalid("The JSON of this request is nested too deeply.") from None
    except ValueError as error:
        raise invalid(f"The JSON of this request is not valid: {error}.") from None
    if not isinstance(found, dict):
        raise invalid("A request has to be an object of JSON.")
    return found


def _no_number(name: str) -> NoReturn:
    raise invalid(f"{name} is not valid JSON: send tensors with such values in binary form.")


def _field(of: Mapping[str, Any], name: str, kind: type[T], default: T | None = None) -> T:
    """Return a field of an object. Raises RefusedError if it has another type, or is missing and has no default."""
    value = of.get(name, default)
    if value is None and default is not None:  # clients write null for a missing field
        value = default
    if not isinstance(value, kind):
        words = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
        raise invalid(f"'{name}' {'is missing' if name not in of else f'has to be {words[kind]}'} in this request.")
    return value


def _parameters(of: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a request or tensor, without those that are null. Raises RefusedError."""
    return {name: value for name, value in _field(of, "parameters", dict, {}).items() if value is not None}


def _objects(of: Mapping[str, Any], name: str, default: list[Any] | None = None) -> list[dict[str, Any]]:
    """Return a field that is a list of objects. Raises RefusedError."""
    found = _field(of, name, list, default)
    if not all(isinstance(one, dict) for one in found):
        raise invalid(f"'{name}' has to be a list of objects in this request.")
    return found


_PARSER: Final = json.JSONDecoder(parse_constant=_no_number)
_INTERRUPTED: Final = json.JSONDecoder(  # Python's parser in C lets no other thread run, unless it calls Python
    parse_constant=_no_number,
    parse_int=lambda digits: int(digits),  # noqa: PLW0108
    parse_float=lambda digits: float(digits),  # noqa: PLW0108
)


def written(model: ServedModel, asked: InferRequest, outputs: Outputs, regions: Regions) -> tuple[bytes, list[memoryview]]:
    """Return an answer: its JSON, and the tensors that follow as bytes. Raises RefusedError."""
    head = asked.head
    values = [one.of_value(outputs[one.name]) for one in head.outputs]
    sent = [to_bytes(value) if one.is_sent else None for one, value in zip(head.outputs, values, strict=True)]
    tail = [data for data in sent if data is not None]
    key = tuple((value.dtype, value.shape, len(data)) for value, data in zip(values, tail, strict=False))
    known = head.answers.get(key) if len(tail) == len(sent) else None
    if known is not None:
        return known, tail
    entries = [_entry(*of, regions) for of in zip(head.outputs, values, sent, strict=True)]
    answer: dict[str, Any] = {"model_name": model.name, "model_version": model.version}
    if head.id is not None:
        answer["id"] = head.id
    text = f'{json.dumps(answer)[:-1]}, "outputs": [{", ".join(entries)}]}}'.encode()
    if len(tail) == len(sent) and len(head.answers) < _KEPT:
        head.answers[key] = text
    return text, tail


def _entry(one: Wanted, value: Array, sent: memoryview | None, regions: Regions) -> str:
    entry: dict[str, Any] = {"name": one.name, "datatype": datatype_of(value), "shape": list(value.shape)}
    if sent is not None:
        return json.dumps(entry | {"parameters": {"binary_data_size": len(sent)}})
    stored = one.stored(value, regions)
    if stored is not None:
        return json.dumps(entry | {"parameters": stored})
    return f'{json.dumps(entry)[:-1]}, "data": {"".join(to_json(one.name, value))}}}'
