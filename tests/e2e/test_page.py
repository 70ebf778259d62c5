"""The page in headless Chromium (Debian's `chromium`, driven by Playwright): what a person sees and does there."""
import hashlib
import json
import os
import pathlib
import re
import shutil
import urllib.request

import pytest

from conftest import MODEL, Server

playwright = pytest.importorskip("playwright.sync_api", reason="the page's tests need playwright: pip install playwright")
playwright.expect.set_options(timeout=30_000)   # a busy machine
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [pytest.mark.long, pytest.mark.skipif(CHROMIUM is None, reason="the page's tests need chromium: apt-get install chromium")]

SIZES = {"phone": (390, 844), "tablet": (820, 1180), "laptop": (1280, 800), "wide": (1920, 1080)}
# Screenshots land here when asked for.
SHOTS = os.environ.get("TAKT_SCREENSHOTS")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def long_question(server):
    """The simulated device's text is a hash of the prompt: finds a prompt whose answer is long."""
    for number in range(100):
        question = f"Tell me about river {number}."
        body = json.dumps({"messages": [{"role": "user", "content": question}], "max_tokens": 1024}).encode()
        request = urllib.request.Request(server.http + "/v1/chat/completions", body, {"Content-Type": "application/json"})
        if json.load(urllib.request.urlopen(request, timeout=60))["usage"]["completion_tokens"] == 1024:
            return question
    raise AssertionError("no prompt has a long answer")


@pytest.fixture(scope="module")
def worded():
    """Real step times of a simulated GPU, the real model's vocabulary: answers go on until they are stopped."""
    if not MODEL.exists():
        pytest.skip("the default model is not fetched")
    arguments = ["--model", str(MODEL), "--set", "device.kind=sim", "--set", "server.drain_seconds=1"]
    quick = Server(*arguments, "--set", "sim.scale=0")
    question = long_question(quick)
    assert quick.stop() == 0
    server = Server(*arguments, "--set", "sim.scale=4")     # an answer outlasts what a busy browser does meanwhile
    server.question = question
    yield server
    assert server.stop() == 0


class Page:
    """A page with its complaints: errors, console messages and requests to anybody else than the server."""

    def __init__(self, browser, server, size="laptop", theme="light"):
        width, height = SIZES[size]
        self.context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme, base_url=server.http)
        self.page = self.context.new_page()
        self.complaints = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda message: self.complaints.append(message.text) if message.type == "error" else None)
        self.page.on("request", lambda request: None if request.url.startswith(server.http) else self.complaints.append(request.url))
        self.page.goto("/")

    def shot(self, name):
        if SHOTS:
            self.page.screenshot(path=pathlib.Path(SHOTS) / f"{name}.png")

    def close(self):
        self.context.close()
        assert self.complaints == []


@pytest.fixture
def open_page(browser):
    opened = []

    def open_one(*arguments, **options):
        opened.append(Page(browser, *arguments, **options))
        return opened[-1]
    yield open_one
    for page in opened:
        page.close()


def say(page, text):
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_role("button", name="Send").click()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_a_document_put_into_a_running_stream_in_every_size_and_theme(worded, open_page, size, theme):
    opened = open_page(worded, size=size, theme=theme)
    page = opened.page
    playwright.expect(page.get_by_role("status")).to_have_text("connected")
    say(page, worded.question)
    playwright.expect(page.locator("#plot rect")).not_to_have_count(0)
    page.get_by_role("button", name="Insert a long document").click()
    playwright.expect(page.locator("#document")).to_contain_text("tokens in", timeout=60000)
    # Bars drawn while the document was read are there. All looked at in one moment.
    seen = page.evaluate("""({busy: document.querySelectorAll("#plot rect[opacity='1']").length,
        fits: document.scrollingElement.scrollWidth <= innerWidth,
        colours: [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]})""")
    opened.shot(f"{size}-{theme}")
    assert seen["busy"] > 0
    assert seen["fits"], "the page scrolls sideways"
    assert (sum(map(int, seen["colours"][0][4:-1].split(","))) > 380) == (theme == "light")


def test_stop_ends_the_answer_and_its_button_stays_where_it_is(worded, open_page):
    page = open_page(worded, size="phone").page
    playwright.expect(page.get_by_role("status")).to_have_text("connected")
    say(page, worded.question)
    stop = page.get_by_role("button", name="Stop")
    playwright.expect(page.locator("#log p.assistant")).not_to_be_empty()
    before = stop.bounding_box()
    playwright.expect(page.locator("#log p.assistant")).to_have_text(re.compile(r".{150}", re.S))
    assert stop.bounding_box() == before
    stop.click()
    playwright.expect(page.get_by_role("log")).to_contain_text("[cancelled]")
    playwright.expect(page.get_by_role("button", name="Send")).to_be_enabled()


def test_it_works_by_keyboard_alone_and_names_its_parts(worded, open_page):
    page = open_page(worded).page
    playwright.expect(page.get_by_role("status")).to_have_text("connected")
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id"))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none" or reached[-1] == "", reached
    for part in ("text", "send", "insert", "promise"):
        assert part in reached
    page.locator("#text").focus()
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#log p.user")).to_have_text("one\ntwo")
    playwright.expect(page.locator("#log p.assistant")).not_to_be_empty()
    playwright.expect(page.get_by_role("button", name="Send")).to_be_enabled(timeout=60000)
    unnamed = page.evaluate("""[...document.querySelectorAll("button, input, textarea, [role]")].filter((part) =>
        !(part.labels && part.labels.length) && !part.getAttribute("aria-label") && !part.textContent.trim()).map((part) => part.id)""")
    assert unnamed == []


def test_text_of_a_model_never_becomes_markup(worded, open_page):
    page = open_page(worded).page
    playwright.expect(page.get_by_role("status")).to_have_text("connected")
    say(page, "<img src=x onerror=alert(1)><script>1</script>")
    playwright.expect(page.locator("#log p.user")).to_contain_text("<img")
    assert page.locator("#log img, #log script").count() == 0


def test_the_figures_of_the_server_are_live(worded, open_page):
    page = open_page(worded).page
    playwright.expect(page.locator("#running")).to_have_text("0", timeout=30000)
    say(page, worded.question)
    playwright.expect(page.locator("#running")).to_have_text("1")
    playwright.expect(page.locator("#rate")).to_contain_text("tokens/s", timeout=30000)
    page.get_by_role("button", name="Stop").click()
    playwright.expect(page.locator("#running")).to_have_text("0", timeout=30000)


def test_the_steps_of_the_last_seconds_are_drawn(browser):
    server = Server("--set", "device.kind=sim", "--set", "server.admin=true", "--set", "sla.itl_ms=6.5", "--set", "sim.scale=4")
    opened = Page(browser, server)
    page = opened.page
    playwright.expect(page.get_by_role("status")).to_have_text("connected")
    page.get_by_label("Promised gap, ms").fill("8")     # four times slower than a step: every gap is late
    say(page, "Tell me a long story about a river.")
    playwright.expect(page.locator("#steps-panel")).to_be_visible()
    for kind in ("decode", "slice", "late"):
        playwright.expect(page.locator(f"#steps rect.{kind}")).not_to_have_count(0)
    playwright.expect(page.locator("#steps-legend")).to_contain_text("late gaps (device")
    opened.shot("steps")
    opened.close()
    plain = Server("--set", "device.kind=sim")
    without = Page(browser, plain)
    playwright.expect(without.page.locator("#running")).to_have_text("0")
    playwright.expect(without.page.locator("#steps-panel")).to_be_hidden()
    without.close()       # it asked for no steps: that would be a complaint
    assert server.stop() == 0 and plain.stop() == 0


def test_it_asks_for_a_key_and_finds_a_server_that_was_away(browser, tmp_path):
    config = tmp_path / "config.toml"
    digest = hashlib.sha256("geheim ü".encode()).hexdigest()
    config.write_text(f'[device]\nkind = "sim"\n[[tenant]]\nname = "a"\nkey_sha256 = "{digest}"\n')
    server = Server("--config", str(config))
    opened = Page(browser, server)
    page = opened.page
    playwright.expect(page.get_by_label("This server asks for a key")).to_be_visible()
    page.get_by_label("This server asks for a key").fill("wrong")
    page.get_by_role("button", name="Connect").click()
    playwright.expect(page.get_by_role("status")).to_have_text("no connection")
    page.get_by_label("This server asks for a key").fill("geheim ü")
    page.get_by_role("button", name="Connect").click()
    playwright.expect(page.get_by_role("status")).to_have_text("connected")
    say(page, "Hello")
    playwright.expect(page.locator("#log p.assistant")).not_to_be_empty()
    assert server.stop() == 0
    playwright.expect(page.get_by_role("status")).to_contain_text("trying again")
    again = Server("--config", str(config), "--set", f"server.port={server.port}")
    playwright.expect(page.get_by_role("status")).to_have_text("connected", timeout=30000)
    assert again.stop() == 0
    opened.context.close()
