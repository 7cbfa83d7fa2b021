"""Chats through the openai package: replies, streams, fields."""
import json

import openai
import pytest
from serving import text_of, user


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def ask(client, **fields):
    return client.chat.completions.create(
        **{"model": "any", "messages": user("What is a list?"), "max_tokens": 32, "temperature": 0, **fields})


def test_models(client, server):
    models = client.models.list().data
    assert len(models) == 1 and models[0].owned_by == "1bit"
    assert ask(client, model="something-else", max_tokens=1).model == models[0].id
    meta = server.get("/models")["data"][0]["meta"]
    assert meta["n_vocab"] > 0 and meta["n_params"] > 0 and meta["n_ctx_train"] > 0 and meta["size"] > 0


def test_reply(client):
    reply = ask(client, seed=1)
    assert reply.object == "chat.completion" and reply.id.startswith("chatcmpl-")
    assert reply.choices[0].message.role == "assistant" and reply.choices[0].message.content
    assert reply.choices[0].finish_reason in ("stop", "length")
    usage = reply.usage
    assert 0 < usage.completion_tokens <= 32 and usage.prompt_tokens > 0
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    timings = reply.model_extra["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == usage.prompt_tokens
    assert timings["cache_n"] == usage.prompt_tokens_details.cached_tokens
    assert timings["predicted_n"] == usage.completion_tokens
    assert timings["prompt_per_second"] > 0 and timings["predicted_per_second"] > 0
    assert 0 <= timings["draft_n_accepted"] <= timings["draft_n"]
    assert reply.model_extra["speculation"]["accepted"] == timings["draft_n_accepted"]


def test_stream_is_the_reply_in_pieces(client):
    fields = {"extra_body": {"cache_prompt": False}}
    whole = ask(client, **fields)
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}, **fields))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({chunk.id for chunk in chunks}) == 1
    *texts, last, usage = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in texts) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in texts] == [None] * len(texts)
    assert last.choices[0].finish_reason == whole.choices[0].finish_reason
    assert last.model_extra["timings"]["predicted_n"] == whole.usage.completion_tokens
    assert usage.choices == [] and usage.usage.completion_tokens == whole.usage.completion_tokens
    assert sum(chunk.usage is not None for chunk in chunks) == 1


def test_no_usage_unless_asked(client):
    chunks = list(ask(client, stream=True, max_tokens=4))
    assert all(chunk.usage is None for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert chunks[-1].model_extra["timings"]["predicted_n"] == 4


def test_seed_reproduces(client):
    fields = {"temperature": 2.0, "extra_body": {"cache_prompt": False}}
    first, again, *others = [ask(client, seed=seed, **fields).choices[0].message.content for seed in (7, 7, 8, 9, 10)]
    assert first == again
    assert any(other != first for other in others)


def test_same_text_without_drafting(client):
    plain = ask(client, extra_body={"speculative.n_max": 0, "cache_prompt": False})
    assert plain.model_extra["timings"]["draft_n"] == 0
    drafted = ask(client, extra_body={"cache_prompt": False})
    assert drafted.choices[0].message.content == plain.choices[0].message.content


def test_stop_strings(client):
    text = ask(client).choices[0].message.content
    stop = text[len(text) // 2:][:6]  # across tokens
    cut = text[:text.index(stop)]
    for stops in (stop, ["never to be seen", stop]):
        reply = ask(client, stop=stops)
        assert reply.choices[0].message.content == cut
        assert reply.choices[0].finish_reason == "stop"
        assert reply.usage.completion_tokens < 32
        chunks = ask(client, stop=stops, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == cut


def test_length_under_every_name(client):
    for fields in ({"max_tokens": 3}, {"max_tokens": None, "max_completion_tokens": 3},
                   {"max_tokens": None, "extra_body": {"n_predict": 3}}):
        reply = ask(client, **fields)
        assert reply.usage.completion_tokens == 3 and reply.choices[0].finish_reason == "length"


def test_logprobs(client):
    reply = ask(client, max_tokens=8, logprobs=True, top_logprobs=3)
    tokens = reply.choices[0].logprobs.content
    assert len(tokens) == 8
    assert bytes(b for token in tokens for b in token.bytes).decode(errors="replace") == reply.choices[0].message.content
    for token in tokens:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3
        assert token.top_logprobs[0].token == token.token  # greedy
        assert token.logprob == pytest.approx(token.top_logprobs[0].logprob)
    chunks = list(ask(client, max_tokens=8, logprobs=True, top_logprobs=3, stream=True))
    streamed = [t for chunk in chunks if chunk.choices[0].logprobs for t in chunk.choices[0].logprobs.content]
    assert [t.token for t in streamed] == [t.token for t in tokens]


def test_logit_bias(client):
    first = ask(client, max_tokens=1, logprobs=True, top_logprobs=2)
    best, second = first.choices[0].logprobs.content[0].top_logprobs
    banned = best.model_extra["id"]
    reply = ask(client, max_tokens=1, logprobs=True, top_logprobs=1, logit_bias={str(banned): -100})
    assert reply.choices[0].logprobs.content[0].token == second.token != best.token


def test_messages_of_every_kind(client):
    turns = [
        {"role": "system", "content": "Answer in one line."},
        {"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": "a list?"}]},
        {"role": "assistant", "content": "A sequence."},
        {"role": "user", "content": "Tell me more: é 你好 🙂"},
    ]
    assert ask(client, messages=turns, max_tokens=4).usage.completion_tokens == 4


def test_fields_of_other_clients_are_ignored(client):
    reply = ask(client, max_tokens=2, user="someone", store=False, parallel_tool_calls=True, service_tier="auto",
                metadata={"a": "b"}, extra_body={"id_slot": 3, "samplers": ["top_k"], "mirostat": 0, "n_keep": 0})
    assert reply.usage.completion_tokens == 2


def test_errors_as_openai_sees_them(client):
    with pytest.raises(openai.BadRequestError, match="temperature"):
        ask(client, temperature=-1)
    with pytest.raises(openai.BadRequestError, match="image_url"):
        ask(client, messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}])
    with pytest.raises(openai.NotFoundError):
        client.files.list()


def test_progress_of_the_prompt(server):
    body = {"messages": user("What is a tuple? " * 200), "max_tokens": 2, "return_progress": True, "cache_prompt": False}
    chunks = list(server.stream("/v1/chat/completions", body))
    progress = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    assert progress and progress[-1]["processed"] == progress[-1]["total"] > 200
    assert sorted(p["processed"] for p in progress) == [p["processed"] for p in progress]


def test_timings_and_tokens_per_chunk(server):
    body = {"messages": user("Hi"), "max_tokens": 6, "temperature": 0, "timings_per_token": True, "return_tokens": True}
    chunks = list(server.stream("/v1/chat/completions", body))
    texts = [chunk for chunk in chunks if chunk["choices"][0]["delta"].get("content")]
    assert all("timings" in chunk for chunk in texts)
    assert sum(len(chunk["tokens"]) for chunk in texts) == 6
    ids = [token for chunk in texts for token in chunk["tokens"]]
    assert server.post("/detokenize", {"tokens": ids})["content"].startswith(text_of(chunks)[0])


def test_characters_are_whole(server):
    """Byte tokens are forced by a bias, so that characters span several of them."""
    ids = [t["id"] for t in server.post("/tokenize", {"content": "🙂é", "with_pieces": True})["tokens"]]
    bias = {str(i): 80 for i in ids}
    chunks = server.stream("/v1/chat/completions", {"messages": user("x"), "max_tokens": 40, "logit_bias": bias, "seed": 5})
    for chunk in chunks:
        json.dumps(chunk).encode()  # no lone surrogates
    for chunk in chunks:
        content = chunk["choices"][0]["delta"].get("content", "")
        assert content == content.encode().decode()


def test_reasoning(start, tmp_path):
    """A template that opens the block: what is generated before its end is reasoning."""
    template = tmp_path / "thinking.jinja"
    template.write_text("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
                        "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}")
    server = start("--chat-template-file", str(template))
    assert server.get("/props")["thinking_switch"] is True
    body = {"messages": user("What is a list?"), "max_tokens": 16, "temperature": 0, "cache_prompt": False}

    def ask(**fields):
        message = server.post("/v1/chat/completions", {**body, **fields})["choices"][0]["message"]
        streamed = text_of(server.stream("/v1/chat/completions", {**body, **fields}))
        assert streamed == (message["content"], message.get("reasoning_content", ""))
        return streamed

    content, reasoning = ask()
    assert content == "" and reasoning != ""
    unsplit = ask(reasoning_format="none")[0]
    assert unsplit.startswith("<think>\n") and unsplit.removeprefix("<think>").strip() == reasoning
    for off in ({"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}):
        content, reasoning = ask(**off)
        assert content != "" and reasoning == ""
