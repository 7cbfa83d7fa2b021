"""Train the demo target (a small Qwen3.5 text model with an MTP head), from scratch or further.

usage: [torchrun --nproc-per-node N] pretrain.py OUT_DIR TOKENS [TOKENS ...] --minutes 13 [--val NAME=FILE ...]
  TOKENS, FILE   uint16 token files of encode.py. OUT_DIR gets config.json, model.safetensors and log.json.

Every step reads --batch rows of --seq tokens per process. Muon for matrices, AdamW for the rest; learning rate constant, then linear to
almost zero over the last 70 % of the time; the MTP loss joins for the last 40 %. --steps N stops earlier (for a try on the CPU: --tiny).
--from DIR goes on from a trained target. --grid trains for the 4-bit file: the matrices are rounded as `1bit quantize --hadamard 32` rounds
them, in every step and in what is saved (dflash/grid.py), so that the file is the model that was trained.
"""
import argparse
import contextlib
import json
import os
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from dflash import grid                                                                      # noqa: E402
from dflash.optim import MuonAdam, agree, average_gradients, schedule, start_processes       # noqa: E402
from dflash.qwen35 import Config, Qwen35, compile_layers                                      # noqa: E402

EOT, IM_END = 16376, 16378


class Rows:
    """rows of seq + 1 tokens in random order; all processes shuffle alike and take every world-th row"""

    def __init__(self, files, seq, batch, rank, world, device):
        self.data = torch.cat([torch.from_numpy(np.fromfile(f, np.uint16).view(np.int16)) for f in files]).to(device)
        self.seq, self.batch, self.rank, self.world, self.device = seq, batch, rank, world, device
        self.rng = torch.Generator().manual_seed(11)
        self.order, self.at, self.epoch = None, 0, 0

    def rows(self, offsets):
        return self.data[offsets[:, None] + torch.arange(self.seq + 1, device=self.device)].long() & 0xFFFF

    def next(self):
        step = self.batch * self.world
        if self.order is None or self.at + step > len(self.order):
            n = (self.data.numel() - 2) // self.seq - 1
            shift = int(torch.randint(0, self.seq, (1,), generator=self.rng))
            self.order = (torch.randperm(n, generator=self.rng) * self.seq + shift).to(self.device)
            self.at, self.epoch = 0, self.epoch + 1
        mine = self.order[self.at + self.rank:self.at + step:self.world]
        self.at += step
        return self.rows(mine)

    def all(self):
        """every row once, in batches of one shape (the last one wraps around)"""
        off = torch.arange(0, self.data.numel() - self.seq - 1, self.seq, device=self.device)
        n = -(-len(off) // self.batch) * self.batch
        for part in off.repeat(-(-n // len(off)))[:n].split(self.batch):
            yield self.rows(part)


def cross_entropy(h, w, y):
    return F.cross_entropy(F.linear(h, w.to(h.dtype)).float().flatten(0, 1), y.flatten())


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("tokens", nargs="+")
    p.add_argument("--minutes", type=float, default=13)
    p.add_argument("--steps", type=int, default=10**9)
    p.add_argument("--val", nargs="*", default=[])
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--seq", type=int, default=4096)
    p.add_argument("--lr", type=float, default=3.5e-3)
    p.add_argument("--lr-adam", type=float, default=3e-3)
    p.add_argument("--mtp-from", type=float, default=0.6)
    p.add_argument("--mtp-weight", type=float, default=0.15)
    p.add_argument("--flat", type=float, default=0.3, help="share of the time at the full learning rate")
    p.add_argument("--from", dest="start", help="a trained target's directory")
    p.add_argument("--grid", action="store_true")
    p.add_argument("--tiny", action="store_true")
    a = p.parse_args()

    rank, world, device = start_processes()
    torch.manual_seed(0)
    os.makedirs(a.out, exist_ok=True)
    c = Config(hidden=64, layers=4, ffn=128, heads=2, kv_heads=1, head_dim=32, rot=8, key_heads=2, value_heads=4, key_dim=16, value_dim=16) if a.tiny else Config()
    train = Rows(a.tokens, a.seq, a.batch, rank, world, device)
    vals = {v.split("=")[0]: Rows([v.split("=")[1]], a.seq, a.batch, 0, 1, device) for v in a.val}
    model = Qwen35(c).initialise()
    if a.start:
        model.load_state_dict({k: v.float() for k, v in load_file(os.path.join(a.start, "model.safetensors")).items()})
    model.to(device)
    rounding = grid.Rounded(model) if a.grid else contextlib.nullcontext()
    loss_of = cross_entropy
    if device.type == "cuda":
        compile_layers()
        loss_of = torch.compile(cross_entropy, dynamic=False)
    opt = MuonAdam(list(model.named_parameters()), a.lr, a.lr_adam)
    if rank == 0:
        n = sum(x.numel() for x in model.parameters())
        print(f"{n / 1e6:.2f} M parameters, {train.data.numel() / 1e6:.1f} M training tokens, {world} processes", flush=True)

    def losses(ids, mtp):
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            h, _ = model.hidden(ids[:, :-1])
            loss = loss_of(h, model.embedding, ids[:, 1:])
            return loss, loss_of(model.mtp_hidden(ids[:, :-1], h), model.embedding, ids[:, 2:]) if mtp else None

    def validate():                                        # with gradients on: the compiled graphs of training serve as they are
        with rounding:
            return {n: round(float(np.mean([losses(ids, False)[0].item() for ids in v.all()])), 4) for n, v in vals.items()}

    def save(name):
        with rounding:
            sd = {k: v.detach().to(torch.bfloat16).contiguous().cpu() for k, v in model.state_dict().items()}
        save_file(sd, os.path.join(a.out, name), metadata={"format": "pt"})
        with open(os.path.join(a.out, "config.json"), "w", encoding="utf8") as f:
            json.dump(c.to_hf(IM_END, EOT), f, indent=1)

    began, t0, step, history, half, done = time.time(), None, 0, [], False, 0.0
    while True:
        if t0 is not None and step % 8 == 0:
            done = agree(max((time.time() - t0) / (60 * a.minutes), step / a.steps), world, device)
        if done >= 1 or step >= a.steps:
            break
        mtp = done >= a.mtp_from
        with rounding:
            loss, mtp_loss = losses(train.next(), mtp)
            (loss + a.mtp_weight * mtp_loss if mtp else loss).backward()
        average_gradients(opt.params, world)
        scale = schedule(done, (step + 1) / 100, a.flat)
        opt.step(scale)
        opt.zero()
        step += 1
        if step == 1:
            loss.item()
            t0 = time.time()
            if rank == 0:
                print(f"first step {t0 - began:.1f} s", flush=True)
        if step % 50 == 0 or step < 4:
            x = loss.item()
            history.append((step, round(time.time() - t0, 1), round(x, 4)))
            if rank == 0:
                rate = (step - 1) * a.batch * a.seq * world / max(1e-9, time.time() - t0)
                print(f"step {step} t {time.time() - t0:.0f} loss {x:.4f}" + (f" mtp {mtp_loss.item():.4f}" if mtp else "") + f" lr {scale:.3f} epoch {train.epoch} {rate / 1e3:.0f} k tok/s"
                      + (f" mem {torch.cuda.max_memory_allocated() / 2**30:.0f} GB" if device.type == "cuda" else ""), flush=True)
            if not np.isfinite(x):
                raise SystemExit("the loss is not finite")
        if not half and done > 0.5 and rank == 0:
            half = True
            save("half.safetensors")
            print("half way", validate(), flush=True)
    if rank == 0:
        save("model.safetensors")
        v = validate()
        tokens = step * a.batch * a.seq * world
        print(f"done: {step} steps, {tokens / 1e6:.1f} M tokens, {train.epoch} epochs, validation {v}", flush=True)
        with open(os.path.join(a.out, "log.json"), "w", encoding="utf8") as f:
            json.dump({"steps": step, "tokens": tokens, "epochs": train.epoch, "corpus_tokens": train.data.numel(), "val": v, "history": history,
                       "parameters": sum(x.numel() for x in model.parameters())}, f)
    if world > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
