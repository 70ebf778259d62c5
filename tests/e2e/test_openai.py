"""The official OpenAI client against the real server, unchanged."""
import asyncio
import signal
import subprocess
import sys

import pytest
import websockets

from conftest import HANG, ROOT, SIM, Server

openai = pytest.importorskip("openai")

FIELDS = {"max_output_tokens": 5, "extra_body": {"ignore_eos": True}}


@pytest.fixture
def client(sim):
    return openai.OpenAI(base_url=sim.http + "/v1", api_key="none", max_retries=0)


def test_chat_whole_and_streamed(client):
    arguments = dict(model="sim", messages=[{"role": "user", "content": "Hi"}], max_tokens=5, seed=1,
                     extra_body={"ignore_eos": True})
    whole = client.chat.completions.create(**arguments)
    assert whole.usage.completion_tokens == 5 and whole.choices[0].finish_reason == "length"
    chunks = list(client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **arguments))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 5


def test_completions_with_logprobs(client):
    answer = client.completions.create(model="sim", prompt=["a", "b"], max_tokens=3, logprobs=1,
                                       extra_body={"ignore_eos": True})
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert len(answer.choices[0].logprobs.token_logprobs) == 3


def test_errors_become_the_clients_exceptions(client):
    with pytest.raises(openai.NotFoundError) as wrong:
        client.chat.completions.create(model="other", messages=[{"role": "user", "content": "Hi"}])
    assert wrong.value.param == "model" and wrong.value.request_id
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="sim", messages=[{"role": "user", "content": "Hi"}], temperature=-1)


def test_responses_over_http(client):
    whole = client.responses.create(model="sim", input="Hi", **FIELDS)
    assert whole.status == "incomplete" and whole.output_text and whole.usage.output_tokens == 5
    names = [event.type for event in client.responses.create(model="sim", input="Hi", stream=True, **FIELDS)]
    assert names[0] == "response.created" and names[-1] == "response.incomplete"
    assert "response.output_text.delta" in names


def until_end(connection):
    events = []
    for event in connection:
        events.append(event)
        if event.type in ("response.completed", "response.incomplete", "response.failed", "error"):
            return events


def test_responses_over_websocket_keep_the_conversation(client):
    with client.responses.connect() as connection:
        connection.response.create(model="sim", input="one", max_output_tokens=4)
        first = until_end(connection)
        assert [event.sequence_number for event in first] == list(range(len(first)))
        last = first[-1].response
        connection.response.create(model="sim", input="two", max_output_tokens=4, previous_response_id=last.id)
        second = until_end(connection)[-1].response
        assert second.previous_response_id == last.id
        assert second.usage.input_tokens > last.usage.input_tokens
        connection.response.create(model="sim", input="x", previous_response_id="resp_none")
        assert until_end(connection)[-1].error.code == "not_found"
        connection.response.create(model="other", input="x")
        assert until_end(connection)[-1].error.param == "model"


def test_responses_over_websocket_async(sim):
    async def body():
        client = openai.AsyncOpenAI(base_url=sim.http + "/v1", api_key="none")
        async with client.responses.connect() as connection:
            await connection.response.create(model="sim", input="one", max_output_tokens=4)
            async for event in connection:
                if event.type in ("response.completed", "response.incomplete"):
                    return event.response
    assert asyncio.run(asyncio.wait_for(body(), HANG)).output_text


def test_lanes_run_side_by_side_and_each_event_names_its_own(slow_sim):
    async def body():
        client = openai.AsyncOpenAI(base_url=slow_sim.http + "/v1", api_key="none")
        async with client.responses.connect() as connection:
            for lane in ("a", "b"):
                await connection.send({"type": "response.create", "model": "sim", "input": "one", "max_output_tokens": 400, "ignore_eos": True,
                                       "stream_id": lane})
            await connection.response.create(model="sim", input="x", stream_id="a")
            events, ends = [], 0
            async for event in connection:
                events.append(event)
                ends += event.type in ("response.completed", "response.incomplete")
                if ends == 2:
                    return events
    events = asyncio.run(asyncio.wait_for(body(), HANG))
    refused = [event for event in events if event.type == "error"]
    assert [(event.stream_id, event.status) for event in refused] == [("a", 400)] and "live" in refused[0].error.message
    lanes = {lane: [event for event in events if event.stream_id == lane and event.type != "error"] for lane in ("a", "b")}
    assert len(lanes["a"]) + len(lanes["b"]) + 1 == len(events)
    for lane in lanes.values():
        assert [event.sequence_number for event in lane] == list(range(len(lane))) and lane[0].type == "response.created"
        assert len({event.response.id for event in lane if hasattr(event, "response")}) == 1
    order = [event.stream_id for event in events if event.type == "response.output_text.delta"]
    assert order != sorted(order) and order != sorted(order, reverse=True)      # at once, not one after the other


def test_a_draining_server_ends_the_iterator_of_the_client_quietly():
    server = Server(*SIM)
    with openai.OpenAI(base_url=server.http + "/v1", api_key="none").responses.connect() as connection:
        connection.response.create(model="sim", input="one", max_output_tokens=4)
        assert until_end(connection)
        server.process.send_signal(signal.SIGTERM)
        assert list(connection) == []          # 1001 ends it; any other code would raise
    assert server.process.wait(HANG) == 0


def test_a_client_that_may_reconnect_is_back_after_a_restart():
    """The close code is one of those that the client comes back from, and what it asks meanwhile is answered by the next server."""
    server = Server(*SIM)
    servers, codes = [server], []

    def restart(event):
        codes.append(event.close_code)
        if len(servers) == 1:
            assert server.process.wait(HANG) == 0
            servers.append(Server(*SIM, "--set", f"server.port={server.port}"))
            connection.response.create(model="sim", input="two", max_output_tokens=4)
    client = openai.OpenAI(base_url=server.http + "/v1", api_key="none")
    with client.responses.connect(on_reconnecting=restart) as connection:
        connection.response.create(model="sim", input="one", max_output_tokens=4)
        assert until_end(connection)
        server.process.send_signal(signal.SIGTERM)
        assert until_end(connection)[-1].response.output_text
    assert codes == [1001] and servers[1].stop() == 0


def test_what_is_over_a_limit_is_refused_before_the_upgrade_and_no_open_socket_is_closed_for_it():
    server = Server(*SIM, "--set", "server.max_connections=1")
    client = openai.OpenAI(base_url=server.http + "/v1", api_key="none")
    with client.responses.connect() as connection:
        with pytest.raises(websockets.InvalidStatus) as refused:
            client.responses.connect().enter()
        assert refused.value.response.status_code == 503 and refused.value.response.headers["Retry-After"]
        connection.response.create(model="sim", input="one", max_output_tokens=4)
        assert until_end(connection)[-1].response.output_text
    assert server.stop() == 0


def test_the_client_retries_what_may_be_tried_again_and_nothing_else():
    """429 by a full queue says when and that it may be tried again; the client's own retry then succeeds."""
    server = Server("--set", "device.kind=sim", "--set", "sim.scale=1", "--set", "scheduler.max_running=1",
                    "--set", "scheduler.max_waiting=1", "--set", "server.drain_seconds=1")
    arguments = dict(model="sim", prompt="x", max_tokens=40, extra_body={"ignore_eos": True})

    async def body():
        patient = openai.AsyncOpenAI(base_url=server.http + "/v1", api_key="none", max_retries=1000)
        answers = await asyncio.gather(*(patient.completions.create(**arguments) for _ in range(4)))
        assert all(answer.usage.completion_tokens == 40 for answer in answers)
        hasty = openai.AsyncOpenAI(base_url=server.http + "/v1", api_key="none", max_retries=0)
        several = await asyncio.gather(*(hasty.completions.create(**arguments) for _ in range(5)), return_exceptions=True)
        refused = [error for error in several if isinstance(error, openai.RateLimitError)]
        assert refused and all(error.code == "queue_full" for error in refused)
    asyncio.run(asyncio.wait_for(body(), 300))      # a client's pauses grow to 8 s, on a busy machine it needs several
    assert server.metric("takt_requests_refused_total") > 0
    assert server.stop() == 0


def test_the_example_clients_run_as_written(real):
    for script, base in (("stream.py", real.ws), ("openai_chat.py", real.http + "/v1")):
        result = subprocess.run([sys.executable, ROOT / "examples/clients" / script, base], capture_output=True, text=True,
                                timeout=HANG)
        assert result.returncode == 0 and len(result.stdout) > 20, result.stderr
