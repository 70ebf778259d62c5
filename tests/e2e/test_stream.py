"""The native protocol over a real socket."""
import asyncio
import json

import pytest
import websockets

from conftest import HANG
from frames import connect, finish, receive, send, text


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, HANG))


def test_one_request_from_accepted_to_done(sim):
    async def body():
        async with connect(sim) as socket:
            assert socket.subprotocol == "takt.v1"
            await send(socket, type="generate", id="a", prompt="hello", max_tokens=10, ignore_eos=True, echo_tokens=True)
            return await finish(socket, "a")
    frames = run(body())
    assert [frame["type"] for frame in frames[:1] + frames[-1:]] == ["accepted", "done"]
    assert all(frame["type"] == "delta" for frame in frames[1:-1])
    assert frames[-1]["reason"] == "length"
    assert frames[-1]["usage"]["completion_tokens"] == 10
    assert sum(len(frame["tokens"]) for frame in frames[1:-1]) == 10
    indices = [frame["index"] for frame in frames[1:-1]]
    assert indices == sorted(set(indices)) and indices[0] == 0
    assert frames[0]["prompt_tokens"] == frames[-1]["usage"]["prompt_tokens"]


def test_many_requests_on_one_socket_each_end_once(sim):
    async def body():
        async with connect(sim) as socket:
            names = [f"r{i}" for i in range(40)]
            for name in names:
                await send(socket, type="generate", id=name, prompt="x " + name, max_tokens=20, ignore_eos=True)
            seen, ends = {name: [] for name in names}, 0
            while ends < len(names):
                frame = await receive(socket)
                seen[frame["id"]].append(frame["type"])
                ends += frame["type"] in ("done", "error")
            return seen
    for name, types in run(body()).items():
        assert types[0] == "accepted" and types[-1] == "done", (name, types)
        assert set(types[1:-1]) == {"delta"}


def test_the_same_seed_gives_the_same_text(real):
    async def body(seed):
        async with connect(real) as socket:
            await send(socket, type="generate", id="a", prompt="Once upon a time", max_tokens=16, seed=seed)
            return await finish(socket, "a")
    first, second, other = run(body(5)), run(body(5)), run(body(6))
    assert text(first) == text(second) and first[-1]["seed"] == 5
    assert text(first) != text(other)


def test_a_real_answer(real):
    async def body():
        async with connect(real) as socket:
            message = {"role": "user", "content": "What is the capital of France?"}
            await send(socket, type="generate", id="a", messages=[message], max_tokens=20, temperature=0, logprobs=2)
            return await finish(socket, "a")
    frames = run(body())
    assert "Paris" in text(frames) and frames[-1]["reason"] == "stop"
    entries = [entry for frame in frames[1:-1] for entry in frame["logprobs"]]
    assert all(len(entry["top"]) == 2 and entry["logprob"] == entry["top"][0]["logprob"] for entry in entries)


@pytest.mark.parametrize("frame", [
    "", "not json", "[]", "null", '{"type":"generate"}', '{"type":"nope","id":"a"}', "[" * 5000,
    '{"type":"generate","id":"a"}', '{"type":"generate","id":"a","prompt":"x","temperature":-1}',
    '{"type":"generate","id":"a","prompt":"x","max_tokens":1e999}', '{"type":"generate","id":"a","prompt":5}',
    '{"type":"generate","id":"a","tokens":[999999999]}', '{"type":"generate","id":"a","prompt":""}',
    '{"type":"generate","id":"a","prompt":"x","logit_bias":{"99999999":1}}', b"binary"])
def test_a_bad_frame_gets_one_error_and_the_socket_lives(sim, frame):
    async def body():
        async with connect(sim) as socket:
            await socket.send(frame)
            error = await receive(socket)
            await send(socket, type="generate", id="b", prompt="x", max_tokens=1, ignore_eos=True)
            return error, await finish(socket, "b")
    error, frames = run(body())
    assert error["type"] == "error" and error["code"] == "bad_request" and error["message"]
    assert frames[-1]["type"] == "done"


def test_closing_codes_for_long_and_broken_messages(sim):
    async def body(message):
        async with connect(sim) as socket:
            # The server need not read it all to know; the close may come while the client still sends.
            with pytest.raises(websockets.ConnectionClosed) as closed:
                await socket.send(message)
                while True:
                    await socket.recv()
            return closed.value.rcvd.code
    assert run(body("x" * (4096 * 1024 + 1))) == 1009


def test_a_fragmented_message_is_one_frame(sim):
    async def body():
        async with connect(sim) as socket:
            whole = json.dumps({"type": "generate", "id": "a", "prompt": "x", "max_tokens": 1, "ignore_eos": True})
            await socket.send(iter([whole[:5], whole[5:20], whole[20:]]))
            return await finish(socket, "a")
    assert run(body())[-1]["type"] == "done"


def test_a_duplicate_id_leaves_the_live_request_alone(slow_sim):
    async def body():
        async with connect(slow_sim) as socket:
            await send(socket, type="generate", id="a", prompt="x", max_tokens=4000, ignore_eos=True, echo_tokens=True)
            await send(socket, type="generate", id="a", prompt="y", max_tokens=30, ignore_eos=True)
            await send(socket, type="generate", id="a", prompt="y", temperature=-1)
            errors, frames, after = [], [], 0
            while after < 5:        # deltas behind both errors
                frame = await receive(socket)
                (frames if frame["id"] == "a" else errors).append(frame)
                after += len(errors) == 2 and frame["type"] == "delta"
            await send(socket, type="cancel", id="a")
            frames += await finish(socket, "a")
            await send(socket, type="generate", id="a", prompt="x", max_tokens=1, ignore_eos=True)
            return errors, frames, await finish(socket, "a")
    errors, frames, again = run(body())
    assert [(e["id"], e["ref"], e["code"]) for e in errors] == [(None, "a", "duplicate_id"), (None, "a", "bad_request")]
    indices = [token for frame in frames[1:-1] for token in range(frame["index"], frame["index"] + len(frame["tokens"]))]
    assert frames[-1]["reason"] == "cancelled" and indices == list(range(len(indices)))
    assert again[-1]["type"] == "done"


def test_cancel_ends_with_reason_cancelled_and_frees_blocks(slow_sim):
    async def body():
        async with connect(slow_sim) as socket:
            await send(socket, type="cancel", id="nobody")
            await send(socket, type="generate", id="a", prompt="x", max_tokens=4000, ignore_eos=True)
            while (await receive(socket))["type"] != "delta":
                pass
            await send(socket, type="cancel", id="a")
            await send(socket, type="generate", id="q", prompt="x", max_tokens=4000, ignore_eos=True)
            await send(socket, type="cancel", id="q")
            ends = {}
            while len(ends) < 2:
                frame = await receive(socket)
                if frame["type"] in ("done", "error"):
                    ends[frame["id"]] = frame
            return ends
    ends = run(body())
    assert ends["a"]["reason"] == "cancelled" and ends["q"]["reason"] == "cancelled"
    assert ends["a"]["usage"]["completion_tokens"] < 4000
    slow_sim.wait_for("takt_kv_blocks_used", 0)


def test_a_closed_socket_cancels_its_requests(slow_sim):
    async def body():
        async with connect(slow_sim) as socket:
            for name in "abc":
                await send(socket, type="generate", id=name, prompt="x", max_tokens=4000, ignore_eos=True)
            while (await receive(socket))["type"] != "delta":
                pass
    run(body())
    slow_sim.wait_for("takt_requests_running", 0)
    slow_sim.wait_for("takt_kv_blocks_used", 0)
    slow_sim.wait_for("takt_websockets", 0)


def test_credit_is_never_overdrawn_and_done_needs_none(sim):
    async def body():
        async with connect(sim) as socket:
            await send(socket, type="generate", id="a", prompt="x", max_tokens=60, ignore_eos=True, credit=5, echo_tokens=True)
            count, frames = 0, []
            for grant in (7, 20, 28):
                limit = {7: 5, 20: 12, 28: 32}[grant]
                while count < limit:
                    frame = await receive(socket)
                    frames.append(frame)
                    count += len(frame.get("tokens", []))
                assert count == limit
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(socket.recv(), 0.2)
                await send(socket, type="credit", id="a", tokens=grant)
            frames += await finish(socket, "a")
            return frames
    frames = run(body())
    assert sum(len(f.get("tokens", [])) for f in frames) == 60 and frames[-1]["reason"] == "length"


def test_cancel_while_paused_for_credit(sim):
    async def body():
        async with connect(sim) as socket:
            await send(socket, type="generate", id="a", prompt="x", max_tokens=500, ignore_eos=True, credit=0)
            assert (await receive(socket))["type"] == "accepted"
            await send(socket, type="cancel", id="a")
            return await receive(socket)
    assert run(body())["reason"] == "cancelled"
    sim.wait_for("takt_kv_blocks_used", 0)


def test_subprotocols_and_paths(sim):
    async def body():
        async with connect(sim, subprotocols=None) as plain:
            assert plain.subprotocol is None
        with pytest.raises(websockets.InvalidStatus) as other:
            await connect(sim, subprotocols=["other.v1"])
        with pytest.raises(websockets.InvalidStatus) as path:
            await websockets.connect(sim.ws + "/v1/nothing")
        with pytest.raises(websockets.InvalidStatus) as origin:
            await connect(sim, origin="https://evil.example")
        async with connect(sim, origin=sim.http) as own:
            assert own.subprotocol == "takt.v1"
        return [e.value.response.status_code for e in (other, path, origin)]
    assert run(body()) == [400, 404, 403]


def test_a_thousand_random_aborts_leave_nothing_behind(slow_sim):
    import random
    chance = random.Random(3)

    async def one():
        async with connect(slow_sim, max_queue=None) as socket:
            for i in range(10):
                await send(socket, type="generate", id=str(i), prompt="x" * chance.randrange(1, 300), max_tokens=200,
                           ignore_eos=True)
            for i in range(10):
                if chance.random() < 0.5:
                    await send(socket, type="cancel", id=str(i))
                if chance.random() < 0.3:
                    await receive(socket)
            if chance.random() < 0.5:
                socket.transport.abort()

    async def body():
        for _ in range(10):
            await asyncio.gather(*(one() for _ in range(10)), return_exceptions=True)
    run(body())
    slow_sim.wait_for("takt_requests_running", 0, 10)
    slow_sim.wait_for("takt_requests_waiting", 0)
    slow_sim.wait_for("takt_kv_blocks_used", 0)
    accepted = slow_sim.metric("takt_requests_accepted_total")
    assert accepted > 0 and accepted == slow_sim.metric("takt_requests_finished_total")
