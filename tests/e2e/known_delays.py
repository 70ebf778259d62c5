"""A server whose every delay is known: both doors that `takt bench` can load, without a model behind them."""
import asyncio
import json
import threading
import time

import websockets

TTFT = 0.08
GAP = 0.025
LATE_GAP = 0.2      # before the token with this index
LATE_INDEX = 5


async def tokens(count):
    """Yields each token's index when it is due."""
    loop = asyncio.get_running_loop()
    due = loop.time() + TTFT
    for index in range(count):
        if index > 0:
            due += LATE_GAP if index == LATE_INDEX else GAP
        await asyncio.sleep(due - loop.time())
        yield index


class KnownDelays:
    """Runs on a thread of its own; `ws` and `http` are its addresses, `seen` the requests' bodies, `at_once` how many were live as each
    of them came, `delays` what each of its tokens really took on this machine, in ms: the first from the request, others from the one
    before."""

    def __init__(self):
        self.forget()
        self.ready = threading.Event()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        assert self.ready.wait(10)

    def _run(self):
        self.loop.run_until_complete(self._serve())

    async def _serve(self):
        self.end = asyncio.Event()
        async with websockets.serve(self._stream, "127.0.0.1", 0, subprotocols=["takt.v1"]) as native:
            plain = await asyncio.start_server(self._http, "127.0.0.1", 0)
            self.ws = f"ws://127.0.0.1:{native.sockets[0].getsockname()[1]}"
            self.http = f"http://127.0.0.1:{plain.sockets[0].getsockname()[1]}/v1"
            self.ready.set()
            await self.end.wait()
            plain.close()

    def forget(self):
        self.seen, self.at_once, self.live = [], [], 0
        self.delays = {"ttft": [], "itl": []}

    async def tokens(self, request):
        """The indices of a request's tokens, each when it is due, into the books."""
        self.seen.append(request)
        self.live += 1
        self.at_once.append(self.live)
        last = time.monotonic()
        try:
            async for index in tokens(request["max_tokens"]):
                now = time.monotonic()
                self.delays["itl" if index else "ttft"].append((now - last) * 1e3)
                last = now
                yield index
        finally:
            self.live -= 1

    def stop(self):
        self.loop.call_soon_threadsafe(self.end.set)
        self.thread.join(10)

    async def _stream(self, socket):
        async for text in socket:
            frame = json.loads(text)
            await socket.send(json.dumps({"type": "accepted", "id": frame["id"], "prompt_tokens": len(frame["tokens"])}))
            async for index in self.tokens(frame):
                await socket.send(json.dumps({"type": "delta", "id": frame["id"], "index": index, "text": "x", "tokens": [1]}))
            await socket.send(json.dumps({"type": "done", "id": frame["id"], "reason": "length"}))

    async def _http(self, reader, writer):
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = [int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
                body = await reader.readexactly(length[0]) if length else b""
                if head.startswith(b"GET"):
                    text = b'{"object":"list","data":[{"id":"known"}]}'
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
                    continue
                request = json.loads(body)
                await self._events(writer, request)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    async def _events(self, writer, request):
        if request["max_tokens"] == 13:
            self.seen.append(request)
            text = b'{"error":{"code":"queue_full","message":"full"}}'
            writer.write(b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
            return

        def event(data):
            text = ("data: " + (data if isinstance(data, str) else json.dumps(data)) + "\n\n").encode()
            writer.write(b"%x\r\n%s\r\n" % (len(text), text))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        chat = "messages" in request
        async for _ in self.tokens(request):
            event({"choices": [{"index": 0, "delta": {"content": "x"}} if chat else {"index": 0, "text": "x"}]})
            await writer.drain()
        count = len(request.get("prompt", [])) or 9
        event({"choices": [], "usage": {"prompt_tokens": count, "completion_tokens": request["max_tokens"]}})
        event("[DONE]")
        writer.write(b"0\r\n\r\n")
