import json

import numpy as np
import pytest

from placeit.core.errors import UsageError
from placeit.learning.training.stages import Stage, check_stages, default_stages, parse_stage, scale_updates
from tests.learning.toy_agent import ToyAgent, draw_toys, toy


def toy_cost(instance):
    return instance.cost


def toy_baseline(episodes, memory):
    return np.zeros_like(episodes.returns)


def test_a_stage_is_read_from_text():
    text = "imitation:updates=7,learning_rate=1,schedule=linear,clip=2.5,normalize=false,patience=3"
    assert parse_stage(text, draw_toys) == Stage(
        draw_toys,
        7,
        "imitation",
        learning_rate=1.0,
        schedule="linear",
        clip=2.5,
        normalize=False,
        patience=3,
    )
    assert parse_stage("reinforce", draw_toys) == Stage(draw_toys)
    assert parse_stage("imitation:teacher=heft", draw_toys) == Stage(draw_toys, kind="imitation", teacher="heft")
    text = "reinforce:cost=measured,seconds=600,epochs=4,reward_to_go=false"
    assert parse_stage(text, draw_toys) == Stage(draw_toys, cost="measured", seconds=600.0, epochs=4, reward_to_go=False)


def test_a_stage_says_what_it_is_as_json_can_hold_it():
    one = Stage(draw_toys, cost=toy_cost, baseline=toy_baseline, seconds=1.5)
    said = json.loads(json.dumps(one.to_dict()))
    assert (said["cost"], said["baseline"], said["seconds"]) == (f"{__name__}:toy_cost", f"{__name__}:toy_baseline", 1.5)
    assert Stage(draw_toys).to_dict()["cost"] == "simulated"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("reinforce:rounds=3", "The stage 'reinforce:rounds=3' has no option 'rounds'; its options are updates, problems"),
        ("reinforce:draw=x", "has no option 'draw'"),
        ("reinforce:updates=1.5", "'updates' in the stage 'reinforce:updates=1.5' must be a whole number"),
        ("reinforce:patience=no", "must be a whole number"),
        ("reinforce:updates=0", "'updates' of a training stage is 0"),
    ],
)
def test_text_that_is_no_stage_is_an_error(text, message):
    with pytest.raises(UsageError, match=message):
        parse_stage(text, draw_toys)


def test_updates_are_shared_out_among_stages_as_they_were():
    stages = [Stage(draw_toys, 100), Stage(draw_toys, 300), Stage(draw_toys, 1)]
    assert [stage.updates for stage in scale_updates(stages, 40)] == [10, 30, 1]


def test_an_agent_says_how_it_is_best_trained():
    class Planner(ToyAgent):
        def default_stages(self, draw):
            return [Stage(draw, 5, "imitation")]

    assert [stage.kind for stage in default_stages(Planner(), draw_toys)] == ["imitation"]
    assert [stage.kind for stage in default_stages(toy(), draw_toys)] == ["reinforce"]


def test_a_teacher_is_for_agents_that_have_some():
    with pytest.raises(UsageError, match="the agent 'toy' does not have; it has none to choose from: leave 'teacher' out"):
        check_stages(toy(), [Stage(draw_toys, kind="imitation", teacher="heft")])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"updates": 0}, "'updates' of a training stage is 0; it must be at least 1"),
        ({"problems": -1}, "'problems' of a training stage is -1"),
        ({"learning_rate": float("nan")}, "'learning_rate' of a training stage is nan; it must be finite"),
        ({"gamma": 1.5}, "'gamma' of a training stage is 1.5"),
        ({"explore": -0.5}, "'explore' of a training stage is -0.5"),
        ({"schedule": "step"}, "no schedule 'step'; the schedules are constant, linear, cosine"),
        ({"seconds": 0.0}, "'seconds' of a training stage is 0.0; it must be positive and finite"),
        ({"seconds": float("inf")}, "'seconds' of a training stage is inf"),
        ({"epochs": 0}, "'epochs' of a training stage is 0"),
        ({"epochs": 2, "kind": "imitation"}, "'epochs' of a training stage is for 'reinforce'; 'imitation' has no episodes"),
        ({"reward_to_go": False, "discount_steps": True}, "without 'reward_to_go' discounts its steps already"),
        ({"baseline": "mean"}, "no baseline 'mean'"),
    ],
)
def test_a_stage_out_of_its_range_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        Stage(draw_toys, **options)
