"""One answer over takt's native WebSocket, with the `websockets` package: stream.py [ws://HOST:PORT]."""
import asyncio
import json
import sys

import websockets


async def main(base):
    async with websockets.connect(base + "/v1/stream", subprotocols=["takt.v1"]) as socket:
        message = {"role": "user", "content": "Name three rivers."}
        await socket.send(json.dumps({"type": "generate", "id": "1", "messages": [message], "max_tokens": 60, "temperature": 0}))
        async for text in socket:
            frame = json.loads(text)
            if frame["type"] == "delta":
                print(frame["text"], end="", flush=True)
            elif frame["type"] in ("done", "error"):
                print("\n", frame)
                return


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:8480"))
