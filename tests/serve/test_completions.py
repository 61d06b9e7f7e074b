"""Texts over HTTP, as the public client of OpenAI asks for them."""

from __future__ import annotations

import time

import openai
import pytest

from placeit.serve.network import NetworkServer, Options
from placeit.serve.service import ServedModel
from placeit.text.generating import TextModel, Wanted
from placeit.text.sampling import Sampling
from tests.small_texts import CONTEXT, served, write_folder

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
ASKED = {"model": "tiny", "temperature": 0}


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    with served(write_folder(tmp_path_factory.mktemp("model"))) as (session, server):
        yield ServedModel("tiny", server, session.model.inputs, session.model.outputs, text=TextModel(server, session.model))


@pytest.fixture
def client(opened):
    options = Options(port=0, grpc_port=None, token=b"secret")
    with (
        NetworkServer([opened], options) as network,
        openai.OpenAI(base_url=f"{network.url}/v1", api_key="secret", max_retries=0) as client,
    ):
        yield client


def text_of(opened, prompt, most):
    pieces = list(opened.text.generate(prompt, Wanted(most, sampling=Sampling(temperature=0))))
    return "".join(piece.text for piece in pieces)


def test_models_are_listed(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "placeit"


def test_a_completion_continues_its_prompt(client, opened):
    prompt = opened.text.tokenizer.encode("Once")
    found = client.completions.create(prompt="Once", max_tokens=12, **ASKED)
    assert found.choices[0].text == text_of(opened, prompt, 12)
    assert found.choices[0].finish_reason == "length"
    assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens) == (4, 12, 16)
    assert client.completions.create(prompt=prompt, max_tokens=12, **ASKED).choices[0].text == found.choices[0].text


def test_a_stream_has_the_text_in_parts(client, opened):
    more = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.completions.create(prompt="Once", max_tokens=12, **more, **ASKED))
    text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    assert text == text_of(opened, opened.text.tokenizer.encode("Once"), 12)
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "length"
    assert chunks[-1].usage.completion_tokens == 12


def test_a_conversation_is_answered_by_the_chat_template(client, opened):
    prompt = opened.text.tokenizer.encode("<system>Be brief.<user>Hi<assistant>")
    found = client.chat.completions.create(messages=MESSAGES, max_completion_tokens=8, **ASKED)
    assert found.choices[0].message.role == "assistant"
    assert found.choices[0].message.content == text_of(opened, prompt, 8)
    chunks = list(client.chat.completions.create(messages=MESSAGES, max_tokens=8, stream=True, **ASKED))
    assert chunks[0].choices[0].delta.role == "assistant"
    parts = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(parts) == found.choices[0].message.content


def test_a_seed_makes_the_same_text_again(client):
    one, other = (client.completions.create(model="tiny", prompt="Once", max_tokens=10, seed=3) for _ in range(2))
    assert one.choices[0].text == other.choices[0].text


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"stop": ["x"] * 10_000}, "texts to stop at"),
        ({"max_tokens": CONTEXT}, "has a context of 64"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "'temperature' is \"hot\""),
        ({"n": 2}, "one text for a request"),
        ({"logprobs": 1}, "'logprobs'"),
        ({"prompt": [300]}, "tokens of the model"),
    ],
)
def test_a_request_that_cannot_be_met_is_an_error_of_the_interface(client, fields, says):
    with pytest.raises(openai.BadRequestError, match=says) as found:
        client.completions.create(**{"prompt": "Once", "model": "tiny"} | fields)
    assert found.value.body["type"] == "invalid_request_error"


def test_models_tokens_and_messages_that_do_not_exist_are_refused(client):
    with pytest.raises(openai.NotFoundError, match="there are 'tiny'"):
        client.completions.create(model="other", prompt="Once")
    with pytest.raises(openai.BadRequestError, match="no clowns"):
        client.chat.completions.create(model="tiny", messages=[{"role": "clown", "content": "Hi"}])
    with pytest.raises(openai.AuthenticationError), openai.OpenAI(base_url=client.base_url, api_key="other") as other:
        other.models.list()


def test_the_state_of_a_client_that_leaves_in_the_middle_is_freed(client, opened):
    with client.completions.create(prompt="Once", max_tokens=40, stream=True, model="tiny") as stream:
        next(iter(stream))
    deadline = time.monotonic() + 60
    while opened.server.stats().sequences and time.monotonic() < deadline:
        time.sleep(0.01)
    assert opened.server.stats().sequences == 0
    assert client.completions.create(prompt="Once", max_tokens=2, **ASKED).choices[0].finish_reason == "length"
