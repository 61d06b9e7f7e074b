"""Texts over HTTP, as the public client of OpenAI asks for them."""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from placeit.serve.network import NetworkServer, Options
from placeit.serve.service import ServedModel
from placeit.text.generating import TextModel, Wanted
from placeit.text.sampling import Sampling
from placeit.text.tokenizer import Tokenizer
from tests.serving.test_stepping import held
from tests.small_texts import CONTEXT, served, write_folder

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
ASKED = {"model": "tiny", "temperature": 0}


def served_model(session, server, tokenizer=None, name="tiny"):
    text = TextModel(server, session.model, tokenizer)
    return ServedModel(name, server, session.model.inputs, session.model.outputs, text=text)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with served(write_folder(tmp_path_factory.mktemp("model"))) as found:
        yield found


@pytest.fixture(scope="module")
def opened(running):
    return served_model(*running)


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


def test_several_prompts_are_continued_at_once(client, opened):
    prompts = ["Once", "In a hole", "x"]
    found = client.completions.create(prompt=prompts, max_tokens=6, n=2, **ASKED)
    texts = [text_of(opened, opened.text.tokenizer.encode(prompt), 6) for prompt in prompts for _ in range(2)]
    assert [(choice.index, choice.text) for choice in found.choices] == [*enumerate(texts)]
    assert found.usage.prompt_tokens == sum(map(len, prompts))  # a prompt counts once
    more = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = client.completions.create(prompt=prompts, max_tokens=6, n=2, **more, **ASKED)
    streamed = [""] * 6
    for chunk in chunks:
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == texts
    assert last.usage == found.usage
    tokens = [opened.text.tokenizer.encode(prompt) for prompt in prompts]
    again = client.completions.create(prompt=tokens, max_tokens=6, **ASKED)
    assert [choice.text for choice in again.choices] == texts[::2]


def test_several_answers_to_a_conversation_are_sampled_with_different_seeds(client):
    asked = {"model": "tiny", "messages": MESSAGES, "max_tokens": 8, "temperature": 2.0}
    found = client.chat.completions.create(n=3, seed=5, **asked)
    texts = [choice.message.content for choice in found.choices]
    assert texts == [client.chat.completions.create(seed=5 + i, **asked).choices[0].message.content for i in range(3)]
    assert len(set(texts)) > 1
    *_, last = chunks = list(client.chat.completions.create(n=3, seed=5, stream=True, **asked))
    assert [chunk.choices[0].index for chunk in chunks[:3]] == [0, 1, 2]
    assert {chunk.choices[0].delta.role for chunk in chunks[:3]} == {"assistant"}
    assert last.choices[0].finish_reason is not None


def test_a_request_for_more_texts_than_are_free_is_refused(client, opened):
    with client.completions.create(prompt="Once", n=60, max_tokens=40, stream=True, model="tiny") as stream:
        next(iter(stream))
        with pytest.raises(openai.InternalServerError, match="64 texts at a time"):
            client.completions.create(prompt="Once", n=5, model="tiny")


def test_a_seed_makes_the_same_text_again(client):
    one, other = (client.completions.create(model="tiny", prompt="Once", max_tokens=10, seed=3) for _ in range(2))
    assert one.choices[0].text == other.choices[0].text


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"stop": ["x"] * 10_000}, "10000 stop sequences"),
        ({"max_tokens": CONTEXT}, "exceed the model's context of 64"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "'temperature' is \"hot\"; it must be a number"),
        ({"stop": 3}, "'stop' is 3; it must be a string or an array"),
        ({"stop": ""}, "stop sequence is empty"),
        ({"temperature": 10**400}, "too large"),
        ({"prompt": "x" * 20_000}, "20000 tokens"),  # so long that it is read on another thread
        ({"best_of": 2}, "'best_of' is not supported: leave it out, or set it to 1"),
        ({"n": 65}, "asks for 65 texts; it must be at least one, and at most 64"),
        ({"n": 0}, "asks for 0 texts"),
        ({"n": 10**30}, "at most 64"),
        ({"n": 1.5}, "'n' is 1.5; it must be a number"),
        ({"prompt": ["x"] * 65}, "has 65 prompts; it may have at most 64"),
        ({"prompt": ["x", "x" * CONTEXT]}, "has 64 tokens, and 16 more exceed the model's context of 64"),
        ({"prompt": ["x", [300]]}, "tokens"),
        ({"prompt": ["x", None]}, "must be a string"),
        ({"logprobs": 1}, "'logprobs'"),
        ({"logprobs": 0}, "'logprobs'"),
        ({"prompt": [300]}, "list of the model's tokens"),
    ],
)
def test_a_request_that_cannot_be_met_is_an_error_of_the_interface(client, fields, says):
    with pytest.raises(openai.BadRequestError, match=says) as found:
        client.completions.create(**{"prompt": "Once", "model": "tiny"} | fields)
    assert found.value.body["type"] == "invalid_request_error"


def test_models_tokens_and_messages_that_do_not_exist_are_refused(client):
    with pytest.raises(openai.NotFoundError, match="these do: 'tiny'"):
        client.completions.create(model="other", prompt="Once")
    with pytest.raises(openai.BadRequestError, match="no clowns"):
        client.chat.completions.create(model="tiny", messages=[{"role": "clown", "content": "Hi"}])
    for messages in ([], [{"content": "Hi"}], [{"role": {}, "content": "Hi"}]):
        with pytest.raises(openai.BadRequestError, match="each with a 'role'"):
            client.chat.completions.create(model="tiny", messages=messages)
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


def test_the_state_of_a_client_that_leaves_before_the_first_token_is_freed(client, opened):
    def until(count):
        deadline = time.monotonic() + 60
        while opened.server.stats().sequences != count and time.monotonic() < deadline:
            time.sleep(0.01)
        return opened.server.stats().sequences == count

    connection = http.client.HTTPConnection(client.base_url.host, client.base_url.port)
    with held(opened.server):
        connection.request(
            "POST", "/v1/completions", json.dumps({"prompt": "Once"} | ASKED), {"Authorization": "Bearer secret"}
        )
        assert until(1)
        connection.close()
        assert until(0)


OFF = {"frequency_penalty": 0, "logit_bias": {}, "best_of": 1, "response_format": {"type": "text"}}
MORE = {"repetition_penalty": 1.0, "min_p": 0.0, "min_tokens": 0, "ignore_eos": False, "stop_token_ids": []}


def test_parameters_are_refused_where_they_would_change_the_text(client):
    found = client.chat.completions.create(messages=MESSAGES, max_tokens=2, extra_body=OFF | MORE, **ASKED)
    assert found.usage.completion_tokens == 2
    changing = OFF | MORE | {"repetition_penalty": 1.1, "response_format": {"type": "json_object"}, "stop_token_ids": [3]}
    for name in ("presence_penalty", *OFF, *MORE):
        value = changing.get(name) if changing.get(name) != (OFF | MORE).get(name) else 2
        with pytest.raises(openai.BadRequestError, match=name):
            client.chat.completions.create(messages=MESSAGES, extra_body={name: value}, **ASKED)


def test_a_text_gets_the_tokens_that_the_context_has_room_for(client):
    found = client.completions.create(prompt="x" * (CONTEXT - 3), **ASKED)
    assert found.usage.completion_tokens == 4 or found.choices[0].finish_reason == "stop"


def test_a_request_of_more_than_a_megabyte_is_refused(client):
    with pytest.raises(openai.APIStatusError, match="at most 1048576") as found:
        client.completions.create(prompt="x" * (1 << 20), **ASKED)
    assert found.value.status_code == 413


@pytest.mark.parametrize("good", [0, 1])
def test_a_text_that_fails_is_an_error_and_never_a_short_text(client, opened, monkeypatch, caplog, good):
    whole = opened.text.generate_all

    def failing(prompts, wanted, **options):
        for _, piece in zip(range(good), whole(prompts, wanted, **options), strict=False):
            yield piece
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(opened.text, "generate_all", failing)
    asked = {"prompt": "Once", "max_tokens": 5, **ASKED}
    with pytest.raises(openai.InternalServerError, match="This text has failed"):
        client.completions.create(**asked)
    with pytest.raises(openai.APIError, match="This text has failed"):
        list(client.completions.create(stream=True, **asked))
    assert caplog.messages == ["A text has failed: ZeroDivisionError: a fault"] * 2


def test_a_server_that_ends_waits_for_the_text_of_a_client_that_has_left(opened, monkeypatch):
    whole, leave, ended = opened.text.generate_all, threading.Event(), []

    def slow(prompts, wanted, **options):
        yield next(whole(prompts, wanted, **options))
        leave.wait()
        ended.append(opened.accepted)
        yield from whole(prompts, wanted, **options)

    monkeypatch.setattr(opened.text, "generate_all", slow)
    later = threading.Timer(0.3, leave.set)
    with (
        NetworkServer([opened], Options(port=0, grpc_port=None)) as network,
        openai.OpenAI(base_url=f"{network.url}/v1", api_key="none", max_retries=0) as client,
    ):
        with client.completions.create(prompt="Once", max_tokens=40, stream=True, model="tiny") as stream:
            next(iter(stream))
        client.models.list()
        later.start()
    later.join()
    assert ended == [1]
    assert opened.accepted == 0


def refused(network, path, **fields):
    """Ask as no client of OpenAI does; return the status and the error."""
    asked = urllib.request.Request(network.url + path, json.dumps({"model": "tiny"} | fields).encode())
    with pytest.raises(urllib.error.HTTPError) as found:
        urllib.request.urlopen(asked, timeout=60)
    with found.value as answer:
        return answer.status, json.load(answer)["error"]["message"]


def test_faults_of_prompts_and_templates_are_errors_of_the_interface(running, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes((running[0].model.path.parent / "tokenizer.json").read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    model = served_model(*running, Tokenizer(tmp_path))
    with NetworkServer([model], Options(port=0, grpc_port=None)) as network:
        status, why = refused(network, "/v1/completions", prompt="\ud800")
        assert (status, "surrogates" in why) == (400, True)
        status, why = refused(network, "/v1/chat/completions", messages=[{"role": "user", "content": "Hi"}])
        assert (status, "template of" in why) == (500, True)


def test_conversations_that_wait_for_the_template_of_one_model_do_not_hold_up_another_model(running, opened, monkeypatch):
    slow, go, chat = Tokenizer(running[0].model.path.parent), threading.Event(), Tokenizer.chat

    def waiting(self, messages):
        if self is slow:
            go.wait(60)
        return chat(self, messages)

    monkeypatch.setattr(Tokenizer, "chat", waiting)
    other = served_model(*running, slow, name="slow")
    with (
        NetworkServer([opened, other], Options(port=0, grpc_port=None)) as network,
        openai.OpenAI(base_url=f"{network.url}/v1", api_key="none", max_retries=0) as client,
        ThreadPoolExecutor(4) as threads,
    ):

        def ask(name):
            return client.chat.completions.create(model=name, messages=MESSAGES, temperature=0, max_tokens=2).choices[0].message

        held = [threads.submit(ask, "slow") for _ in range(4)]
        try:
            found = ask("tiny")
            assert not any(one.done() for one in held)
        finally:
            go.set()
        assert [one.result(60) for one in held] == [found] * 4
