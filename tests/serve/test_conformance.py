"""A server against the texts of the Open Inference Protocol, which are in the folder ``protocol``."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from google.protobuf import descriptor_pb2

from placeit.serve.network import NetworkServer
from placeit.serve.rpc_messages import Messages
from tests.serve.network_server import call
from tests.serve.test_hostile import asking

FOLDER = Path(__file__).parent / "protocol"
LACKING = ("ModelMetadataResponse", "properties")  # optional, unknown to Triton's clients, and always empty here


def test_every_page_of_the_protocol_answers_as_its_schema_says(network: Callable[..., NetworkServer]) -> None:
    made, checked = network(), 0
    text = yaml.safe_load((FOLDER / "open_inference_rest.yaml").read_text(encoding="utf-8"))
    for pattern, page in text["paths"].items():
        path = pattern.replace("${MODEL_NAME}", "types").replace("${MODEL_VERSION}", "1")
        body = json.dumps(asking() | {"id": "42"}) if "post" in page else None
        for asked, status in ((path, 200), (path.replace("/versions/1", ""), 200), *([(path, 400)] if body else [])):
            found, answer, headers = call(made, asked, body if status == 200 else "{}")
            assert (asked, found, headers["content-type"]) == (asked, status, "application/json")
            said = page["post" if body else "get"]["responses"][str(status)]
            if "content" in said:
                schema = said["content"]["application/json"]["schema"] | {"components": text["components"]}
                jsonschema.validate(answer, schema)
                checked += 1
            assert status != 200 or not body or answer["id"] == "42"
    assert checked == 7


def test_every_message_of_the_protocol_is_here(tmp_path: Path) -> None:
    """All methods, and all fields with their numbers and types."""
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(FOLDER), f"--descriptor_set_out={tmp_path / 'found'}"]
    subprocess.run([*command, "open_inference_grpc.proto"], check=True)
    (text,) = descriptor_pb2.FileDescriptorSet.FromString((tmp_path / "found").read_bytes()).file
    ours = Messages()
    methods = {method.name: method for method in text.service[0].method}
    for name, method in methods.items():
        assert ours.methods[name].input_type.full_name == method.input_type.removeprefix(".")
        assert ours.methods[name].output_type.full_name == method.output_type.removeprefix(".")
    todo: list[tuple[Any, Any]] = [(message, getattr(ours, message.name).DESCRIPTOR) for message in text.message_type]
    assert len(todo) > 10
    while todo:
        message, mine = todo.pop()
        for field in message.field:
            if (message.name, field.name) == LACKING:
                continue
            found = mine.fields_by_name[field.name]
            assert (found.number, found.type, found.is_repeated) == (field.number, field.type, field.label == 3), field.name
        todo += [(one, mine.nested_types_by_name[one.name]) for one in message.nested_type if one.name != "PropertiesEntry"]
