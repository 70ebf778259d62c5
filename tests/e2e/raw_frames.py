"""WebSocket frames byte by byte, for clients that no library would let be so."""
import struct


def upgrade(path=b"/v1/stream", header=b""):
    return (b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" + header +
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")


def frame(first, data):
    """`first`: the bits before the length; masked with zeros."""
    if len(data) < 126:
        head = bytes([first, 0x80 | len(data)])
    elif len(data) < 65536:
        head = bytes([first, 0x80 | 126]) + struct.pack(">H", len(data))
    else:
        head = bytes([first, 0x80 | 127]) + struct.pack(">Q", len(data))
    return head + b"\0\0\0\0" + data


def masked(text):
    return frame(0x81, text.encode())
