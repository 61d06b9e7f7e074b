import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points

import pytest
import torch

from placeit.core import registry as names
from placeit.core.errors import UsageError
from placeit.learning import registry
from placeit.learning.agent_notation import parse_agent
from placeit.learning.checkpoint import weights_of
from tests.learning.toy_agent import ToyAgent, same


def install(monkeypatch, name, target):
    """Have an entry point for an agent, beside placeit's agents."""
    more = EntryPoint(name, target, registry.GROUP)
    monkeypatch.setattr(names, "entry_points", lambda group: [*entry_points(group=group), more])


@pytest.fixture
def plugin(monkeypatch):
    """An installed package whose entry point is the toy agent."""
    install(monkeypatch, "toy", "tests.learning.toy_agent:ToyAgent")
    registry._table.cache_clear()
    yield
    registry._table.cache_clear()


def test_the_agents_that_ship_are_known_by_name_without_being_imported():
    code = (
        "import sys; from placeit.learning.registry import agent_names\n"
        "print(agent_names(), 'torch' in sys.modules, 'placeit._core' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout == "('doppler', 'giph', 'hdp', 'hsdag', 'placeto', 'stream-allocation') False False\n"


@pytest.mark.parametrize("name", registry.agent_names())
def test_an_agent_has_the_name_by_which_it_is_found(name):
    assert registry.agent_class(name).name == name


def test_an_unknown_agent_is_an_error_that_lists_the_known_ones():
    with pytest.raises(UsageError, match="no agent 'giraffe'; the agents are doppler, giph, hdp, hsdag, placeto, stream-alloc"):
        registry.agent_class("giraffe")


@pytest.mark.usefixtures("plugin")
def test_a_plugin_adds_an_agent():
    assert registry.agent_names() == ("doppler", "giph", "hdp", "hsdag", "placeto", "stream-allocation", "toy")
    agent = parse_agent("toy:hidden=7,pace=2", seed=0)
    assert agent.config == {"hidden": 7, "pace": 2.0}


@pytest.mark.usefixtures("plugin")
def test_the_seed_is_that_of_the_initial_weights_alone():
    def weights(seed):
        return weights_of(registry.make_agent("toy", seed=seed))

    before = torch.get_rng_state()
    assert same(weights(1), weights(1))
    assert not same(weights(1), weights(2))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("toy:depth=3", "The agent 'toy' has no option 'depth'; its options are hidden, pace"),
        ("toy:hidden=many", "'hidden' in the agent 'toy:hidden=many' must be a whole number; got 'many'"),
        ("toy:hidden", "Cannot read 'hidden' in the agent 'toy:hidden'; write name:option=value"),
        ("toy:hidden=1,hidden=2", "gives the option 'hidden' twice"),
        ("pet", "no agent 'pet'"),
    ],
)
def test_text_that_names_no_agent_is_an_error(text, message):
    with pytest.raises(UsageError, match=message):
        parse_agent(text, seed=0)


@pytest.mark.usefixtures("plugin")
def test_two_agents_of_one_name_are_an_error_that_names_both(monkeypatch):
    install(monkeypatch, "hdp", "other:Agent")
    with pytest.raises(
        UsageError, match=r"Two agents are named 'hdp': placeit\.learning\.agents\.hdp:HdpAgent .* and other:Agent"
    ):
        registry.agent_names()


@pytest.mark.usefixtures("plugin")
def test_an_agent_that_cannot_be_imported_is_an_error_that_names_it(monkeypatch):
    monkeypatch.setattr(names, "entry_points", lambda group: [EntryPoint("mine", "nowhere:Agent", group)])
    with pytest.raises(UsageError, match=r"agent 'mine' \(nowhere:Agent\) cannot be loaded: No module named 'nowhere'"):
        registry.agent_class("mine")


def test_the_toy_agent_is_an_agent():
    from placeit.learning.agent import Agent

    agent: Agent = ToyAgent()
    assert agent.name == "toy"
