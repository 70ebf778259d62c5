"""The soak of bench/soak.py for some minutes: memory flat, books balanced, every answer given (TAKT_SOAK_MINUTES asks for longer); and
what it makes of connections that fail under its clients."""
import asyncio
import os
import subprocess
import sys

import pytest

from conftest import PROGRAM, ROOT

sys.path.insert(0, str(ROOT / "bench"))
import soak   # noqa: E402


@pytest.mark.long
def test_mixed_load_leaves_memory_flat_and_the_books_balanced():
    minutes = float(os.environ.get("TAKT_SOAK_MINUTES", "3"))
    result = subprocess.run([sys.executable, ROOT / "bench/soak.py", PROGRAM, "--minutes", str(minutes)], capture_output=True, text=True,
                            timeout=minutes * 60 + 300)
    assert result.returncode == 0, result.stdout + result.stderr


def load_against(answer, client):
    """What a client counts in a third of a second against a server that answers so, and closes."""
    async def serve(reader, writer):
        await reader.read(100)
        writer.write(answer)
        writer.close()

    async def body():
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            load = soak.Load(server.sockets[0].getsockname()[1], None, 0.3, 0)
            await load.keep_up(getattr(load, client), 1)
            return load
    return asyncio.run(body())


def faults(load):
    books = dict.fromkeys(("takt_requests_accepted_total", "takt_requests_finished_total", "takt_requests_refused_total", "takt_requests_running",
                           "takt_requests_waiting", "takt_generated_tokens_total", "takt_preemptions_total", "takt_kv_blocks_used"), 0)
    load.health_ms.append(1)
    found = soak.judge(load, [1] * 8, {"idle_before": 1, "idle_after": 1}, books, [], 0)
    assert found["failed_connections"] == load.failed
    return found["faults"]


@pytest.mark.parametrize("reason", ["streams: InvalidMessage: ", "health: ConnectionError: closed without an answer"])
def test_connections_that_fail_are_counted_by_client_and_reason_and_few_are_no_fault(reason):
    load = load_against(b"", reason.split(":")[0])
    assert len(load.failed) == 1 and next(iter(load.failed)).startswith(reason), load.failed
    count = sum(load.failed.values())
    load.counts["http 200"] = 100 * count - 1
    assert faults(load) == [f"{count} connections failed, beside {100 * count - 1} exchanges"]
    load.counts["http 200"] = 100 * count
    assert faults(load) == []


def test_a_refusal_is_the_servers_answer_and_no_failed_connection():
    with pytest.raises(soak.websockets.InvalidStatus):
        load_against(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", "streams")
