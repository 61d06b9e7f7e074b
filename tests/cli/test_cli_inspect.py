import json
from pathlib import Path
from typing import Any

import pytest

from examples.decoder import TINY, write_decoder

TABLE = """\
model       MODEL
inputs      x float32 1x3x16x16
outputs     y float32 1x16x16x16
ops         8 (with constants: 11)
edges       8 (with constants: 11)
groups      4, joined by 4 edges
compute     705 kFLOP
parameters  1.37 k in 5.47 kB

kind         ops     compute
Convolution    3   700 kFLOP
Relu           2  4.10 kFLOP
Concat         1      0 FLOP
Parameter      1      0 FLOP
Result         1      0 FLOP
"""

GROUPS = """
group of 2 ops, Convolution: 111 kFLOP, weights 864 B
  x
  stem

group of 2 ops, Convolution: 297 kFLOP, weights 2.30 kB
  left
  left_relu
"""


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


def test_the_table_reads_as_it_should(cli: Any, tiny: Path) -> None:
    result = cli("inspect", tiny)
    assert result.exit_code == 0
    assert lines(result.stdout) == lines(TABLE.replace("MODEL", str(tiny)))
    assert result.stderr == ""


def test_groups_are_listed_with_their_ops(cli: Any, tiny: Path) -> None:
    assert GROUPS in cli("inspect", tiny, "--groups").stdout


def test_json_has_every_figure(cli: Any, tiny: Path) -> None:
    result = json.loads(cli("inspect", tiny, "--json").stdout)
    assert result["graph"] == {
        "ops": 8,
        "edges": 8,
        "groups": 4,
        "group_edges": 4,
        "ops_with_constants": 11,
        "edges_with_constants": 11,
    }
    assert result["inputs"] == [{"name": "x", "shape": [1, 3, 16, 16], "dtype": "float32", "sizes": None}]
    assert result["outputs"] == [{"name": "y", "shape": [1, 16, 16, 16], "dtype": "float32", "sizes": None}]
    assert result["kinds"] == {"Convolution": 3, "Relu": 2, "Concat": 1, "Parameter": 1, "Result": 1}
    assert result["parameters"] == 3 * 8 * 9 + 2 * 8 * 8 * 9
    assert result["parameter_bytes"] == 4 * result["parameters"]
    assert result["groups"] is None


def test_groups_in_json_cover_every_op_once(cli: Any, tiny: Path) -> None:
    result = json.loads(cli("inspect", tiny, "--json", "--groups", "--max-groups", 2).stdout)
    assert len(result["groups"]) == result["graph"]["groups"] == 2
    ops = [op for group in result["groups"] for op in group["ops"]]
    assert len(ops) == len(set(ops)) == 8
    assert sum(group["flops"] for group in result["groups"]) == result["flops"]


def test_an_open_size_is_set_by_batch_or_by_input_shape(cli: Any, tiny_open: Path) -> None:
    by_batch = json.loads(cli("inspect", tiny_open, "--json", "--batch", 4).stdout)
    by_shape = json.loads(cli("inspect", tiny_open, "--json", "--input-shape", "x:4,3,16,16").stdout)
    assert by_batch == by_shape
    assert by_batch["inputs"][0]["shape"] == [4, 3, 16, 16]


def test_an_open_size_that_nothing_sets_is_an_error_that_says_what_to_type(cli: Any, tiny_open: Path) -> None:
    result = cli("inspect", tiny_open)
    assert result.exit_code == 1
    assert "--batch" in result.stderr


def test_caches_are_listed_as_state_and_not_as_inputs(cli: Any, tmp_path: Path) -> None:
    path = write_decoder(TINY, tmp_path / "decoder.xml", cache="inputs")
    sizes = {"input_ids": "1..64@16x0/1", "attention_mask": "1..128@16/17", "position_ids": "1..64@16/1"}
    given = [word for name, size in sizes.items() for word in ("--input-shape", f"{name}:1,{size}")]
    shown = " ".join(cli("inspect", path, *given).stdout.split())
    assert "outputs logits float32 1x1x256 state 4 tensors, past_key_values.0.key float32 1x2x[0..@0/16]x8 to" in shown
    data = json.loads(cli("inspect", path, *given, "--json").stdout)
    assert [spec["name"] for spec in data["inputs"]] == list(sizes)
    assert [spec["name"] for spec in data["states"]] == [past for past, _ in TINY.caches]
    refused = cli("inspect", path, "--state", "none")
    assert "input 'past_key_values.0.key' has the open shape" in " ".join(refused.stderr.split())


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["h"], "Cannot read --state 'h'; write IN=OUT"),
        (["h=y", "h=z"], "--state names 'h' twice"),
        (["none", "h=y"], "--state none keeps nothing as state"),
        (["x=y"], "cannot be one state"),
    ],
)
def test_state_that_makes_no_sense_is_an_error(cli: Any, tiny: Path, texts: list[str], words: str) -> None:
    refused = cli("inspect", tiny, *(word for text in texts for word in ("--state", text)))
    assert refused.exit_code == 2
    assert words in " ".join(refused.stderr.split())


def test_a_folder_with_a_decoder_is_inspected_at_the_length_of_its_texts(cli: Any, tmp_path: Path) -> None:
    write_decoder(TINY, tmp_path / "openvino_model.xml")
    assert "--context 1024" in " ".join(cli("inspect", tmp_path).stderr.split())
    data = json.loads(cli("inspect", tmp_path, "--context", 64, "--json").stdout)
    assert data["model"] == str(tmp_path / "openvino_model.xml")
    assert [spec["sizes"] for spec in data["inputs"]] == [[1, "1..64@32/1"], [1, "1..64@32/33"], [1, "1..64@32/1"]]
