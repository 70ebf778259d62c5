"""`takt chat`, through a pipe and through a terminal."""
import json
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time

from conftest import HANG, MODEL, PROGRAM, ROOT
from test_http import CHAT, call


# The simulated device's answer to "Tell me" has some 250 tokens and then ends by itself: a minute like this.
SLOW = ["--max-tokens", "100000", "--set", "sim.scale=40"]


class Terminal:
    """The program on a pseudo-terminal."""

    def __init__(self, home, *arguments):
        self.end, inner = pty.openpty()
        self.process = subprocess.Popen([PROGRAM, "chat", "--set", "device.kind=sim", *arguments], stdin=inner, stdout=inner,
                                        stderr=inner, cwd=ROOT / "tests", env={**os.environ, "HOME": str(home), "TERM": "xterm"},
                                        start_new_session=True, preexec_fn=lambda: __import__("fcntl").ioctl(0, 0x540E, 0))
        os.close(inner)
        self.text = ""

    def expect(self, pattern, seconds=HANG):
        """Reads until the pattern comes; what stood before it is returned and forgotten."""
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.text)):
            assert time.monotonic() < end, (pattern, self.text)
            if select.select([self.end], [], [], 0.1)[0]:
                try:
                    self.text += os.read(self.end, 65536).decode(errors="replace")
                except OSError:
                    assert re.search(pattern, self.text), (pattern, self.text)
        before, self.text = self.text[:found.start()], self.text[found.end():]
        return before

    def expect_prompt(self):
        """The editor shows its prompt and takes the terminal over a moment later: keys that come between are echoed by both."""
        self.expect("> ")
        end = time.monotonic() + HANG
        while termios.tcgetattr(self.end)[3] & termios.ICANON:
            assert time.monotonic() < end
            time.sleep(0.001)

    def type(self, text):
        os.write(self.end, text.encode())


def test_a_conversation_through_a_pipe():
    lines = "/max_tokens 8\n/seed 1\nHello\n/retry\n/none\nfirst \\\nsecond\n/timings\nagain\n/exit\nnever\n"
    result = subprocess.run([PROGRAM, "chat", "--set", "device.kind=sim", "--set", "sim.scale=0"], input=lines, capture_output=True,
                            text=True, timeout=HANG, cwd=ROOT / "tests")
    assert result.returncode == 0, result.stderr
    out = result.stdout.splitlines()
    assert out[:2] == ["/max_tokens: 8", "/seed: 1"]
    # Same question, same seed, same answer; no prompt and no greeting where nobody types.
    assert out[2] == out[3] != "" and ">" not in out[2][:2]
    assert "/none" in result.stderr and "first token" in result.stderr


def test_an_interrupt_stops_the_answer_and_not_the_program(tmp_path):
    chat = Terminal(tmp_path, *SLOW)
    chat.expect("/help lists")
    chat.expect_prompt()
    chat.type("Tell me\r")
    chat.expect("Tell me\r\n")
    chat.expect(".{5}")
    chat.type("\x03")
    chat.expect(r"\[stopped\]")
    chat.expect_prompt()
    chat.type("half a line\x03")
    chat.expect_prompt()
    chat.type("/max_tokens 3\r")
    chat.expect("/max_tokens: 3")
    chat.expect_prompt()
    # Up twice in the history, a change in the line, and characters of two bytes.
    chat.type("\x1b[A\x1b[A\x01Grüße, \x05!\r")
    chat.expect("!\r")
    chat.expect_prompt()
    chat.type("\x04")
    assert chat.process.wait(HANG) == 0
    history = (tmp_path / ".takt_history")
    assert "Grüße, Tell me!" in history.read_text().replace("\\040", " ") and history.stat().st_mode & 0o077 == 0


def test_it_ends_when_told_to(tmp_path):
    chat = Terminal(tmp_path, *SLOW)
    chat.expect_prompt()
    chat.type("Tell me\r")
    chat.expect("Tell me\r\n")
    chat.process.send_signal(signal.SIGTERM)
    assert chat.process.wait(HANG) == 0


def test_a_refusal_is_said_and_the_conversation_goes_on():
    result = subprocess.run([PROGRAM, "chat", "--set", "device.kind=sim", "--set", "sim.scale=0", "--set", "model.max_context=64",
                             "--max-tokens", "3"], input="word " * 200 + "\nHi\n", capture_output=True, text=True, timeout=HANG,
                            cwd=ROOT / "tests")
    assert result.returncode == 0 and "64" in result.stderr and result.stdout.strip(), (result.stdout, result.stderr)


def test_the_real_model_is_told_the_whole_conversation(real):
    """Each answer is the one that the server gives to all that was said before."""
    lines = ["Name one colour.", "And another one?", "Which was the first?"]
    result = subprocess.run([PROGRAM, "chat", "--model", str(MODEL), "--set", "device.kind=cpu", "--temperature", "0", "--max-tokens", "12"],
                            input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=HANG, cwd=ROOT / "tests")
    assert result.returncode == 0, result.stderr
    messages, answers = [], []
    for line in lines:
        messages.append({"role": "user", "content": line})
        body = {"messages": messages, "temperature": 0, "max_tokens": 12}
        answers.append(json.loads(call(real, CHAT, body)[2])["choices"][0]["message"]["content"])
        messages.append({"role": "assistant", "content": answers[-1]})
    assert result.stdout == "".join(answer + "\n" for answer in answers)
