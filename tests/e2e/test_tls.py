"""TLS with a certificate made here, and certificates that cannot be used."""
import asyncio
import json
import socket
import ssl
import subprocess
import time
import urllib.request

import pytest
import websockets

from conftest import HANG, PROGRAM, ROOT, SIM, Server
from frames import finish, send, text


def make_certificate(folder, name):
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-out", cert, "-keyout", key],
                   check=True, capture_output=True)
    return cert, key


def tls_options(cert, key):
    return ["--set", f"server.tls_cert={cert}", "--set", f"server.tls_key={key}"]


class TlsServer(Server):
    @property
    def http(self):
        return f"https://127.0.0.1:{self.port}"

    def metric(self, name):
        body = urllib.request.urlopen(self.http + "/metrics", timeout=HANG, context=self.context).read().decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in body.splitlines() if line.startswith((name + " ", name + "{")))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("tls"), "server")


@pytest.fixture(scope="module")
def secure(certificate):
    server = TlsServer("--set", "device.kind=sim", "--set", "server.header_seconds=2", *tls_options(*certificate))
    server.context = ssl.create_default_context(cafile=certificate[0])
    yield server
    assert server.stop() == 0


def test_http_over_tls(secure):
    body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "ignore_eos": True}).encode()
    for _ in range(2):
        request = urllib.request.Request(secure.http + "/v1/chat/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=HANG, context=secure.context) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 5
    assert urllib.request.urlopen(secure.http + "/", timeout=HANG, context=secure.context).status == 200
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(secure.http + "/", timeout=HANG, context=ssl.create_default_context())


def test_a_stream_over_tls_in_both_directions(secure):
    async def body():
        async with websockets.connect(f"wss://localhost:{secure.port}/v1/stream", subprotocols=["takt.v1"], ssl=secure.context,
                                      origin=f"https://localhost:{secure.port}") as stream:
            await send(stream, type="generate", id="a", prompt="x" * 200000, max_tokens=20, ignore_eos=True, temperature=0)
            await send(stream, type="generate", id="b", prompt="x", max_tokens=2000, ignore_eos=True)
            frames = await finish(stream, "a")
            await send(stream, type="cancel", id="b")
            return frames, await finish(stream, "b")
    one, other = asyncio.run(asyncio.wait_for(body(), HANG))
    assert one[-1]["type"] in ("done", "error") and other[-1]["reason"] == "cancelled"


def test_plain_bytes_and_silence_on_a_tls_port_do_no_harm(secure):
    with socket.create_connection(("127.0.0.1", secure.port)) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        plain.settimeout(HANG)
        assert not plain.recv(100).startswith(b"HTTP")
    begin = time.monotonic()
    with socket.create_connection(("127.0.0.1", secure.port)) as silent:
        silent.settimeout(HANG)
        assert silent.recv(1) == b"" and time.monotonic() - begin > 1
    secure.wait_for("takt_connections", 1)


def test_a_tls_client_that_leaves_frees_its_request(secure):
    body = b'{"prompt":"x","max_tokens":4000,"ignore_eos":true}'
    raw = socket.create_connection(("127.0.0.1", secure.port))
    client = secure.context.wrap_socket(raw, server_hostname="localhost")
    client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    secure.wait_for("takt_requests_running", 1)
    client.settimeout(0.2)
    try:
        client.unwrap()
    except (TimeoutError, OSError):
        pass
    client.close()
    secure.wait_for("takt_requests_running", 0)


def test_certificates_that_cannot_be_used_are_named(tmp_path):
    cert, key = make_certificate(tmp_path, "one")
    _, other_key = make_certificate(tmp_path, "two")
    locked = tmp_path / "locked.key"
    subprocess.run(["openssl", "rsa", "-aes256", "-passout", "pass:x", "-in", key, "-out", locked], check=True, capture_output=True)
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nnothing\n-----END CERTIFICATE-----\n")
    for found, code, words in ((["--set", f"server.tls_cert={cert}"], 2, "tls_key"),
                               (["--set", f"server.tls_key={key}"], 2, "tls_cert"),
                               (tls_options(tmp_path / "none.pem", key), 1, "none.pem"), (tls_options(broken, key), 1, "broken.pem"),
                               (tls_options(cert, other_key), 1, "two.key"), (tls_options(cert, locked), 1, "locked.key"),
                               (tls_options(cert, cert), 1, "tls_key")):
        result = subprocess.run([PROGRAM, "serve", *SIM, "--set", "server.port=0", *found], capture_output=True, text=True, timeout=HANG,
                                cwd=ROOT / "tests", stdin=subprocess.DEVNULL)
        assert result.returncode == code and words in result.stderr, (found, result.stderr)
