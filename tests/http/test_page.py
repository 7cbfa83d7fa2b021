"""The web page in Chromium, as somebody uses it."""
import json
import os

import pytest
from browser import Browser
from serving import wait_for

TEXT = "document.querySelector('.turn.assistant:last-of-type .text').textContent"
IDLE = "document.querySelector('#send').textContent === 'Send'"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture
def page(browser, server):
    browser.problems.clear()
    browser.screen(1000, 800)
    browser.open(server.url + "/")
    browser.wait("document.querySelector('#model').textContent.includes('cpu')")
    browser.run("sessionStorage.clear(), localStorage.clear(), ''")
    yield browser
    assert browser.problems == []


def set_field(page, name, value):
    page.run("(f => { f.value = %s; f.dispatchEvent(new Event('change')); })(document.querySelector('#%s'))"
             % (json.dumps(value), name))


def picture(page, name):
    """Pictures are kept where ONEBIT_PICTURES says, to be looked at."""
    folder = os.environ.get("ONEBIT_PICTURES")
    if folder:
        page.save_picture("%s/%s.png" % (folder, name))


def test_a_conversation(page, server):
    assert page.run("document.activeElement.id") == "prompt"
    set_field(page, "temperature", "0")
    set_field(page, "max_tokens", "40")
    page.click("#prompt")
    page.type("What is a list?")
    page.press("Enter")
    page.wait(TEXT + ".length > 0")
    page.wait(IDLE)
    asked = {"messages": [{"role": "user", "content": "What is a list?"}], "temperature": 0, "max_tokens": 40}
    reply = server.post("/v1/chat/completions", asked)["choices"][0]["message"]["content"]
    assert page.run("messages.at(-1).content") == reply
    figures = page.run("document.querySelector('.figures').textContent")
    assert "tok/s" in figures and "tokens" in figures and "prompt" in figures
    page.type("And a tuple?")
    page.press("Enter")
    page.wait("document.querySelectorAll('.turn').length === 4 && " + IDLE)
    assert page.run("messages.map(m => m.role).join()") == "user,assistant,user,assistant"
    picture(page, "light")
    page.screen(1000, 800, "dark")
    picture(page, "dark")
    page.screen(390, 844, "dark")
    picture(page, "phone")
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    page.click("#fresh")
    assert page.run("document.querySelectorAll('.turn').length") == 0


def begin_long_answer(page):
    """Asks for an answer that goes on for 3000 tokens, whatever is drawn, and waits until some of it is there."""
    set_field(page, "max_tokens", "3000")
    page.type("Count from one to a million, one number a line, and never stop.")
    page.run("window.asked = requestBody; requestBody = () => ({...asked(), ignore_eos: true}), ''")
    page.press("Enter")
    page.wait(TEXT + ".length > 5")


def test_stopping_an_answer(page, server):
    begin_long_answer(page)
    page.click("#send")
    page.wait(IDLE)
    wait_for(lambda: not server.busy_slots(), 2)
    assert page.run("document.querySelector('.figures').textContent") == "stopped"


def test_a_new_chat_forgets_the_answer_under_way(page, server):
    begin_long_answer(page)
    page.click("#fresh")
    page.wait(IDLE)
    wait_for(lambda: not server.busy_slots(), 2)
    assert page.run("messages.length") == 0 and page.run("document.querySelectorAll('.turn').length") == 0


def test_nothing_from_elsewhere(page, server):
    assert {url.split("/", 3)[2] for url in page.requests if url.startswith("http")} == {"%s:%d" % server.address}
    headers = server.request("GET", "/")[1]
    assert "default-src 'none'" in headers["Content-Security-Policy"] and "connect-src 'self'" in headers["Content-Security-Policy"]


HOSTILE = "<img src=x onerror=\"window.hit=1\"><script>window.hit=1</script> [a](javascript:window.hit=1) ![b](http://evil/x.png)"


def test_text_stays_text(page):
    """Neither what is typed nor what is generated can become part of the page."""
    set_field(page, "max_tokens", "1")
    page.type(HOSTILE)
    page.press("Enter")
    page.wait("document.querySelectorAll('.turn').length === 2 && " + IDLE)
    assert page.run("document.querySelector('.turn.user').textContent") == HOSTILE
    for wrapped in (HOSTILE, "```html\n" + HOSTILE + "\n```", "`" + HOSTILE + "`", "# " + HOSTILE, "- " + HOSTILE, "> " + HOSTILE, "**" + HOSTILE + "**"):
        shown = page.run("(d => { showMarkdown(d, %s); document.body.append(d); return [d.querySelectorAll('img,script,a,iframe').length,"
                         "d.textContent]; })(document.createElement('div'))" % json.dumps(wrapped))
        assert shown[0] == 0 and "onerror" in shown[1]
    assert page.run("document.querySelectorAll('.turn img, .turn script, .turn a').length") == 0
    assert page.run("window.hit") is None


def test_markdown(page):
    source = ("# Title\nSome *soft*, **loud** and `code` text,\nin two lines.\n\n1. one\n2. two\n   more\n\n- a\n- b\n\n> said\n\n"
              "```cpp\nint main() {\n  return *p ** 2;\n}\n```\nend of 2 * 3 * 4 and snake_case_name")
    html = page.run("(d => { showMarkdown(d, %s); d.querySelectorAll('button').forEach(b => b.remove()); return d.innerHTML; })"
                    "(document.createElement('div'))" % json.dumps(source))
    assert html == ("<h2>Title</h2><p>Some <em>soft</em>, <strong>loud</strong> and <code>code</code> text,<br>in two lines.</p>"
                    "<ol><li>one</li><li>two\nmore</li></ol><ul><li>a</li><li>b</li></ul><blockquote>said</blockquote>"
                    "<pre><code>int main() {\n  return *p ** 2;\n}</code></pre><p>end of 2 * 3 * 4 and snake_case_name</p>")
    # Half-written text, as it streams in, never fails.
    page.run("(s => { for (let i = 0; i <= s.length; ++i) showMarkdown(document.createElement('div'), s.slice(0, i)); })(%s)"
             % json.dumps(source))


def test_reasoning_is_folded(page):
    """A stream as a thinking model sends it."""
    events = [{"choices": [{"delta": {"reasoning_content": "Let me "}}]}, {"choices": [{"delta": {"reasoning_content": "think."}}]},
              {"choices": [{"delta": {"content": "Done."}}]},
              {"choices": [{"delta": {}, "finish_reason": "stop"}],
               "timings": {"predicted_per_second": 41.5, "predicted_n": 7, "prompt_n": 5, "cache_n": 3, "prompt_per_second": 99},
               "speculation": {"rounds": 2, "tokens_per_step": 3.5}}]
    stream = "".join("data: %s\n\n" % json.dumps(event) for event in events) + "data: [DONE]\n\n"
    page.run("window.fetch = async () => new Response(%s), ''" % json.dumps(stream))
    page.type("Hi")
    page.press("Enter")
    page.wait("messages.length === 2 && " + IDLE)
    assert page.run(TEXT) == "Done."
    assert page.run("document.querySelector('.thoughts').open") is False
    assert page.run("document.querySelector('.thoughts div').textContent") == "Let me think."
    assert page.run("document.querySelector('.figures').textContent") == "41.5 tok/s · 3.50 tokens per step · 7 tokens · prompt 8 (3 cached) at 99 tok/s"


def test_errors_are_shown(page):
    set_field(page, "temperature", "-1")
    page.type("Hi")
    page.press("Enter")
    page.wait("document.querySelector('.turn.assistant .error') !== null")
    assert "temperature" in page.run("document.querySelector('.turn.assistant .error').textContent")
    assert page.run("messages.length") == 0
    page.problems.clear()  # the browser logs the 400


def test_a_key_is_asked_for(browser, start):
    locked = start("--api-key", "secret")
    browser.open(locked.url + "/")
    browser.wait("document.querySelector('#model').textContent.includes('API key')")
    set_field(browser, "key", "secret")
    browser.wait("document.querySelector('#model').textContent.includes('cpu')")
    set_field(browser, "max_tokens", "3")
    browser.run("document.querySelector('#prompt').focus()")
    browser.type("Hi")
    browser.press("Enter")
    browser.wait("messages.length === 2 && " + IDLE)
    assert browser.run("localStorage.getItem('1bit.key')") is None  # a key isn't kept
