"""The web page in a real browser: Debian's chromium, driven by playwright, against a running server.

Every test fails on an error in the browser's console and on a violation of the Content-Security-Policy. Pictures go to
build/screenshots; those in docs/ are copies of them. Needs what `./build.sh web-test` installs; skipped without it.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command import ROOT
from server import Server

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("chromium is not installed", allow_module_level=True)

expect = sync_api.expect
expect.set_options(timeout=60_000)
Page = Any
PICTURES = ROOT / "build" / "screenshots"

WATCH_POLICY = """
addEventListener("securitypolicyviolation", (event) => console.error("policy: " + event.violatedDirective));
"""
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}},
    "required": ["colour"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--threads", 1) as running:  # it shares the machine with the browser
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        # The sandbox needs rights that containers do not give; the page is our own.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Opener:
    """Opens pages whose console must stay clean; `allowed` are patterns of errors that a test causes on purpose."""

    def __init__(self, browser: Any, server: Server) -> None:
        self.browser, self.server = browser, server
        self.contexts: list[Any] = []
        self.errors: list[str] = []
        self.outside: list[str] = []
        self.allowed: list[str] = []

    def __call__(self, path: str = "/", server: Server | None = None, **options: Any) -> Page:
        url = (server or self.server).url
        context = self.browser.new_context(**{"viewport": {"width": 1200, "height": 760}, **options})
        context.add_init_script(WATCH_POLICY)
        self.contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda message: message.type == "error" and self.errors.append(message.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: request.url.startswith(url) or self.outside.append(request.url))
        page.goto(url + path)
        return page

    def check(self) -> None:
        unexpected = [e for e in self.errors if not any(re.search(pattern, e) for pattern in self.allowed)]
        assert unexpected == []
        assert self.outside == []


@pytest.fixture
def open_page(browser: Any, server: Server) -> Iterator[Opener]:
    opener = Opener(browser, server)
    yield opener
    for context in opener.contexts:
        context.close()
    opener.check()


@pytest.fixture
def page(open_page: Opener) -> Page:
    return open_page()


def picture(page: Page, name: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"{name}.png")


def set_fields(page: Page, **values: str) -> None:
    for name, value in values.items():
        field = page.locator(f"#settings-form [name={name}]")
        if field.evaluate("node => node.tagName") == "SELECT":
            field.select_option(value)
        elif field.get_attribute("type") == "checkbox":
            field.set_checked(value == "on")
        else:
            field.evaluate("node => node.closest('details')?.setAttribute('open', '')")
            field.fill(value)


def ask(page: Page, text: str, **settings: str) -> Any:
    """Sends a message; returns the answer's element, which may still grow."""
    set_fields(page, **settings)
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")
    return page.locator(".message.assistant").last


def finished(answer: Any) -> Any:
    expect(answer).to_have_attribute("aria-busy", "false")
    return answer


GREEDY = {"temperature": "0", "thinking": "disabled", "seed": "7"}


def ask_endless(page: Page) -> Any:
    """A story that goes on until it is stopped."""

    def lengthen(route: Any) -> None:
        route.continue_(post_data=json.dumps({**route.request.post_data_json, "ignore_eos": True}))

    page.route("**/v1/chat/completions", lengthen, times=1)
    answer = ask(page, "Tell me a story.", temperature="1", thinking="disabled", max_tokens="60000")
    expect(answer.locator(".markdown")).not_to_be_empty()
    return answer


# ---- chat -----------------------------------------------------------------------------------------------------------


def test_answer_streams_and_shows_its_figures(page: Page) -> None:
    answer = finished(ask(page, "What is 17 + 25?", **GREEDY))
    expect(answer.locator(".markdown")).to_contain_text("42")
    figures = answer.locator(".figures")
    expect(figures).to_contain_text("tokens/s")
    expect(figures).to_contain_text(re.compile(r"\d+ % of \d+ drafts accepted"))
    expect(figures).to_contain_text("prompt tokens from the cache")
    expect(page.locator("#chat-list .title")).to_have_text("What is 17 + 25?")


def test_body_carries_the_settings_as_typed(page: Page) -> None:
    set_fields(
        page,
        system="Be brief.",
        thinking="enabled",
        effort="33",
        temperature="0.5",
        top_p="0.9",
        top_k="40",
        min_p="0.05",
        max_tokens="12",
        seed="18446744073709551615",
        repetition_penalty="1.1",
        presence_penalty="0.25",
        frequency_penalty="-0.5",
    )
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "line one\nline two")
    text = sent.value.post_data
    body = json.loads(text)
    assert '"seed":18446744073709551615' in text
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "line one\nline two"},
    ]
    wanted = {
        "thinking": {"type": "enabled"},
        "reasoning_effort": 33,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "max_tokens": 12,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.25,
        "frequency_penalty": -0.5,
        "stream": True,
    }
    assert {name: body[name] for name in wanted} == wanted
    assert "logprobs" not in body and "response_format" not in body and "tools" not in body
    finished(page.locator(".message.assistant"))


def test_reasoning_is_folded(page: Page) -> None:
    answer = finished(ask(page, "What is 17 + 25?", temperature="0", thinking="enabled", logprobs="on"))
    reasoning = answer.locator("details.reasoning")
    expect(reasoning.locator(".text")).to_be_hidden()
    reasoning.locator("summary").click()
    expect(reasoning.locator(".text")).to_be_visible()
    assert reasoning.locator(".token").count() > 3
    assert answer.locator(".markdown .token").count() > 3
    expect(answer.locator(".markdown")).to_have_text("17 + 25 = 42.")


def test_stop_button_and_escape_cancel_the_request(page: Page, server: Server) -> None:
    for stop in (lambda: page.click("#stop"), lambda: page.keyboard.press("Escape")):
        before = server.metric("deepinfer_requests_cancelled_total")
        answer = ask_endless(page)
        stop()
        finished(answer)
        expect(answer).to_contain_text("Stopped.")
        expect(page.locator("#send")).to_be_visible()
        text = answer.locator(".markdown").inner_text()
        page.wait_for_timeout(300)
        assert answer.locator(".markdown").inner_text() == text
        assert server.metric("deepinfer_requests_cancelled_total") == before + 1


def test_regenerate_replaces_the_last_answer(page: Page) -> None:
    finished(ask(page, "What is 17 + 25?", **GREEDY))
    finished(ask(page, "What is 30 + 3?", **GREEDY))
    with page.expect_request("**/v1/chat/completions") as sent:
        page.click("text=Regenerate")
    roles = [m["role"] for m in sent.value.post_data_json["messages"]]
    assert roles == ["user", "assistant", "user"]
    expect(page.locator(".message.assistant")).to_have_count(2)
    finished(page.locator(".message.assistant").last)
    expect(page.locator(".message.assistant").last).to_contain_text("33")


def test_editing_the_last_message_asks_again(page: Page) -> None:
    finished(ask(page, "What is 1 + 1?", **GREEDY))
    page.press("#prompt", "ArrowUp")
    box = page.get_by_label("Edited message")
    expect(box).to_be_focused()
    box.press("Escape")
    expect(page.locator(".message.user .text")).to_have_text("What is 1 + 1?")
    page.get_by_label("Edit this message").click()
    box.fill("What is 17 + 25?")
    box.press("Enter")
    expect(page.locator(".message.user")).to_have_count(1)
    expect(finished(page.locator(".message.assistant").last)).to_contain_text("42")


def test_shift_enter_begins_a_line_and_enter_sends(page: Page) -> None:
    page.fill("#prompt", "a")
    page.press("#prompt", "Shift+Enter")
    page.locator("#prompt").press_sequentially("b")
    expect(page.locator("#prompt")).to_have_value("a\nb")
    expect(page.locator(".message")).to_have_count(0)
    set_fields(page, max_tokens="2")
    page.press("#prompt", "Enter")
    expect(page.locator(".message.user .text")).to_have_text("a\nb")
    finished(page.locator(".message.assistant"))


def test_conversations_survive_a_reload(page: Page) -> None:
    finished(ask(page, "What is 17 + 25?", **GREEDY))
    page.click("#new-chat")
    finished(ask(page, "What is 30 + 3?"))
    page.reload()
    expect(page.locator("#chat-list .title")).to_have_text(["What is 30 + 3?", "What is 17 + 25?"])
    page.get_by_role("button", name="What is 17 + 25?", exact=True).click()
    expect(page.locator(".message.assistant")).to_contain_text("42")
    assert page.input_value("#settings-form [name=temperature]") == "0"
    page.get_by_label("Delete: What is 17 + 25?").click()
    expect(page.locator("#chat-list .title")).to_have_text(["What is 30 + 3?"])
    expect(page.locator(".message.assistant")).to_contain_text("33")


def test_an_answer_goes_on_while_another_conversation_is_shown(page: Page) -> None:
    answer = ask_endless(page)
    length = len(answer.locator(".markdown").inner_text())
    page.click("#new-chat")
    expect(page.locator(".message")).to_have_count(0)
    expect(page.locator("#send")).to_be_visible()
    finished(ask(page, "What is 17 + 25?", temperature="0", max_tokens="20"))
    page.get_by_role("button", name="Tell me a story.", exact=True).click()
    story = page.locator(".message.assistant .markdown")
    assert len(story.inner_text()) > length
    page.click("#stop")
    finished(page.locator(".message.assistant"))


# ---- tools, schemas, probabilities ----------------------------------------------------------------------------------


def test_tool_calls_are_shown_and_can_be_answered(page: Page) -> None:
    answer = finished(ask(page, "How is the weather in Paris?", **GREEDY, tools=json.dumps(TOOLS)))
    call = answer.locator(".call")
    expect(call.locator("header")).to_have_text("Calls get_weather")
    assert json.loads(call.locator("code").inner_text()) == {"city": "Paris"}
    call.get_by_label("Result of get_weather").fill('{"weather": "sunny"}')
    with page.expect_request("**/v1/chat/completions") as sent:
        call.locator("text=Send the result").click()
    assistant, tool = sent.value.post_data_json["messages"][1:]
    assert assistant["tool_calls"][0]["id"] == tool["tool_call_id"]
    last = finished(page.locator(".message.assistant").last)
    expect(last.locator(".markdown")).to_contain_text("sunny")


def test_a_call_that_nobody_answers_is_left_out_later(page: Page) -> None:
    answer = finished(ask(page, "How is the weather in Paris?", **GREEDY, tools=json.dumps(TOOLS)))
    expect(answer.locator(".call")).to_have_count(1)
    with page.expect_request("**/v1/chat/completions") as sent:
        answer = ask(page, "What is 17 + 25?")
    assert [sorted(m) for m in sent.value.post_data_json["messages"]] == [["content", "role"]] * 3
    expect(finished(answer).locator(".problem")).to_have_count(0)


def test_schema_box_holds_the_answer(page: Page) -> None:
    expect(page.locator("[name=schema]")).to_be_hidden()
    answer = finished(
        ask(page, "Which colour?", **GREEDY, format="json_schema", schema=json.dumps(SCHEMA), max_tokens="60")
    )
    assert json.loads(answer.locator(".markdown").inner_text())["colour"] in ("red", "green")


def test_a_schema_that_is_no_json_is_named(page: Page) -> None:
    answer = finished(ask(page, "Which colour?", format="json_schema", schema='{"type": '))
    expect(answer.locator(".problem code")).to_have_text("response_format")
    expect(page.locator("[name=schema]")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("[name=schema]")).to_be_focused()


def test_token_probabilities_on_hover_and_focus(page: Page) -> None:
    finished(ask(page, "What is 17 + 25?", temperature="0", thinking="enabled")).locator("summary").click()
    answer = finished(
        ask(page, "Tell me a story.", temperature="1", thinking="disabled", logprobs="on", max_tokens="90")
    )
    expect(page.locator(".reasoning .text").first).to_be_visible()  # what is unfolded stays so
    card = page.locator("#token-card")
    expect(card).to_be_hidden()
    tokens = answer.locator(".token")
    assert tokens.count() > 20
    tokens.first.hover()
    expect(card).to_be_visible()
    assert card.locator("li").count() >= 5
    shares = [float(text.removesuffix(" %")) for text in card.locator("li span").all_inner_texts()]
    assert all(0 <= share <= 100 for share in shares) and sum(shares[:5]) <= 100.5
    expect(card.locator(".chosen")).to_have_count(1)
    picture(page, "web_chat")
    page.mouse.move(5, 5)
    expect(card).to_be_hidden()
    tokens.first.focus()
    page.keyboard.press("ArrowRight")
    expect(tokens.nth(1)).to_be_focused()
    expect(card).to_be_visible()
    page.keyboard.press("Escape")
    expect(card).to_be_hidden()
    in_tokens = answer.locator(".tokens").last.inner_text()
    answer.locator("text=Probabilities").click()
    expect(answer.locator(".token")).to_have_count(0)
    assert " ".join(answer.locator(".markdown").inner_text().split()) == " ".join(in_tokens.split())


# ---- errors and keys ------------------------------------------------------------------------------------------------


def test_an_error_names_the_field_and_marks_it(open_page: Opener, page: Page) -> None:
    open_page.allowed.append("status of 400")
    page.click("#toggle-settings")
    expect(page.locator("#settings")).to_be_hidden()
    page.evaluate("localStorage.setItem('deepinfer.settings', JSON.stringify({top_p: '7'}))")
    page.reload()
    answer = finished(ask(page, "Hello"))
    expect(answer.locator(".problem code")).to_have_text("top_p")
    expect(answer.locator(".problem")).to_contain_text("7")
    field = page.locator("[name=top_p]")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(field).to_be_focused()
    field.fill("0.9")
    assert field.get_attribute("aria-invalid") is None
    set_fields(page, max_tokens="3")
    page.click("text=Regenerate")
    expect(page.locator(".message.assistant .problem")).to_have_count(0)
    finished(page.locator(".message.assistant"))


def test_a_key_is_asked_for_and_kept_in_the_session(open_page: Opener, tmp_path: Path) -> None:
    open_page.allowed.append("status of 401")
    keys = tmp_path / "keys"
    keys.write_text("alice open-sesame\n")
    with Server("--keys", keys) as guarded:
        page = open_page(server=guarded)
        answer = finished(ask(page, "What is 17 + 25?", **GREEDY))
        expect(answer.locator(".problem")).to_be_visible()
        key = page.locator("[name=key]")
        expect(key).to_be_focused()
        key.fill("open-sesame")
        page.click("text=Regenerate")
        expect(page.locator(".message.assistant .markdown")).to_contain_text("42")
        finished(page.locator(".message.assistant"))
        assert "open-sesame" not in json.dumps(page.evaluate("({...localStorage})"))
        assert page.evaluate("sessionStorage.getItem('deepinfer.key')") == "open-sesame"


def test_a_server_that_is_gone_is_an_error_in_the_message(open_page: Opener) -> None:
    open_page.allowed.append("ERR_|Failed to load")
    with Server() as other:
        page = open_page(server=other)
        expect(page.locator("#model")).not_to_be_empty()
    answer = finished(ask(page, "Hello"))
    expect(answer.locator(".problem")).to_have_text("The server cannot be reached.")


def test_an_answer_that_is_cut_is_an_error(open_page: Opener) -> None:
    open_page.allowed.append("ERR_|Failed to load")
    with Server("--threads", 1) as other:
        page = open_page(server=other)
        answer = ask_endless(page)
        other.process.kill()
        other.expects_exit = -9
        finished(answer)
        expect(answer.locator(".problem")).to_have_text("The connection ended before the answer did.")
        expect(answer.locator(".markdown")).not_to_be_empty()


def test_an_answer_of_a_closed_page_counts_as_stopped(page: Page) -> None:
    ask_endless(page)
    page.reload()
    answer = finished(page.locator(".message.assistant"))
    expect(answer.locator(".markdown")).not_to_be_empty()
    expect(answer).to_contain_text("Stopped.")


# ---- status ---------------------------------------------------------------------------------------------------------


@contextmanager
def conversations(server: Server) -> Iterator[None]:
    """Two clients whose prompts have a long beginning in common."""
    is_over = threading.Event()

    def talk(number: int) -> None:
        while not is_over.is_set():
            content = "The green hill is behind the house. " * 60 + f"What is {number} + 5?"
            server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}], "max_tokens": 30})
            number += 1

    clients = [threading.Thread(target=talk, args=(first,)) for first in (10, 50)]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        is_over.set()
        for client in clients:
            client.join()


def test_status_view_follows_the_server(page: Page, server: Server) -> None:
    ask_endless(page)
    page.click("#to-status")
    expect(page.locator("#chat-view")).to_be_hidden()
    expect(page.locator("#tiles")).to_contain_text("ready")
    expect(page.locator(".chart")).to_have_count(7)
    wanted = (
        r"Requests: running [1-9]",
        r"Tokens per second: now [1-9]",
        r"Time to first token: p50 [\d.]+ m?s, p95 [\d.]+ m?s",
        r"Between tokens: p50 [\d.]+ m?s, p95 [\d.]+ m?s",
        r"Prompt tokens from the cache: now [1-9]\d* %",
        r"Drafts accepted: now \d+ %",
        r"Drafts accepted by position, since the start: 1 \d+ %",
    )
    with conversations(server):
        for pattern in wanted:
            expect(page.get_by_role("img", name=re.compile("^" + pattern))).to_be_visible()
        page.wait_for_timeout(12_000)  # for a picture with something in it
        picture(page, "web_status")
    page.click("#to-chat")
    page.click("#stop")
    finished(page.locator(".message.assistant"))


# ---- policy ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("markup", "directive"), [('<p onclick="x()">', "script-src"), ('<p style="color: red">', "style-src")]
)
def test_the_policy_refuses_inline_code_and_the_console_says_so(
    open_page: Opener, page: Page, markup: str, directive: str
) -> None:
    open_page.allowed += ["^policy: ", "Content Security Policy"]
    with page.expect_console_message(lambda message: message.text.startswith(f"policy: {directive}")):
        page.evaluate("(markup) => document.body.insertAdjacentHTML('beforeend', markup)", markup)


# ---- looks ----------------------------------------------------------------------------------------------------------


def background(page: Page) -> str:
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_dark_by_the_system_and_by_the_switch(open_page: Opener) -> None:
    light, dark = open_page(color_scheme="light"), open_page(color_scheme="dark")
    white, black = background(light), background(dark)
    assert white != black
    light.click("#toggle-theme")
    assert background(light) == black
    light.reload()
    assert background(light) == black
    light.click("#toggle-theme")
    assert background(light) == white


def test_phone_width(open_page: Opener) -> None:
    size = {"width": 390, "height": 780}
    phone = open_page(viewport=size, has_touch=True, is_mobile=True, color_scheme="dark")
    for panel in ("chats", "settings"):
        expect(phone.locator(f"#{panel}")).to_be_hidden()
        phone.click(f"#toggle-{panel}")
        expect(phone.locator(f"#{panel}")).to_be_visible()
        expect(phone.locator(f"#toggle-{panel}")).to_have_attribute("aria-expanded", "true")
        if panel == "chats":
            phone.keyboard.press("Escape")
    set_fields(phone, **GREEDY, tools=json.dumps(TOOLS))
    phone.keyboard.press("Escape")
    expect(phone.locator("#settings")).to_be_hidden()
    phone.fill("#prompt", "How is the weather in Paris?")
    phone.click("#send")
    answer = finished(phone.locator(".message.assistant"))
    expect(answer.locator(".call")).to_be_visible()
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390
    picture(phone, "web_phone")
    phone.click("#to-status")
    expect(phone.locator(".chart").first).to_be_visible()
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390


def test_everything_has_a_name_and_the_keyboard_reaches_it(page: Page) -> None:
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, textarea, a")]
            .filter((node) => !(node.ariaLabel || node.labels?.length || node.textContent.trim()))
            .map((node) => node.outerHTML)"""
    )
    assert nameless == []
    expect(page.locator("#prompt")).to_be_focused()
    for _ in range(40):
        page.keyboard.press("Shift+Tab")
        if page.evaluate("document.activeElement.id") == "to-status":
            break
    page.keyboard.press("Enter")
    expect(page.locator("#status-view")).to_be_visible()


# ---- modules --------------------------------------------------------------------------------------------------------


def markdown(page: Page, text: str) -> str:
    return page.evaluate(
        """async (text) => {
            const { renderMarkdown } = await import("/markdown.js");
            const node = document.createElement("div");
            renderMarkdown(node, text);
            return node.innerHTML;
        }""",
        text,
    )


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a *b* **c** _d_ `e*f*`", "<p>a <em>b</em> <strong>c</strong> <em>d</em> <code>e*f*</code></p>"),
        ("snake_case_name and 2 * 3 * 4", "<p>snake_case_name and 2 * 3 * 4</p>"),
        ("# Title #\ntext", "<h3>Title</h3><p>text</p>"),
        ("- a\n  - b\n- c", "<ul><li>a<ul><li>b</li></ul></li><li>c</li></ul>"),
        ("3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
        ("> a\n> b", "<blockquote><p>a<br>b</p></blockquote>"),
        ("<b onclick=x>&amp;</b>", "<p>&lt;b onclick=x&gt;&amp;amp;&lt;/b&gt;</p>"),
        ("[x](javascript:alert(1))", "<p>[x](javascript:alert(1))</p>"),
        (
            "[x](https://e.org/a)",
            '<p><a href="https://e.org/a" rel="noreferrer noopener" target="_blank">x</a></p>',
        ),
    ],
)
def test_markdown(page: Page, text: str, wanted: str) -> None:
    assert markdown(page, text) == wanted


def test_markdown_code_and_tables(page: Page) -> None:
    code = markdown(page, "```py\nif a < b:\n\n    *x*\n```\nafter")
    assert "if a &lt; b:\n\n    *x*</code></pre>" in code and code.endswith("<p>after</p>")
    assert "if a" in markdown(page, "```py\nif a")  # still growing
    table = markdown(page, "| a | b |\n|---|---|\n| 1 | **2** |")
    assert "<th>a</th><th>b</th>" in table and "<td>1</td><td><strong>2</strong></td>" in table


def test_markdown_takes_any_text(page: Page) -> None:
    for text in (
        ">" * 20_000,
        "- " * 5_000,
        "**" * 5_000 + "x",
        "*_" * 3_000 + "x" + "_*" * 3_000,
        "`" * 9_999,
        "|" * 999,
    ):
        assert markdown(page, text)


def test_growing_markdown_equals_the_whole(page: Page) -> None:
    text = "# A\n\nsome *text*\n\n- one\n- two\n\n```\ncode\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nend"
    differences = page.evaluate(
        """async (text) => {
            const { renderMarkdown } = await import("/markdown.js");
            const growing = document.createElement("div");
            const wrong = [];
            for (let end = 1; end <= text.length; end += 1) {
                const whole = document.createElement("div");
                renderMarkdown(growing, text.slice(0, end));
                renderMarkdown(whole, text.slice(0, end));
                if (growing.innerHTML !== whole.innerHTML) wrong.push(end);
            }
            return wrong;
        }""",
        text,
    )
    assert differences == []


def test_events_may_be_cut_anywhere(page: Page) -> None:
    wanted = ['{"a":"é🙂"}', "two\nlines", "[DONE]"]
    stream = ': note\n\ndata: {"a":"é🙂"}\n\ndata: two\r\ndata:lines\n\ndata: [DONE]\n\n'
    results = page.evaluate(
        """async (stream) => {
            const { eventData } = await import("/sse.js");
            const bytes = new TextEncoder().encode(stream);
            const results = [];
            for (let cut = 0; cut <= bytes.length; cut += 1) {
                const body = new ReadableStream({
                    start(controller) {
                        controller.enqueue(bytes.slice(0, cut));
                        controller.enqueue(bytes.slice(cut));
                        controller.close();
                    },
                });
                const events = [];
                for await (const data of eventData(body)) events.push(data);
                results.push(events);
            }
            return results;
        }""",
        stream,
    )
    assert results == [wanted] * (len(stream.encode()) + 1)


def test_tokens_are_laid_over_the_text(page: Page) -> None:
    def token(data: bytes) -> dict[str, Any]:
        return {"token": data.decode(errors="replace"), "logprob": -0.1, "bytes": list(data), "top_logprobs": []}

    smile = "🙂".encode()
    tokens = [token(b"Hi"), token(b"</think>"), token(smile[:2]), token(smile[2:]), token(b" there"), token(b" cut")]
    pieces = page.evaluate(
        """async ([text, tokens]) => {
            const { alignTokens } = await import("/tokens.js");
            return alignTokens(text, tokens).map((piece) => [piece.text, piece.tokens.length]);
        }""",
        ["Hi🙂 there c", tokens],
    )
    assert pieces == [["Hi", 1], ["🙂", 2], [" there", 1], [" c", 0]]


def test_quantiles_of_histograms(page: Page) -> None:
    def text(*counts: int) -> str:
        rows = zip(("0.1", "0.5", "+Inf"), counts, strict=True)
        return "# HELP x\n" + "".join(f'deepinfer_t_bucket{{le="{le}"}} {count}\n' for le, count in rows)

    found = page.evaluate(
        """async ([before, after, empty]) => {
            const { parseMetrics, quantile } = await import("/prometheus.js");
            const [a, b, c] = [before, after, empty].map(parseMetrics);
            const cases = [[a, b, 0.5], [a, b, 0.99], [b, b, 0.5], [c, b, 0.5]];
            return cases.map(([from, to, q]) => quantile(from, to, "t", q));
        }""",
        [text(4, 4, 4), text(4, 14, 15), ""],
    )
    # Between the two: none up to 0.1, ten up to 0.5, one above.
    assert found[0] == pytest.approx(0.1 + 0.4 * 5.5 / 10)
    assert found[1] == 0.5
    assert found[2] is None
    assert found[3] == pytest.approx(0.1 + 0.4 * (7.5 - 4) / 10)
