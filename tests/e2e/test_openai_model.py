"""The official OpenAI client on the default model: every answer held against the client's own models, its helpers, its sessions."""
import asyncio

import pytest

from conftest import HANG

openai = pytest.importorskip("openai")
session = pytest.importorskip("openai.lib.responses_websocket")

QUESTION = "What is the capital of France?"
MESSAGES = [{"role": "user", "content": QUESTION}]
LIMITS = session.ResponsesWebSocketLimits(max_lanes=8, max_events_per_lane=1000, max_events=4000, max_bytes_per_lane=1 << 22, max_bytes=1 << 24)


@pytest.fixture
def client(real):
    """Whatever comes is held against the client's models: a missing field raises here, and elsewhere only in users' code, later."""
    return openai.OpenAI(base_url=real.http + "/v1", api_key="none", max_retries=0, _strict_response_validation=True)


@pytest.fixture
def name(client):
    names = [model.id for model in client.models.list().data]
    assert len(names) == 1 and client.models.retrieve(names[0]).owned_by == "takt"
    return names[0]


def test_each_answer_is_whole_by_the_clients_own_models(client, name):
    more = {"ignore_eos": True}
    whole = client.chat.completions.create(model=name, messages=MESSAGES, max_tokens=6, n=2, logprobs=True, top_logprobs=3, seed=1, extra_body=more)
    assert len(whole.choices) == 2 and all(len(entry.top_logprobs) == 3 for entry in whole.choices[0].logprobs.content)
    chunks = list(client.chat.completions.create(model=name, messages=MESSAGES, max_tokens=6, seed=1, stream=True, extra_body=more,
                                                 stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]
    assert client.chat.completions.create(model=name, messages=MESSAGES, max_tokens=3, tools=tools).usage.completion_tokens > 0
    text = client.completions.create(model=name, prompt="The capital of France is", max_tokens=3, temperature=0, logprobs=2)
    assert "Paris" in text.choices[0].text and len(text.choices[0].logprobs.tokens) == 3
    answer = client.responses.create(model=name, input=[{"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}],
                                     instructions="Be brief.", temperature=0, metadata={"a": "b"}, max_output_tokens=5, extra_body=more)
    assert answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens" and answer.metadata == {"a": "b"}


def test_the_helpers_that_collect_a_stream_are_content(client, name):
    with client.chat.completions.stream(model=name, messages=MESSAGES, temperature=0, max_tokens=30) as stream:
        kinds = [event.type for event in stream]
        assert "content.delta" in kinds and "Paris" in stream.get_final_completion().choices[0].message.content
    with client.responses.stream(model=name, input=QUESTION, temperature=0, max_output_tokens=30) as stream:
        events = list(stream)
        assert events[-1].type == "response.completed" and "Paris" in stream.get_final_response().output_text


def test_lanes_of_the_clients_session_each_have_their_own_answer_and_their_own_past(client, name):
    questions = {"a": QUESTION, "b": "Name three colours.", None: "What is two and two?"}
    fields = dict(type="response.create", model=name, temperature=0, max_output_tokens=20)
    alone = {question: client.responses.create(model=name, input=question, temperature=0, max_output_tokens=20).output_text
             for question in questions.values()}
    with client.responses.connect() as connection, session.ResponsesWebSocketSession(connection, limits=LIMITS) as several:
        lanes = {lane: several.lane(lane) if lane else several.default for lane in questions}
        for lane, question in questions.items():
            lanes[lane].send({**fields, "input": question})
        first = {lane: lanes[lane].get_final_response(timeout=HANG) for lane in questions}
        assert {lane: answer.output_text for lane, answer in first.items()} == {lane: alone[question] for lane, question in questions.items()}
        # Each goes on where it stood, at once again; one takes up another lane's past.
        for lane, past in (("a", "a"), ("b", "b"), (None, "a")):
            lanes[lane].send({**fields, "input": "And of Spain?", "previous_response_id": first[past].id})
        second = {lane: lanes[lane].get_final_response(timeout=HANG) for lane in questions}
        assert second["a"].output_text == second[None].output_text != second["b"].output_text
        for lane, past in (("a", "a"), ("b", "b"), (None, "a")):
            assert second[lane].previous_response_id == first[past].id and second[lane].usage.input_tokens > first[past].usage.input_tokens
        assert len({answer.id for answer in [*first.values(), *second.values()]}) == 6


def test_a_past_ends_with_its_connection(real, name):
    async def body():
        client = openai.AsyncOpenAI(base_url=real.http + "/v1", api_key="none")
        async with client.responses.connect() as one, client.responses.connect() as other:
            async def last_event(connection, **fields):
                await connection.response.create(model=name, max_output_tokens=4, **fields)
                async for event in connection:
                    if event.type in ("response.completed", "response.incomplete", "response.failed", "error"):
                        return event
            first = (await last_event(one, input="one")).response
            refused = await last_event(other, input="two", previous_response_id=first.id)
            assert refused.type == "error" and refused.error.code == "not_found" and refused.error.param == "previous_response_id"
            assert (await last_event(one, input="two", previous_response_id=first.id)).response.previous_response_id == first.id
            assert (await last_event(other, input="three")).type != "error"      # an error ends no connection
    asyncio.run(asyncio.wait_for(body(), HANG))
