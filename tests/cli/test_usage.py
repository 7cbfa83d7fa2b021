"""Exit codes and messages for wrong usage, for every command."""
import pytest

USAGE = [
    [], ["nonsense"], ["help", "nonsense"], ["help", "run", "more"], ["version", "more"], ["--model"], ["-h", "--bogus"],
    ["run", "--bogus"], ["run", "-p", "x"], ["run", "-m"], ["run", "-m", "x.gguf", "--port", "1"],
    ["run", "-m", "x.gguf", "-p", "x", "-n", "many"], ["run", "-m", "x.gguf", "-p", "x", "-n", "1.5"],
    ["run", "-m", "x.gguf", "-p", "x", "--temp", "nan"], ["run", "-m", "x.gguf", "-p", "x", "--temp", "-1"],
    ["run", "-m", "x.gguf", "-p", "x", "--w4a4", "some"], ["run", "-m", "x.gguf", "-p", "x", "-f", "y"],
    ["run", "-m", "x.gguf", "-p", "x", "stray"], ["run", "-m", "--temp", "0"],
    ["serve"], ["serve", "-m", "x.gguf", "--port", "70000"], ["serve", "-m", "x.gguf", "--parallel", "0"],
    ["serve", "-m", "x.gguf", "--recipes"], ["chat"], ["chat", "-m", "x.gguf", "--json"],
    ["plan"], ["plan", "-m", "x.gguf", "--mtp-p-min", "2"], ["bench"], ["bench", "-m", "x.gguf", "--reps", "0"],
    ["inspect"], ["inspect", "a", "b"], ["inspect", "--ops", "a"], ["tokenize"], ["tokenize", "--ids", "1"], ["detokenize"],
    ["quantize"], ["quantize", "a"], ["quantize", "a", "b", "c"], ["quantize", "a", "b", "--type", "q9_9"],
    ["quantize", "a", "b", "--hadamard", "16"], ["quantize", "a", "b", "--hadamard", "64"],
    ["convert"], ["convert", "a"], ["convert", "a", "b", "--type", "gold"],
]


@pytest.mark.parametrize("arguments", USAGE, ids=" ".join)
def test_wrong_usage_is_exit_2_and_one_line(bit, arguments):
    done = bit(*arguments)
    assert done.code == 2, done
    assert done.out == ""
    assert done.err.startswith("1bit") and done.err.count("\n") == 1


def test_messages_name_flag_and_reason(bit):
    assert "--bogus" in bit("run", "--bogus").err
    assert "needs a value" in bit("run", "-m").err
    assert "needs a value" in bit("run", "-m", "--temp", "0").err
    assert "0 to 65535" in bit("serve", "-m", "x", "--port", "70000").err
    assert "auto|all|none" in bit("plan", "-m", "x", "--w4a4", "some").err
    assert "expected 32" in bit("quantize", "a", "b", "--hadamard", "16").err


def test_device_names(bit, files):
    unknown = bit("plan", "-m", files.h32, "--device", "abacus")
    assert unknown.code == 2 and "abacus" in unknown.err and "cpu" in unknown.err
    absent = bit("plan", "-m", files.h32, "--device", "cuda")
    assert absent.code == 3 and "cuda" in absent.err
    assert bit("plan", "-m", files.h32, "--device", "CPU0").code == 0


def test_several_devices(bit, files):
    one = bit("run", "-m", files.h32, "-p", "The", "-n", "12", "--temp", "0", "--device", "cpu", "-t", "1")
    two = bit("run", "-m", files.h32, "-p", "The", "-n", "12", "--temp", "0", "--device", "cpu,cpu", "-t", "1", "-ts", "2,1")
    assert one.code == 0 and two.code == 0 and two.out == one.out
    for wrong in ("1,", "a", "1,,2", "-1,2"):
        done = bit("plan", "-m", files.h32, "--device", "cpu,cpu", f"--tensor-split={wrong}")
        assert done.code == 2 and "--tensor-split" in done.err
    assert bit("plan", "-m", files.h32, "--device", "cpu,cpu", "--tensor-split", "1,1,1").code == 2
    assert "auto|none|layer|tensor" in bit("plan", "-m", files.h32, "--split-mode", "row").err


def test_missing_file_is_exit_3(bit):
    for command in (["run", "-p", "x"], ["plan"], ["serve"], ["bench"], ["chat"], ["tokenize", "-p", "x"]):
        done = bit(*command, "-m", "/nonexistent.gguf")
        assert done.code == 3, done
        assert "/nonexistent.gguf" in done.err
    assert bit("inspect", "/nonexistent.gguf").code == 3


def test_help_and_version(bit):
    for arguments in (["help"], ["--help"], ["-h"]):
        done = bit(*arguments)
        assert done.code == 0 and "quantize" in done.out and done.err == ""
    for command in "serve run chat plan bench inspect tokenize detokenize quantize convert".split():
        done = bit(command, "--help")
        assert done.code == 0 and f"usage: 1bit {command}" in done.out
        assert done.out == bit("help", command).out
    assert bit("version").out == bit("--version").out
    assert bit("version").out.startswith("1bit ")


def test_full_disk_is_an_error(binary):
    import subprocess
    with open("/dev/full", "w") as full:
        done = subprocess.run([binary, "help"], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1 and b"stdout" in done.stderr
