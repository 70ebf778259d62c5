"""Speaking the native protocol from tests."""
import json

import websockets

from conftest import HANG


def connect(server, **arguments):
    arguments.setdefault("subprotocols", ["takt.v1"])
    arguments.setdefault("open_timeout", HANG)
    return websockets.connect(server.ws + "/v1/stream", **arguments)


async def send(socket, **frame):
    await socket.send(json.dumps(frame))


async def receive(socket):
    return json.loads(await socket.recv())


async def finish(socket, request_id):
    """All frames of a request up to its terminal one; other requests' frames are dropped."""
    frames = []
    while not frames or frames[-1]["type"] not in ("done", "error"):
        frame = await receive(socket)
        if frame["id"] == request_id:
            frames.append(frame)
    return frames


def text(frames):
    return "".join(frame["text"] for frame in frames if frame["type"] == "delta")
