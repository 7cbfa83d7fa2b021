"""run, chat, tokenize and bench on the tiny models."""
import json
import os
import signal
import subprocess

import pytest

FLAGS = ("-t", "1")


def document(done):
    assert done.code == 0, done.err
    assert done.out.count("\n") == 1
    return json.loads(done.out)


def run(bit, model, *flags, **more):
    return document(bit("run", "-m", model, *FLAGS, "--json", *flags, **more))


def test_run_document(bit, files):
    doc = run(bit, files.h32, "--dflash", files.drafter_q8, "-p", "the thing in the anthem", "-n", "20",
              "--draft-max", "7")  # fixed: what adaptive drafting does with random weights is its own affair
    assert {"text", "tokens", "prompt_tokens", "generated_tokens", "finish_reason", "timings", "speculation"} <= set(doc)
    assert set(doc["timings"]) == {"prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second", "predicted_n",
                                   "predicted_ms", "predicted_per_token_ms", "predicted_per_second", "cache_n", "draft_n",
                                   "draft_n_accepted"}
    speculation = doc["speculation"]
    assert {"kind", "rounds", "drafted", "accepted", "tokens_per_step", "accepted_per_position"} <= set(speculation)
    assert speculation["kind"] == "dflash2" and speculation["rounds"] > 0
    assert doc["timings"]["draft_n"] == speculation["drafted"] > 0
    assert doc["timings"]["predicted_n"] == doc["generated_tokens"] == len(doc["tokens"]) == 20
    assert doc["timings"]["prompt_n"] == doc["prompt_tokens"]
    assert doc["finish_reason"] == "length"


@pytest.mark.parametrize("drafter", ["drafter_bf16", "drafter_q8", "drafter_q4", "drafter_h32"])
@pytest.mark.parametrize("model", ["q8", "h32"])
def test_text_with_a_drafter_is_the_text_without(bit, files, model, drafter):
    flags = ("-p", "the thing in the anthem", "-n", "24")
    plain = run(bit, getattr(files, model), *flags)
    drafted = run(bit, getattr(files, model), "--dflash", getattr(files, drafter), *flags)
    assert plain["speculation"]["kind"] == "none"
    assert drafted["tokens"] == plain["tokens"] and drafted["text"] == plain["text"]


def test_streamed_text_is_the_documents_text(bit, files):
    flags = ("-m", files.q8, *FLAGS, "-p", "an inn", "-n", "16")
    assert bit("run", *flags).out == document(bit("run", *flags, "--json"))["text"] + "\n"


def test_prompt_from_file_and_stdin(bit, files, tmp_path):
    (tmp_path / "prompt.txt").write_text("the end\n")
    flags = ("-n", "8")
    wanted = run(bit, files.q8, "-p", "the end\n", *flags)["tokens"]
    assert run(bit, files.q8, "-f", tmp_path / "prompt.txt", *flags)["tokens"] == wanted
    assert run(bit, files.q8, "-f", "-", *flags, stdin="the end\n")["tokens"] == wanted
    assert run(bit, files.q8, *flags, stdin="the end\n")["tokens"] == wanted
    assert bit("run", "-m", files.q8, "-f", tmp_path / "none").code == 3
    assert bit("run", "-m", files.q8, "-f", tmp_path).code == 3


def test_bad_prompts(bit, files):
    assert bit("run", "-m", files.q8, "-p", "").code == 2
    long = bit("run", "-m", files.q8, "-p", "a " * 600)
    assert long.code == 2 and "512" in long.err
    assert bit("run", "-m", files.q8, "-p", "x", "--system", "y").code == 2
    assert bit("run", "-m", files.q8, "-p", "x", "--chat", "--chat-template-kwargs", "[1]").code == 2
    assert bit("run", "-m", files.q8, "-p", "x", "--chat-template-file", "/nonexistent").code == 3


def test_seed_and_sampling(bit, files):
    flags = ("-p", "the", "-n", "12", "--temp", "1.5")
    first = run(bit, files.q8, *flags, "-s", "7")["tokens"]
    assert run(bit, files.q8, *flags, "-s", "7")["tokens"] == first
    assert run(bit, files.q8, *flags, "-s", "8")["tokens"] != first
    assert run(bit, files.q8, "-p", "the", "-n", "12", "--temp", "5", "--top-k", "1")["tokens"] == run(
        bit, files.q8, "-p", "the", "-n", "12")["tokens"]


def test_stop_string_ends_the_text(bit, files):
    whole = run(bit, files.q8, "-p", "the", "-n", "32")["text"]
    position = next(i for i in range(8, len(whole)) if whole[i].isascii() and whole[i].isprintable())
    stop = whole[position]
    cut = run(bit, files.q8, "-p", "the", "-n", "32", "--stop", "never this", "--stop", stop)
    assert cut["text"] == whole[:whole.index(stop)] and cut["finish_reason"] == "stop"
    assert run(bit, files.q8, "-p", "the", "-n", "32", "--stop", "[a,b]")["text"] == whole


def test_chat_template(bit, files, tmp_path):
    chat = run(bit, files.q8, "-p", "hi", "--chat", "--system", "be kind", "-n", "4")
    wanted = "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert chat["tokens"] == run(bit, files.q8, "-p", wanted, "-n", "4")["tokens"]
    (tmp_path / "own.jinja").write_text("{{ messages[0].content }}{{ tail }}")
    own = run(bit, files.q8, "-p", "hi", "--chat", "-n", "4", "--chat-template-file", tmp_path / "own.jinja",
              "--chat-template-kwargs", '{"tail": "!"}')
    assert own["tokens"] == run(bit, files.q8, "-p", "hi!", "-n", "4")["tokens"]
    (tmp_path / "bad.jinja").write_text("{{ messages")
    bad = bit("run", "-m", files.q8, "-p", "x", "--chat", "--chat-template-file", tmp_path / "bad.jinja")
    assert bad.code == 3


def test_devices_and_instructions_agree(bit, files):
    flags = ("-p", "the thing in the anthem", "-n", "6")  # random weights soon meet a near-tie
    wanted = run(bit, files.q8, "--device", "ref", *flags)["tokens"]
    for isa in ("avx2", "portable"):
        assert run(bit, files.q8, "--device", "cpu", "--isa", isa, *flags)["tokens"] == wanted


def test_run_ends_on_a_signal(binary, files):
    process = subprocess.Popen([binary, "run", "-m", str(files.q8), "-t", "1", "-p", "x", "-n", "-1", "-c", "400000", "--ignore-eos"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(40)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 1


def test_chat_from_a_pipe(bit, files):
    done = bit("chat", "-m", files.q8, *FLAGS, "-n", "4", "--temp", "0", stdin="hi\n\n/reset\nhi\n/exit\nignored\n")
    assert done.code == 0, done.err
    answer = run(bit, files.q8, "-p", "hi", "--chat", "-n", "4")["text"]
    assert done.out == f"{answer}\n{answer}\n"
    assert bit("chat", "-m", files.q8, stdin="").code == 0


def test_tokenize_and_back(bit, files):
    text = "the thing <|im_end|>\n \u00e4\u4e2d\U0001f600"
    ids = bit("tokenize", "-m", files.h32, stdin=text).out
    assert "263" in ids.split()  # <|im_end|>, the third special token
    assert bit("detokenize", "-m", files.h32, stdin=ids).out == text
    assert bit("detokenize", "-m", files.h32, "-p", "[257, 105]").out == "thei"
    plain = bit("tokenize", "-m", files.h32, "-p", text, "--no-parse-special").out
    assert "267" not in plain.split() and len(plain.split()) > len(ids.split())


def test_tokenize_lines(bit, files):
    texts = ["the", "", "a\nb", "\u00e9"]
    lines = "".join(json.dumps({"text": t}) + "\n" for t in texts)
    done = bit("tokenize", "-m", files.h32, "--jsonl", stdin=lines)
    assert [set(json.loads(line)) for line in done.out.splitlines()] == [{"ids"}] * 4
    back = bit("detokenize", "-m", files.h32, "--jsonl", stdin=done.out)
    assert [json.loads(line)["text"] for line in back.out.splitlines()] == texts


@pytest.mark.parametrize("command, line", [
    ("tokenize", "{}"), ("tokenize", "[]"), ("tokenize", '{"text": 3}'), ("tokenize", '{"text": "\xff'), ("tokenize", "x"),
    ("detokenize", '{"ids": 3}'), ("detokenize", '{"ids": [-1]}'), ("detokenize", '{"ids": [512]}'),
    ("detokenize", '{"ids": [1.5]}'), ("detokenize", '{"ids": [99999999999999999999]}'), ("detokenize", '{"ids": ["a"]}')])
def test_bad_lines_name_their_number(bit, files, command, line):
    good = '{"text": "a"}' if command == "tokenize" else '{"ids": [1]}'
    done = bit(command, "-m", files.h32, "--jsonl", stdin=f"{good}\n{line}\n")
    assert done.code == 3 and "line 2" in done.err, done


def test_bad_ids(bit, files):
    for text in ("x", "1 2 three", "99999", "-1", "1.5", "99999999999999999999"):
        assert bit("detokenize", "-m", files.h32, stdin=text).code == 3


def test_bench_document(bit, files):
    done = bit("bench", "-m", files.h32, "--dflash", files.drafter_q8, *FLAGS, "--prompt", "32", "--gen", "8", "--verify", "4",
               "--reps", "2", "--json")
    doc = document(done)
    assert {"model", "device", "threads", "rows", "peaks"} <= set(doc) and doc["threads"] == 1
    assert set(doc["peaks"]) == {"gbps", "int8_tops"} and doc["peaks"]["gbps"] > 0
    tests = [row["test"] for row in doc["rows"]]
    assert tests[:3] == ["pp32", "tg8", "verify4"]
    assert {"spec-code", "spec-prose", "spec-short", "plain-code", "plain-prose", "plain-short"} == set(tests[3:])
    for row in doc["rows"]:
        speed = row["tokens_per_second"]
        assert set(row) >= {"test", "tokens_per_second", "gbps", "tops", "reps"} and row["reps"] == 2
        assert 0 < speed["min"] <= speed["median"] <= speed["max"]
    assert all(row["gbps"] > 0 and row["tops"] > 0 for row in doc["rows"][:3])


def test_threads_follow_the_affinity_mask(bit, files):
    """As under taskset: the program inherits the mask."""
    mask = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mask)})
        done = bit("bench", "-m", files.qwen3, "--prompt", "0", "--gen", "2", "--verify", "0", "--reps", "1", "--json")
    finally:
        os.sched_setaffinity(0, mask)
    assert document(done)["threads"] == 1


def test_bench_text_and_limits(bit, files):
    done = bit("bench", "-m", files.qwen3, *FLAGS, "--prompt", "0", "--gen", "4", "--verify", "0", "--reps", "1")
    assert done.code == 0 and "tg4" in done.out and "peaks" in done.out
    assert bit("bench", "-m", files.qwen3, "--prompt", "0", "--gen", "0", "--verify", "0").code == 2
    assert bit("bench", "-m", files.qwen3, "--prompt", "400", "-c", "100").code == 2
