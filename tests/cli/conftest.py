"""What the tests of the program share: the binary, and small model files made with it."""
import os
import subprocess
from collections import namedtuple
from pathlib import Path

import checkpoints
import pytest

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("ONEBIT_BINARY", str(ROOT / "build" / "1bit"))

Done = namedtuple("Done", "code out err")


def call(*arguments, stdin="", timeout=120, binary=BINARY):
    """Runs the program; exit code and both outputs as text."""
    command = [binary, *map(str, arguments)]
    done = subprocess.run(command, input=stdin.encode(), capture_output=True, timeout=timeout)
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def make(*arguments):
    done = call(*arguments)
    assert done.code == 0, done.err
    return done


@pytest.fixture(scope="session")
def binary():
    return BINARY


@pytest.fixture(scope="session")
def bit():
    return call


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """Paths: hf (a folder), bf16, q8, q4, h32 (the target), drafter_bf16, drafter_q8, drafter_q4, drafter_h32;
    drafters that do not fit: wide_drafter (hidden size 128), deep_drafter (taps block 10); qwen3: a target without recurrence."""
    folder = tmp_path_factory.mktemp("models")
    Files = namedtuple("Files", "hf bf16 q8 q4 h32 drafter_bf16 drafter_q8 drafter_q4 drafter_h32 wide_drafter deep_drafter qwen3")
    path = {name: folder / f"{name}.gguf" for name in Files._fields if name != "hf"}
    hf = checkpoints.write_target(folder / "hf", "qwen3_5")
    make("convert", hf, path["bf16"])
    make("convert", checkpoints.write_target(folder / "qwen3", "qwen3"), path["qwen3"])
    make("convert", checkpoints.write_drafter(folder / "drafter"), path["drafter_bf16"])
    make("convert", checkpoints.write_drafter(folder / "wide", n_embd=128), path["wide_drafter"])
    make("convert", checkpoints.write_drafter(folder / "deep", n_target_layers=10, taps=(0, 1, 9)), path["deep_drafter"])
    for source, prefix in (("bf16", ""), ("drafter_bf16", "drafter_")):
        make("quantize", path[source], path[prefix + "q8"], "--type", "q8_0")
        make("quantize", path[source], path[prefix + "q4"], "--type", "q4_0")
        make("quantize", path[source], path[prefix + "h32"], "--hadamard", "32")
    return Files(hf=hf, **path)
