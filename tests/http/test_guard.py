"""Who may ask, and bodies that are wrong: every refusal is clear, and none of them harms the server."""
import json
import socket

import pytest
from serving import user

CHAT = "/v1/chat/completions"
SMALL = {"messages": user("Hi"), "max_tokens": 1}


def test_host(server):
    port = server.address[1]
    for host in ("localhost:%d" % port, "127.0.0.1", "[::1]:%d" % port):
        assert server.request("GET", "/health", headers={"Host": host})[0] == 200
    for path in ("/health", "/", "/v1/models"):
        status, error = server.error("GET", path, headers={"Host": "evil.example"})
        assert status == 403 and error["type"] == "permission_error"


def test_origin(server):
    assert server.request("POST", CHAT, SMALL, {"Origin": "http://localhost:3000"})[0] == 200
    for origin in ("https://evil.example", "null", "http://127.0.0.1.evil.example"):
        assert server.error("POST", CHAT, SMALL, {"Origin": origin})[0] == 403
    headers = server.request("GET", "/health", headers={"Origin": "http://localhost:3000"})[1]
    assert headers["Access-Control-Allow-Origin"] == "http://localhost:3000"
    assert "Access-Control-Allow-Credentials" not in headers
    headers = server.request("GET", "/health", headers={"Origin": "https://evil.example"})[1]
    assert "Access-Control-Allow-Origin" not in headers


def test_api_key(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("from-a-file\n")
    locked = start("--api-key", "secret", "--api-key-file", str(keys), "--host", "0.0.0.0")
    assert locked.request("GET", "/health")[0] == 200
    assert locked.request("GET", "/")[0] == 200
    for method, path, body in (("GET", "/v1/models", None), ("GET", "/props", None), ("GET", "/slots", None),
                               ("GET", "/metrics", None), ("POST", CHAT, SMALL), ("POST", "/tokenize", {"content": "a"}),
                               ("GET", "/nothing", None)):
        status, error = locked.error(method, path, body)
        assert status == 401 and error["type"] == "authentication_error"
        assert locked.error(method, path, body, {"Authorization": "Bearer wrong"})[0] == 401
    for headers in ({"Authorization": "Bearer secret"}, {"x-api-key": "secret"}, {"x-api-key": "from-a-file"}):
        assert locked.request("POST", CHAT, SMALL, headers)[0] == 200
    assert "secret" not in locked.log()


@pytest.mark.parametrize("body", [
    "", "{", "[]", "null", "5", "\"x\"", "{\"messages\": }", "{} trailing", "{\"messages\": [{\"role\": \"user\", \"content\": \"\\ud800\"}]}",
    "{" + "\"a\":{" * 5000, "{\"a\":" + "[" * 100000, "\x00", "{\"temperature\": NaN}", "{\"temperature\": 1e999}",
])
def test_bodies_that_are_not_json(server, body):
    status, error = server.error("POST", CHAT, body)
    assert status == 400 and error["type"] == "invalid_request_error" and "request body" in error["message"]


@pytest.mark.parametrize("field, value", [
    ("messages", "hi"), ("messages", []), ("messages", [1]), ("messages", [{"role": "user"}]), ("messages", [{"role": "nobody", "content": ""}]),
    ("temperature", "1"), ("temperature", -1), ("top_p", 2), ("top_k", 1.5), ("min_p", []), ("typical_p", -0.1), ("seed", "x"),
    ("max_tokens", -5), ("max_tokens", 0), ("max_tokens", "9"), ("n_predict", {}), ("stop", 1), ("stop", ["x"] * 17), ("stop", [None]),
    ("n", 2), ("stream", "yes"), ("stream_options", 1), ("logprobs", 5), ("top_logprobs", 50), ("logit_bias", 1),
    ("logit_bias", {"99999999": 1}), ("logit_bias", [[1]]), ("repeat_penalty", 0), ("repeat_last_n", -2), ("presence_penalty", None and 0 or "a"),
    ("speculative.n_max", -1), ("speculative.p_min", 2), ("chat_template_kwargs", 1), ("chat_template_kwargs", {"messages": []}),
    ("reasoning_format", "x"), ("response_format", {"type": "json_object"}), ("tools", {}), ("tool_choice", "required"), ("grammar", "x"),
    ("cache_prompt", 1), ("model", 1),
])
def test_fields_of_the_wrong_kind(server, field, value):
    status, error = server.error("POST", CHAT, {**SMALL, field: value})
    assert status == 400 and error["type"] == "invalid_request_error"
    assert field.split(".")[-1] in error["message"]


@pytest.mark.parametrize("value", [[260000000], [-1], [1.5], ["a", "b"], {}, 5, "", [], None])
def test_prompts_of_the_wrong_kind(server, value):
    status, error = server.error("POST", "/v1/completions", {"prompt": value})
    assert status == 400 and "prompt" in error["message"]


def test_a_prompt_longer_than_the_context(server):
    for stream in (False, True):
        status, error = server.error("POST", "/v1/completions", {"prompt": "word and " * 4000, "stream": stream})
        assert status == 400 and error["type"] == "exceed_context_size_error"
        assert error["n_prompt_tokens"] > error["n_ctx"] == 4096


def test_a_template_that_refuses(start, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text("{{ raise_exception('no such thing: ' + messages[0].role) }}")
    server = start("--chat-template-file", str(template))
    status, error = server.error("POST", CHAT, SMALL)
    assert status == 400 and "no such thing: user" in error["message"]


def test_paths_and_methods(server):
    for method, path, body, status, kind in (
            ("GET", "/nothing", None, 404, "not_found_error"), ("GET", "/v1/../etc/passwd", None, 404, "not_found_error"),
            ("POST", "/nothing", {"a": 1}, 404, "not_found_error"), ("GET", CHAT, None, 405, "invalid_request_error"),
            ("PUT", "/health", "x", 405, "invalid_request_error"), ("DELETE", "/v1/models", None, 405, "invalid_request_error"),
            ("POST", "/v1/embeddings", {"input": "x"}, 501, "not_supported_error"),
            ("POST", "/slots/0?action=unknown", None, 400, "invalid_request_error"),
            ("POST", "/v1/responses", {}, 501, "not_supported_error"), ("BREW", "/", None, 501, "not_supported_error")):
        found, error = server.error(method, path, body)
        assert (found, error["type"]) == (status, kind), path
    status, headers, _ = server.request("OPTIONS", CHAT, headers={"Origin": "http://localhost:1", "Access-Control-Request-Headers": "x-a"})
    assert status == 204 and headers["Access-Control-Allow-Headers"] == "x-a"


def test_huge_bodies(server):
    assert server.error("POST", CHAT, b"x" * (17 << 20))[0] == 413
    many = json.dumps({"prompt": [1] * 3_000_000})
    status, error = server.error("POST", "/v1/completions", many)
    assert status == 400 and "too many" in error["message"]
    text = "lorem ipsum dolor " * 500_000  # 9 MB of text
    status, error = server.error("POST", "/v1/completions", {"prompt": text})
    assert status == 400 and error["type"] == "exceed_context_size_error"
    assert server.request("GET", "/health")[0] == 200


def test_a_body_without_a_length(server):
    status, error = server.error("POST", CHAT)
    assert status == 400 and "request body" in error["message"]


def test_bytes_that_are_not_http(server):
    for data in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"\r\n" * 100 + b"\x00" * 100 + b"\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a" * 100_000,
                 b"POST " + CHAT.encode() + b" HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nx",
                 b"GET / HTTP/1.1\r\nRange: bytes=" + b"0-," * 2500 + b"\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
        with socket.create_connection(server.address, timeout=10) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
    assert server.request("GET", "/health")[0] == 200


def test_slow_clients_do_not_hold_others_up(server):
    stuck = []
    for _ in range(60):
        connection = socket.create_connection(server.address)
        connection.sendall(b"POST " + CHAT.encode() + b" HTTP/1.1\r\nContent-Length: 100\r\n\r\n{")
        stuck.append(connection)
    assert server.post(CHAT, SMALL)["usage"]["completion_tokens"] == 1
    for connection in stuck:
        connection.close()
