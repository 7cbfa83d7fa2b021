"""Text completions, llama-server's own completion, tokens, templates, and what the server tells about itself."""
import openai
import pytest
from serving import wait_for


def test_completion_through_openai(server):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    fields = {"model": "any", "prompt": "def add(a, b):", "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**fields, logprobs=2, echo=True)
    choice = whole.choices[0]
    assert whole.object == "text_completion" and choice.text.startswith("def add(a, b):")
    assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs) == 12
    assert "def add(a, b):" + "".join(choice.logprobs.tokens) == choice.text
    assert choice.logprobs.text_offset[0] == len("def add(a, b):")
    chunks = list(client.completions.create(**fields, stream=True))
    assert "def add(a, b):" + "".join(chunk.choices[0].text for chunk in chunks) == choice.text
    assert chunks[-1].choices[0].finish_reason == "length"


def test_prompt_as_token_ids(server):
    text = "The first of all numbers is"
    ids = server.post("/tokenize", {"content": text})["tokens"]
    body = {"max_tokens": 8, "temperature": 0, "cache_prompt": False}
    replies = [server.post("/v1/completions", {**body, "prompt": prompt}) for prompt in (text, ids, [text], [ids])]
    assert len({reply["choices"][0]["text"] for reply in replies}) == 1
    assert len({reply["usage"]["prompt_tokens"] for reply in replies}) == 1


@pytest.mark.parametrize("path", ["/completion", "/completions"])
def test_native_completion(server, path):
    body = {"prompt": "def add(a, b):", "n_predict": 10, "temperature": 0, "return_tokens": True, "seed": 3}
    whole = server.post(path, body)
    assert whole["stop"] is True and whole["stop_type"] == "limit" and len(whole["tokens"]) == 10
    assert whole["tokens_predicted"] == 10 and whole["tokens_evaluated"] > 0
    assert whole["generation_settings"]["seed"] == 3 and whole["generation_settings"]["top_p"] == 0.95
    assert whole["timings"]["predicted_n"] == 10
    assert server.post("/detokenize", {"tokens": whole["tokens"]})["content"] == whole["content"]
    chunks = list(server.stream("/completion", body))
    assert "".join(chunk["content"] for chunk in chunks) == whole["content"]
    assert [chunk["stop"] for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    word = server.post(path, {**body, "stop": [whole["content"][3:6]]})
    assert word["stop_type"] == "word" and word["stopping_word"] == whole["content"][3:6]


def test_ignoring_the_end(server):
    body = {"prompt": "x", "n_predict": 100, "temperature": 0, "ignore_eos": True}
    assert server.post("/completion", body)["tokens_predicted"] == 100


def test_prefix_is_reused(server):
    prompt = "A prefix that only this test has: " + "one two three four five six seven " * 20
    body = {"prompt": prompt, "max_tokens": 4, "temperature": 0}
    first = server.post("/v1/completions", body)
    again = server.post("/v1/completions", {**body, "prompt": prompt + first["choices"][0]["text"] + " and more"})
    assert first["timings"]["cache_n"] == 0
    assert 0 < again["timings"]["cache_n"] == again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert again["timings"]["cache_n"] + again["timings"]["prompt_n"] == again["usage"]["prompt_tokens"]
    off = server.post("/v1/completions", {**body, "cache_prompt": False})
    assert off["timings"]["cache_n"] == 0


def test_tokens_and_back(server):
    text = "Hello, wörld! 你好 🙂\n\tend"
    ids = server.post("/tokenize", {"content": text})["tokens"]
    assert server.post("/detokenize", {"tokens": ids})["content"] == text
    pieces = server.post("/tokenize", {"content": text, "with_pieces": True})["tokens"]
    assert [p["id"] for p in pieces] == ids
    raw = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces)
    assert raw.decode() == text
    special = "<|im_end|>"
    assert len(server.post("/tokenize", {"content": special})["tokens"]) == 1
    assert len(server.post("/tokenize", {"content": special, "parse_special": False})["tokens"]) > 1


def test_apply_template(server):
    body = {"messages": [{"role": "user", "content": "Hi <|im_end|>"}]}
    prompt = server.post("/apply-template", body)["prompt"]
    assert "Hi <|im_end|>" in prompt and prompt.endswith("assistant\n")
    asked = server.post("/v1/chat/completions", {**body, "max_tokens": 1})["usage"]["prompt_tokens"]
    as_text = server.post("/tokenize", {"content": prompt})["tokens"]
    assert asked > len(as_text)  # what a user typed isn't a control token


def test_what_the_server_tells(server):
    props = server.get("/props")
    assert props["total_slots"] == 2 and props["chat_template"] and props["model_path"].endswith(".gguf")
    assert props["default_generation_settings"]["params"]["top_p"] == 0.95
    slots = server.get("/slots")
    assert [slot["id"] for slot in slots] == [0, 1]
    assert all(slot["n_ctx"] == 4096 for slot in slots)
    assert server.get("/health") == server.get("/v1/health") == {"status": "ok"}


def metrics(server):
    status, headers, text = server.request("GET", "/metrics")
    assert status == 200 and headers["Content-Type"].startswith("text/plain")
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line[0] != "#"}


def test_metrics_count(server):
    before = metrics(server)
    server.post("/v1/completions", {"prompt": "Count this", "max_tokens": 5, "ignore_eos": True})
    after = metrics(server)
    assert after["llamacpp:tokens_predicted_total"] == before["llamacpp:tokens_predicted_total"] + 5
    assert after["llamacpp:prompt_tokens_total"] > before["llamacpp:prompt_tokens_total"]
    key = 'onebit:requests_total{finish_reason="length"}'
    assert after[key] == before[key] + 1


def test_one_log_line_a_request_and_no_text(server):
    server.post("/v1/completions", {"prompt": "swordfish", "max_tokens": 17, "ignore_eos": True})
    wait_for(lambda: any("generated 17," in line for line in server.lines), 10)  # the log is read by a thread
    server.wait_until_idle()
    own = [line for line in server.lines if "generated 17," in line]
    assert len(own) == 1 and "length" in own[0]
    assert "swordfish" not in server.log()
