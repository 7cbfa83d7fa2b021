"""inspect, plan, quantize and convert: what they tell, and what they refuse."""
import json
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path


def document(done):
    assert done.code == 0, done.err
    assert done.out.count("\n") == 1
    return json.loads(done.out)


def patched(source, target, old, new):
    """A copy of a file with the only occurrence of some bytes changed."""
    data = source.read_bytes()
    assert data.count(old) == 1 and len(old) == len(new)
    target.write_bytes(data.replace(old, new))
    return target


def stamp(value):
    """The metadata entry of the rotation's stamp."""
    key = b"onebit.hadamard_q4_0"
    return struct.pack("<Q", len(key)) + key + struct.pack("<Ii", 5, value)


def test_inspect_document(bit, files):
    doc = document(bit("inspect", files.h32, "--json"))
    assert doc["architecture"] == "qwen35" and doc["hadamard"] == 32 and doc["problem"] is None
    assert doc["file_bytes"] == files.h32.stat().st_size
    assert doc["memory"]["context_per_1024_tokens"] > 0
    tensors = {t["name"]: t for t in doc["tensors"]}
    assert doc["parameters"] == sum(_product(t["shape"]) for t in doc["tensors"])
    assert tensors["blk.3.attn_q.weight"] == {"name": "blk.3.attn_q.weight", "type": "q4_0", "shape": [256, 64], "rotated": True,
                                              "path": "w4a4"}
    assert tensors["output_norm.weight"]["path"] == "f32"
    assert tensors["token_embd.weight"]["path"] == "gather" and not tensors["token_embd.weight"]["rotated"]
    assert tensors["blk.0.ssm_alpha.weight"]["path"] == "int8"


def _product(shape):
    n = 1
    for size in shape:
        n *= size
    return n


def test_inspect_plain_and_drafter(bit, files):
    plain = document(bit("inspect", files.q4, "--json"))
    assert plain["hadamard"] == 0 and not any(t["rotated"] for t in plain["tensors"])
    assert {t["path"] for t in plain["tensors"]} == {"f32", "int8", "gather"}
    drafter = document(bit("inspect", files.drafter_h32, "--json"))
    assert drafter["architecture"] == "dflash"
    paths = {t["name"]: t["path"] for t in drafter["tensors"]}
    assert paths["selector_successor.weight"] == "gather"
    text = bit("inspect", files.drafter_h32, "--tensors")
    assert text.code == 0 and "fc.weight" in text.out and "rotated" in text.out


def test_inspect_of_a_file_that_is_no_model(bit, tmp_path):
    entry = lambda key, value: struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, len(value)) + value
    empty = tmp_path / "empty.gguf"
    empty.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + entry(b"general.architecture", b"qwen3"))
    doc = document(bit("inspect", empty, "--json"))
    assert doc["tensors"] == [] and "qwen3.block_count" in doc["problem"]
    assert "can't be run" in bit("inspect", empty).out
    assert bit("plan", "-m", empty).code == 3


def test_plan_document(bit, files):
    doc = document(bit("plan", "-m", files.h32, "--dflash", files.drafter_q8, "--device", "cpu", "--json"))
    assert doc["device"] == "cpu"
    model = {"path": str(files.h32), "architecture": "qwen35", "hadamard": 32, "moe": False, "context_length": 512}
    assert doc["model"] == model
    assert doc["drafter"] == {"kind": "dflash2", "path": str(files.drafter_q8), "type": "q8_0", "block_size": 8, "n_max": 7,
                              "p_min": 0, "adaptive": True, "lookup": True}
    assert doc["w4a4"]["prompt"] == "int4" and doc["w4a4"]["tensors"] > 0 and "rotated" in doc["w4a4"]["why"]
    assert doc["recipes"] == [] and doc["warnings"] == []
    assert all(set(pool) == {"pool", "bytes"} and pool["bytes"] > 0 for pool in doc["memory"])


def test_plan_settings(bit, files):
    plan = lambda *flags: document(bit("plan", "-m", files.h32, "--dflash", files.drafter_q8, "--json", *flags))
    assert plan("--mtp-max", "3")["drafter"]["n_max"] == 3
    assert plan("--draft-max", "3", "--draft-p-min", "0.4")["drafter"]["p_min"] == 0.4
    assert any("block of 8" in warning for warning in plan("--mtp-max", "16")["warnings"])
    assert plan("--w4a4", "none")["w4a4"] == {"prompt": "int8", "tensors": 0, "why": "--w4a4 none: exact 8-bit activations"}
    assert document(bit("plan", "-m", files.q4, "--json"))["w4a4"]["prompt"] == "int8"
    assert document(bit("plan", "-m", files.q4, "--json"))["drafter"] is None
    assert any("trained" in warning for warning in plan("-c", "1000")["warnings"])


def test_plan_ops_lists_all_three_plans(bit, files):
    done = bit("plan", "-m", files.h32, "--dflash", files.drafter_q8, "--ops")
    assert done.code == 0
    for words in ("plan qwen35:", "plan dflash encode:", "plan dflash draft:", "attention", "select_walk", "prompt=int4", "rotate"):
        assert words in done.out
    ops = document(bit("plan", "-m", files.h32, "--ops", "--json"))["ops"]
    assert list(ops) == ["target"]


def test_unknown_stamp_is_refused(bit, files, tmp_path):
    bad = patched(files.h32, tmp_path / "stamp64.gguf", stamp(32), stamp(64))
    for command in (["plan", "-m", bad], ["run", "-m", bad, "-p", "x"], ["serve", "-m", bad], ["bench", "-m", bad], ["inspect", bad]):
        done = bit(*command)
        assert done.code == 3, done
        assert "Hadamard-rotated" in done.err and "64" in done.err


def test_stray_q4_0_tensor_in_a_stamped_file_is_refused(bit, files, tmp_path):
    bad = patched(files.h32, tmp_path / "stray.gguf", b"blk.3.attn_k.weight", b"blk.3.attn_X.weight")
    done = bit("plan", "-m", bad)
    assert done.code == 3 and "Hadamard-rotated" in done.err and "blk.3.attn_X.weight" in done.err


def test_drafter_of_another_width_is_refused_with_both_numbers(bit, files):
    for command in ("plan", "serve", "bench"):
        done = bit(command, "-m", files.h32, "--dflash", files.wide_drafter)
        assert done.code == 3 and "128" in done.err and "64" in done.err


def test_drafter_taps_beyond_the_target_are_refused_with_both_numbers(bit, files):
    done = bit("plan", "-m", files.h32, "--dflash", files.deep_drafter)
    assert done.code == 3 and "block 10" in done.err and "4 blocks" in done.err


def test_target_and_drafter_swapped(bit, files):
    target_as_drafter = bit("plan", "-m", files.h32, "--dflash", files.q8)
    assert target_as_drafter.code == 3 and "qwen35" in target_as_drafter.err
    drafter_as_target = bit("plan", "-m", files.drafter_q8)
    assert drafter_as_target.code == 3 and "dflash" in drafter_as_target.err


def test_memory_limit_is_exit_4_with_a_table(bit, files):
    done = bit("run", "-m", files.h32, "-p", "x", "--memory-limit", "1")
    assert done.code == 4
    for pool in ("weights", "state", "scratch"):
        assert pool in done.err


def test_truncated_files_are_refused(bit, files, tmp_path):
    data = files.h32.read_bytes()
    for size in (0, 3, 20, 200, len(data) // 2, len(data) - 1):
        cut = tmp_path / f"cut{size}.gguf"
        cut.write_bytes(data[:size])
        done = bit("plan", "-m", cut)
        assert done.code == 3 and str(cut) in done.err, done
        assert bit("quantize", cut, tmp_path / "out.gguf").code == 3
        assert not (tmp_path / "out.gguf").exists()


def test_quantize_refuses_and_leaves_nothing(bit, files, tmp_path):
    out = tmp_path / "out.gguf"
    for source, reason in ((files.h32, "rotated"), (files.q4, "q4_0"), (tmp_path / "none", "none")):
        done = bit("quantize", source, out)
        assert done.code == 3 and reason in done.err
    assert bit("quantize", files.bf16, tmp_path / "no" / "folder.gguf").code == 1
    same = shutil.copy(files.bf16, tmp_path / "same.gguf")
    assert bit("quantize", same, same).code == 2
    assert bit("quantize", files.bf16, out, "--type", "q8_0", "--hadamard", "32").code == 2
    assert bit("quantize", files.bf16, out, "--no-search", "--imatrix", files.bf16).code == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["same.gguf"]
    assert (tmp_path / "same.gguf").read_bytes() == files.bf16.read_bytes()


def test_quantize_types(bit, files, tmp_path):
    for kind in ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "f16", "bf16"):
        out = tmp_path / f"{kind}.gguf"
        assert bit("quantize", files.bf16, out, "--type", kind.upper()).code == 0
        types = {t["type"] for t in document(bit("inspect", out, "--json"))["tensors"]}
        assert kind in types


def catches(process, number):
    """Whether the process has a handler for this signal by now."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) & 1 << (number - 1))
    return False


def test_quantize_ended_by_a_signal_leaves_nothing(binary, tmp_path):
    tokens = 1 << 20
    name = b"blk.0.ffn_up.weight"
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 1)
    key, arch = b"general.architecture", b"qwen3"
    head += struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, len(arch)) + arch
    head += struct.pack("<Q", len(name)) + name + struct.pack("<IQQIQ", 2, 1024, tokens // 4, 0, 0)
    head += b"\0" * (-len(head) % 32)
    big = tmp_path / "big.gguf"
    with open(big, "wb") as file:
        file.write(head)
        file.truncate(len(head) + tokens * 1024)  # 1 GiB of zeros that take no space
    out = tmp_path / "out" / "big-q4.gguf"
    out.parent.mkdir()
    process = subprocess.Popen([binary, "quantize", big, out, "-t", "1"], stderr=subprocess.PIPE)
    while not catches(process, signal.SIGINT):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 1, error
    assert list(out.parent.iterdir()) == []


def test_calibration_ended_by_a_signal_leaves_nothing(binary, files, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"def f{i}(x): return x + {i}\n" for i in range(20000)))
    out = tmp_path / "out"
    out.mkdir()
    whole = ["--hadamard", "32", "--gptq", "-f", text, "--chunks", "500", "--w4a4-budget", "5%"]
    listing = ["--w4a4-budget", "5%", "-f", text, "-c", "4096"]
    moments = ["imatrix", "--hessian", "-m", files.bf16, "-f", text, "-o", out / "moments.gguf"]
    for command in (["quantize", files.bf16, out / "a.gguf", *whole], ["quantize", files.h32, out / "b.gguf", *listing], moments):
        for number in (signal.SIGINT, signal.SIGTERM):
            process = subprocess.Popen([binary, *map(str, command), "-t", "1"], stderr=subprocess.PIPE)
            while not catches(process, number):
                assert process.poll() is None
                time.sleep(0.01)
            process.send_signal(number)
            error = process.communicate(timeout=60)[1]
            assert process.returncode == 1 and (b"interrupted" in error or b"stopped; nothing was written" in error), (command, error)
            assert list(out.iterdir()) == []


def test_quantize_from_moments(bit, files, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"def f{i}(x): return x + {i}\n" for i in range(400)))
    moments, ours, same = (tmp_path / name for name in ("moments.gguf", "ours.gguf", "same.gguf"))
    assert bit("imatrix", "--hessian", "-m", files.bf16, "-f", text, "-o", moments, "-c", "64", "--chunks", "8").code == 0
    flags = ["--hadamard", "32", "--gptq"]
    assert bit("quantize", files.bf16, ours, *flags, "-f", text, "-c", "64", "--chunks", "8").code == 0
    assert bit("quantize", files.bf16, same, *flags, "--hessian", moments).code == 0
    assert ours.read_bytes() == same.read_bytes()
    for wrong in (["--gptq"], ["--hessian", moments], ["--gptq", "--hessian", moments, "-f", text], ["-f", text]):
        done = bit("quantize", files.bf16, tmp_path / "no.gguf", *wrong)
        assert done.code == 2, done
    assert bit("quantize", files.bf16, tmp_path / "no.gguf", *flags, "--hessian", moments, "--w4a4-budget", "5%").code == 2
    assert bit("quantize", files.bf16, tmp_path / "no.gguf", "--gptq", "--hessian", files.q8).code == 3
    assert bit("quantize", files.qwen3, tmp_path / "no.gguf", "--gptq", "--hessian", moments).code == 3
    assert not (tmp_path / "no.gguf").exists()


def test_convert_refuses_and_leaves_nothing(bit, files, tmp_path):
    out = tmp_path / "out.gguf"
    folder = tmp_path / "hf"
    shutil.copytree(files.hf, folder)
    assert bit("convert", tmp_path / "none", out).code == 3
    assert bit("convert", files.bf16, out).code == 3
    config = json.loads((folder / "config.json").read_text())
    for change, words in (({"architectures": ["StrangeModel"], "model_type": "strange"}, "strange"), ({"hidden_size": 96}, "96")):
        (folder / "config.json").write_text(json.dumps({**config, **change}))
        done = bit("convert", folder, out)
        assert done.code == 3 and words in done.err, done
    (folder / "config.json").write_text("{")
    assert bit("convert", folder, out).code == 3
    assert not out.exists()


def test_recipes(bit, files, tmp_path):
    recipe = {"id": "short-drafts", "match": {"drafter": ["dflash2"], "device": ["cpu"], "hadamard_q4_0": True, "moe": False},
              "args": ["--draft-max", "3", "--mtp-p-min", "0.4"], "why": "a test", "measured": "nothing, a test"}
    path = tmp_path / "recipes.json"

    def plan(recipes, *flags, model=files.h32):
        path.write_text(json.dumps({"recipes": recipes}))
        return bit("plan", "-m", model, "--dflash", files.drafter_q8, "--device", "cpu", "--json", "--recipes", path, *flags)

    doc = document(plan([recipe]))
    assert doc["recipes"] == [{"id": "short-drafts", "added": ["--draft-max", "3", "--mtp-p-min", "0.4"]}]
    assert doc["drafter"]["n_max"] == 3 and doc["drafter"]["p_min"] == 0.4
    doc = document(plan([recipe], "--mtp-max", "5"))
    assert doc["drafter"]["n_max"] == 5 and doc["recipes"][0]["added"] == ["--mtp-p-min", "0.4"]
    assert document(plan([recipe], "--no-recipes"))["recipes"] == []
    assert document(plan([recipe], model=files.q4))["recipes"] == []
    second = {**recipe, "id": "later", "args": ["--draft-max", "5"]}
    assert document(plan([recipe, second]))["drafter"]["n_max"] == 3
    without = lambda key: {k: v for k, v in recipe.items() if k != key}
    for bad, words in (
            ([without("measured")], "measured"), ([without("args")], "args"), ([without("id")], "id"),
            ([{**recipe, "measured": ""}], "measured"), ([recipe, recipe], "twice"), ([{**recipe, "env": {}}], "env"),
            ([{**recipe, "match": {"colour": ["red"]}}], "colour"), ([{**recipe, "match": {"moe": "yes"}}], "moe"),
            ([{**recipe, "args": ["3"]}], "3"), ([{**recipe, "args": ["--colour", "red"]}], "--colour"),
            ([{**recipe, "args": ["--draft-max", "many"]}], "--mtp-max"), ("none", "recipes"), ([3], "object")):
        done = plan(bad)
        assert done.code == 3 and words in done.err, (bad, done)
    path.write_text("{")
    assert bit("plan", "-m", files.h32, "--recipes", path).code == 3
