"""Every step of the recipe on small models with random weights, on the CPU: answers, training, resuming, two processes, evaluation, export.

usage: selftest_models.py DIR [NAME ...]      DIR holds Hugging Face directories, NAMEs default to all targets of the recipe; exit code 1 when a check fails
Needs half a minute a model on an idle core. Answers come from the slot writer where it applies and must equal those of the model itself.
"""
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import capture                                            # noqa: E402
import evaluate                                           # noqa: E402
import train                                              # noqa: E402
from dflash import optim, rows, targets, verify, writer   # noqa: E402

NAMES = ("llama", "qwen3", "qwen3_moe", "qwen3_5", "qwen3_5_moe")
SMALL = "--mask-id 511 --layers 2 --head-dim 16 --heads 4 --kv-heads 2 --ffn 96 --conv-group 16 --block 4 --window 16 --rank 4 --top-k 100 --lr 0.03 --batch 2 --anchors 4 --selector-from 0 --joint-from 0.5 --minutes 600".split()


def quiet(f, *a):
    with contextlib.redirect_stdout(io.StringIO()):
        return f(*a)


def trainer(target, data, out, *more):
    sys.argv = ["train.py", "--target", target, "--rows", data, "--out", out, *SMALL, *more]
    return train.Trainer(train.arguments())


def write(target, path):
    """(prompts, answers): greedy, by the target itself; and whether the slot writer gives the same"""
    g = torch.Generator().manual_seed(11)
    prompts = [torch.randint(4, 500, (5 + i,), generator=g).tolist() for i in range(5)]
    answers = [target.greedy(p, 9, (7,))[0] for p in prompts]
    if not capture.full_attention(path):
        return prompts, answers, True
    w = writer.Writer(writer.load(path, "cpu"), prompts, [0.0] * 5, 9, 2, {7})
    kept = {i: ids + ([7] if ended else []) for i, ids, ended in w.run()}
    return prompts, answers, [kept.get(i) for i in range(5)] == answers


def check(path, folder):
    """one line of results per step"""
    target = targets.load(path, "cpu", torch.float32)
    prompts, answers, same = write(target, path)
    yield "slots write what the model writes", same
    data = os.path.join(folder, "rows.safetensors")
    rows.save(data, *rows.pack([(p, a, 1) for p, a in zip(prompts, answers)] * 4, 40, 0, 0))
    out = os.path.join(folder, "drafter")
    t = trainer(path, data, out, "--steps", "20")
    before = {k: v.clone() for k, v in t.model.state_dict().items()}
    quiet(t.run)
    yield "training changes every weight", all(not torch.equal(before[k], v) for k, v in t.model.state_dict().items())
    again = quiet(trainer, path, data, out, "--steps", "24", "--resume")
    same = again.step == 20 and all(torch.equal(v, t.model.state_dict()[k]) for k, v in again.model.state_dict().items())
    quiet(again.run)
    with open(os.path.join(out, "log.json"), encoding="utf8") as f:
        yield "a stopped run goes on", same and json.load(f)["steps"] == 24
    yield "curves are drawn", os.path.getsize(os.path.join(out, "curves.png")) > 1000
    model = evaluate.load_drafter(out, "cpu")
    stored = again.weights()
    yield "the directory holds the weights", all(torch.equal(v.to(torch.bfloat16), stored[k]) for k, v in model.state_dict().items())
    replay = verify.replay(target, model, prompts[0] + answers[0], len(prompts[0]))
    told = {k: sum(a + 1 for *_, a in r) for k, r in replay.items()}
    yield "rounds cover the text", all(len(answers[0]) - 1 <= n <= len(answers[0]) for n in told.values()) and len(replay["oracle"]) <= len(replay["argmax"])
    first = trainer(path, data, os.path.join(folder, "first"), "--steps", "3", "--version", "1")
    quiet(first.run)
    yield "version 1 trains too", first.step == 3 and not hasattr(evaluate.load_drafter(os.path.join(folder, "first"), "cpu"), "candidate_selector")


def exported(out, target_gguf):
    """the drafter's file, read back"""
    import gguf
    import numpy as np
    from safetensors.torch import load_file
    path = os.path.join(out, "drafter.gguf")
    subprocess.run([sys.executable, os.path.join(HERE, "export.py"), out, "--target-gguf", target_gguf, "--out", path, "--type", "bf16"], check=True, stdout=subprocess.DEVNULL)
    reader, weights = gguf.GGUFReader(path), load_file(os.path.join(out, "model.safetensors"))
    fc = next(t for t in reader.tensors if t.name == "fc.weight")
    same = np.array_equal(gguf.quants.dequantize(fc.data, fc.tensor_type).reshape(weights["fc.weight"].shape), weights["fc.weight"].float().numpy())
    return same and reader.fields["general.architecture"].contents() == "dflash" and len(reader.tensors) == len(weights)


def worker(path, data, out):
    """one of two processes: gradients must be the mean over both, and weights must stay equal"""
    t = trainer(path, data, out, "--steps", "3")
    mine = []
    average = optim.average_gradients

    def watched(params, world):
        local = torch.cat([p.grad.flatten() for p in params if p.grad is not None])
        parts = [torch.empty_like(local) for _ in range(world)]
        torch.distributed.all_gather(parts, local)
        average(params, world)
        mine.append(torch.allclose(torch.cat([p.grad.flatten() for p in params if p.grad is not None]), sum(parts) / world, atol=1e-7) and not torch.equal(*parts))
    train.average_gradients = watched
    quiet(t.run)
    torch.save({"mean": all(mine) and len(mine) == 3, "weights": t.model.state_dict()}, os.path.join(out, f"rank{t.rank}.pt"))


def two_processes(path, folder):
    out = os.path.join(folder, "two")
    os.makedirs(out)
    subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29519", __file__, "--worker", path, os.path.join(folder, "rows.safetensors"), out],
                   check=True, env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""})
    a, b = (torch.load(os.path.join(out, f"rank{r}.pt")) for r in (0, 1))
    return a["mean"] and b["mean"] and all(torch.equal(v, b["weights"][k]) for k, v in a["weights"].items())


def main():
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    if sys.argv[1] == "--worker":
        return worker(*sys.argv[2:])
    torch.set_num_threads(1)                              # the models are too small to share
    base, names, failed = sys.argv[1], sys.argv[2:] or NAMES, 0

    def tell(name, what, good):
        print(f"{'ok    ' if good else 'FAILED'} {name}: {what}", flush=True)
        return not good
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            for what, good in check(os.path.join(base, name), folder):
                failed += tell(name, what, good)
            if name == names[0]:
                failed += tell(name, "two processes average their gradients", two_processes(os.path.join(base, name), folder))
                demo = os.path.join(HERE, "..", "..", "models", "demo-H32.gguf")
                failed += tell(name, "the file holds the weights", exported(os.path.join(folder, "drafter"), demo))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
