#!/usr/bin/env python3
"""Starts `takt serve` with a model and asks what the page asks: the page itself, then one generation over its WebSocket.

  scripts/serve_check.py TAKT MODEL [section.key=value...]

Prints a JSON object; exit 1 where an answer is missing. Needs aiohttp.
"""

import asyncio
import json
import subprocess
import sys
import time

import aiohttp

PORT = 18973


async def ask():
    base = f"http://127.0.0.1:{PORT}"
    found = {}
    async with aiohttp.ClientSession() as session:
        for _ in range(600):
            try:
                async with session.get(base + "/health/ready") as r:
                    if r.status == 200:
                        break
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)
        async with session.get(base + "/") as r:
            text = await r.text()
            found["page"] = dict(status=r.status, bytes=len(text), is_html="<html" in text.lower())
        async with session.ws_connect(base + "/v1/stream", protocols=["takt.v1"]) as ws:
            await ws.send_json(dict(type="generate", id="1", messages=[dict(role="user", content="Hello")], max_tokens=32, temperature=0,
                                    ignore_eos=True, echo_tokens=True))
            tokens = 0
            async for message in ws:
                frame = json.loads(message.data)
                tokens += len(frame.get("tokens", []))
                if frame["type"] in ("done", "error"):
                    found["last"] = frame
                    break
            found["tokens"] = tokens
        async with session.get(base + "/metrics") as r:
            text = await r.text()
            found["steps_total"] = [line for line in text.splitlines() if line.startswith("takt_steps_total")]
    return found


def main():
    takt, model, settings = sys.argv[1], sys.argv[2], sys.argv[3:]
    command = [takt, "serve", "--model", model, "--set", f"server.port={PORT}"]
    for item in settings:
        command += ["--set", item]
    begin = time.monotonic()
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        found = asyncio.run(ask())
    finally:
        server.terminate()
        log = server.communicate(timeout=30)[1]
    found["seconds"] = round(time.monotonic() - begin, 2)
    found["exit"] = server.returncode
    found["log"] = log.splitlines()[-6:]
    good = found["page"]["status"] == 200 and found["page"]["is_html"] and found.get("last", {}).get("type") == "done" and found["tokens"] == 32
    print(json.dumps(found | {"passed": good}, indent=1))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
