import json
import struct

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from placeit.core.errors import FileError, UsageError
from placeit.learning.checkpoint import load_agent, read_checkpoint, save_agent
from placeit.learning.training.loop import evaluate
from tests.learning.toy_agent import HELD_OUT, ToyAgent, toy


def find(name):
    if name != "toy":
        raise UsageError(f"There is no agent '{name}'.")
    return ToyAgent


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("agents") / "toy.safetensors"
    save_agent(toy(3, hidden=5), path, evaluation=1.25, trained_on={"ops": [4, 9]})
    return path


def test_a_loaded_agent_decides_as_the_saved_one(saved):
    agent = load_agent(saved, find)
    assert agent.config == {"hidden": 5, "pace": 1.0}
    assert evaluate(agent, HELD_OUT[:4]) == evaluate(toy(3, hidden=5), HELD_OUT[:4])
    assert not agent.network.training


def test_weights_may_be_stored_as_half_precision(tmp_path):
    agent = toy(3, hidden=5)
    save_agent(agent, tmp_path / "half.safetensors", half=True)
    assert {weight.dtype for weight in read_checkpoint(tmp_path / "half.safetensors").weights.values()} == {torch.float16}
    loaded = load_agent(tmp_path / "half.safetensors", find).network.state_dict()
    for name, weight in agent.network.state_dict().items():
        assert torch.equal(loaded[name], weight.half().float())


def test_a_checkpoint_says_where_it_comes_from(saved):
    checkpoint = read_checkpoint(saved)
    assert (checkpoint.agent, checkpoint.version) == ("toy", 1)
    assert checkpoint.about == {"evaluation": 1.25, "trained_on": {"ops": [4, 9]}}
    size = struct.unpack("<Q", saved.read_bytes()[:8])[0]  # any reader of safetensors sees it
    assert json.loads(saved.read_bytes()[8 : 8 + size])["__metadata__"]["placeit"].startswith('{"format": "placeit-agent"')


def test_another_version_of_the_agent_is_refused(saved, monkeypatch):
    monkeypatch.setattr(ToyAgent, "version", 2)
    with pytest.raises(FileError, match=r"toy\.safetensors holds version 1 of the agent 'toy'; this placeit has version 2"):
        load_agent(saved, find)


def test_other_shapes_are_refused_by_name(saved):
    class Wider(ToyAgent):
        def __init__(self, hidden, pace):
            super().__init__(hidden + 1, pace)

    with pytest.raises(FileError, match=r"its weights '0.bias' have shape \[5\] in the file and \[6\] here. Train it again"):
        load_agent(saved, lambda name: Wider)


def test_weights_that_the_agent_lacks_are_refused(saved):
    class Deeper(ToyAgent):
        def __init__(self, hidden, pace):
            super().__init__(hidden, pace)
            self.network.append(torch.nn.Linear(1, 1))

    with pytest.raises(FileError, match=r"its weights '3.bias' have shape none in the file and \[1\] here"):
        load_agent(saved, lambda name: Deeper)


def test_options_that_the_agent_lacks_are_refused(saved):
    class Older(ToyAgent):
        def __init__(self, hidden):
            super().__init__(hidden)

    with pytest.raises(FileError, match=r"written for other options of the agent 'toy' than it has here: .*'pace'"):
        load_agent(saved, lambda name: Older)


def test_an_agent_of_an_unknown_name_is_refused(saved, tmp_path):
    class Other(ToyAgent):
        name = "other"

    path = tmp_path / "other.safetensors"
    save_agent(Other(), path)
    with pytest.raises(UsageError, match="no agent 'other'"):
        load_agent(path, find)
    with pytest.raises(UsageError, match="no agent 'toy'; the agents are doppler, giph, hdp, hsdag, placeto"):
        load_agent(saved)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_truncated_file_is_an_error_that_names_it(saved, tmp_path, data):
    whole = saved.read_bytes()
    path = tmp_path / "cut.safetensors"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(FileError, match=r"cut\.safetensors"):
        load_agent(path, find)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_with_any_byte_changed_is_refused(saved, tmp_path, data):
    whole = bytearray(saved.read_bytes())
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(whole)
    with pytest.raises(FileError, match=r"damaged\.safetensors"):
        load_agent(path, find)


def test_a_number_written_in_other_digits_is_a_change(saved, tmp_path):
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(saved.read_bytes().replace(b'pace\\": 1.0', b'pace\\": 1e0'))
    assert path.read_bytes() != saved.read_bytes()
    with pytest.raises(FileError, match=r"damaged\.safetensors"):
        load_agent(path, find)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no safetensors", b"\xff" * 64])
def test_a_file_of_another_kind_is_an_error(tmp_path, content):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(FileError, match=r"model\.onnx is not a safetensors file, or it is damaged"):
        load_agent(path, find)


def test_weights_of_another_program_are_refused(tmp_path):
    path = tmp_path / "bert.safetensors"
    save_file({"x": torch.zeros(2)}, path)
    with pytest.raises(FileError, match=r"bert\.safetensors holds something else, not the weights of a policy"):
        load_agent(path, find)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(FileError, match=r"There is no file .*none\.safetensors"):
        load_agent(tmp_path / "none.safetensors", find)
    with pytest.raises(FileError, match="Cannot read"):
        load_agent(tmp_path, find)


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    with pytest.raises(FileError, match="Cannot write"):
        save_agent(toy(), tmp_path / "nowhere" / "toy.safetensors")
    assert list(tmp_path.iterdir()) == []
