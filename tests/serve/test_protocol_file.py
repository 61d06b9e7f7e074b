"""The messages of gRPC match the text of the protocol, and the messages of Triton's clients."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

from tritonclient.grpc import model_config_pb2, service_pb2

from placeit.serve.rpc_messages import Messages


def test_the_compiled_protocol_is_that_of_its_text(tmp_path: Path) -> None:
    folder = Path(str(files("placeit.serve")))
    compile_ = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(folder), f"--descriptor_set_out={tmp_path / 'found'}"]
    subprocess.run([*compile_, "open_inference.proto"], check=True)
    assert (tmp_path / "found").read_bytes() == (folder / "open_inference.pb").read_bytes(), "run `make proto`"


def fields(message: Any) -> dict[str, tuple[Any, ...]]:
    """Return the number, type and repetition of each field, and the type's name if it is a message."""
    found = {}
    for field in message.fields:
        inner = field.message_type
        found[field.name] = field.number, field.type, field.is_repeated, inner and inner.name
    return found


def test_fields_have_the_numbers_and_types_that_clients_know() -> None:
    ours, checked = Messages(), 0
    theirs = {**service_pb2.DESCRIPTOR.message_types_by_name, **model_config_pb2.DESCRIPTOR.message_types_by_name}
    pending = [(getattr(ours, name).DESCRIPTOR, message) for name, message in theirs.items() if known(ours, name)]
    while pending:
        mine, message = pending.pop()
        right = fields(message)
        assert {name: right[name] for name in fields(mine)} == fields(mine), mine.full_name
        pending += [(one, message.nested_types_by_name[one.name]) for one in mine.nested_types]
        checked += 1
    assert checked > 30
    methods = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
    for name, method in ours.methods.items():
        assert methods[name].input_type.full_name == method.input_type.full_name
        assert methods[name].output_type.full_name == method.output_type.full_name


def known(messages: Messages, name: str) -> bool:
    try:
        getattr(messages, name)
    except KeyError:
        return False
    return True
