"""Train a DFlash 2 (or DFlash 1) drafter for a target model on text that the target wrote.

usage: [torchrun --nproc-per-node N] train.py --target DIR --rows ROWS.safetensors [...] --out DIR [--minutes 6 | --steps N] [options]
  DIR of the target   a Hugging Face directory (qwen3, qwen3_5, qwen3_moe, qwen3_5_moe, llama, ...)
  ROWS                files of capture.py
  --out               gets config.json, model.safetensors (public names), log.json, curves.png and state.pt (for --resume)

One step: --batch rows per process, --anchors random anchors per row. The frozen target runs once per row and gives the taps; every anchor
becomes a block whose labels are the next tokens of the row. Loss: cross entropy with position weight exp(-(i-1)/gamma); from --selector-from
of the run the selector's loss joins (teacher-forced predecessor, rows without the label among the candidates skipped), detached from the
backbone until --joint-from. Validation replays draft and accept over held-out rows.
"""
import argparse
import json
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from dflash import curves, drafter, rows as row_files, targets
from dflash.optim import MuonAdam, agree, average_gradients, schedule, start_processes


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--target", required=True)
    p.add_argument("--rows", nargs="+", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--mask-id", type=int, required=True, help="an unused token of the target, the input of the rows to be drafted")
    p.add_argument("--version", type=int, default=2, choices=(1, 2))
    p.add_argument("--taps", type=int, nargs="*", help="0-based block ids; default: four, evenly spread")
    p.add_argument("--layers", type=int, default=3)
    p.add_argument("--ffn", type=int, help="default: three times the hidden size")
    p.add_argument("--heads", type=int, help="default: hidden / head size")
    p.add_argument("--kv-heads", type=int, help="default: half the heads")
    p.add_argument("--head-dim", type=int, default=128)
    p.add_argument("--block", type=int, default=16)
    p.add_argument("--window", type=int, default=512)
    p.add_argument("--conv-group", type=int, default=64)
    p.add_argument("--rank", type=int, default=64)
    p.add_argument("--top-k", type=int, default=16)
    p.add_argument("--minutes", type=float, default=6)
    p.add_argument("--steps", type=int, default=10**9)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--anchors", type=int, default=64)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--flat", type=float, default=0.3, help="share of the run at the full learning rate")
    p.add_argument("--gamma", type=float, default=7.0, help="7 for blocks of 16, 4 for blocks of 8")
    p.add_argument("--selector-from", type=float, default=0.25)
    p.add_argument("--joint-from", type=float, default=0.6)
    p.add_argument("--save-every", type=float, default=120, help="seconds between saved states")
    p.add_argument("--from", dest="start", help="a trained drafter's directory to go on from, for another target of the same shape; its sizes are used")
    p.add_argument("--resume", action="store_true")
    return p.parse_args()


def make_config(a, target):
    H = target.hidden_size
    heads = a.heads or max(1, H // a.head_dim)
    return drafter.Config(vocab=target.vocab, hidden=H, taps=tuple(a.taps or drafter.default_taps(target.layers)), target_layers=target.layers, mask_id=a.mask_id, layers=a.layers,
                          ffn=a.ffn or 3 * H, heads=heads, kv_heads=a.kv_heads or max(1, heads // 2), head_dim=a.head_dim, theta=target.theta, block=a.block, window=a.window,
                          version=a.version, conv_group=a.conv_group, rank=a.rank, top_k=a.top_k, max_pos=target.max_pos)


class Trainer:
    def __init__(self, a):
        self.a = a
        self.rank, self.world, self.device = start_processes()
        torch.manual_seed(1000 + self.rank)
        self.autocast = lambda: torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")
        self.target = targets.load(a.target, self.device)
        self.c = c = self.load_config(a.start) if a.start else make_config(a, self.target)
        tokens, written = row_files.load(a.rows)
        order = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(5))
        n_val = min(256, max(1, len(tokens) // 10))
        self.val_tokens, self.val_written = (x[order[:n_val]].to(self.device) for x in (tokens, written))
        self.tokens, self.written = (x[order[n_val:]].to(self.device) for x in (tokens, written))
        self.length = tokens.shape[1]
        torch.manual_seed(0)
        self.model = drafter.Drafter(c).initialise()
        if a.start:
            self.model.load_state_dict({k: v.float() for k, v in load_file(os.path.join(a.start, "model.safetensors")).items()})
        self.model.to(self.device)
        torch.manual_seed(1000 + self.rank)
        self.opt = MuonAdam(list(self.model.named_parameters()), a.lr, a.lr)
        self.mask_emb = self.target.embedding[c.mask_id].float()
        self.head = self.target.head.to(torch.bfloat16 if self.device.type == "cuda" else torch.float32)
        self.weight = torch.exp(-torch.arange(c.block - 1, device=self.device) / a.gamma)
        self.step, self.seconds, self.history = 0, 0.0, []
        self.forward, self.unary = self.model, self.unary_loss
        if self.device.type == "cuda":
            self.target.compile()
            self.forward, self.unary = torch.compile(self.model, dynamic=False), torch.compile(self.unary_loss, dynamic=False)
        if a.resume and os.path.exists(self.path("state.pt")):
            self.load()

    def path(self, name):
        return os.path.join(self.a.out, name)

    def load_config(self, path):
        with open(os.path.join(path, "config.json"), encoding="utf8") as f:
            return drafter.Config.from_hf(json.load(f))

    # ---- one batch

    def pick(self):
        """rows and anchors; an anchor is a place whose next token was written by the target"""
        a, L = self.a, self.length
        i = torch.randint(0, len(self.tokens), (a.batch,), device=self.device)
        good = (self.written[i, 1:] > 0).float()
        good[:, L - 5:] = 0
        good[:, :4] = 0
        good += 1e-9                                                           # rows without any such place still give anchors (their labels weigh 0)
        anchors = torch.multinomial(good, a.anchors, replacement=True).sort(1)[0]
        return self.tokens[i].long(), self.written[i], anchors

    def blocks(self, ids, anchors):
        """hidden rows 1.. of every block, their labels and whether a label exists"""
        with torch.no_grad():
            _, taps = self.target.hidden(ids, self.c.taps)
        e = self.forward(F.embedding(ids.gather(1, anchors), self.target.embedding).float(), self.mask_emb, self.model.context([t.float() if self.device.type == "cpu" else t for t in taps]), anchors)[:, :, 1:]
        at = anchors[..., None] + torch.arange(1, self.c.block, device=self.device)
        inside = at < self.length
        labels = ids.gather(1, at.clamp(max=self.length - 1).flatten(1)).view(at.shape)
        return e, labels, inside, at

    def unary_loss(self, e, labels, weight):
        """loss and logits; these stay in the type of the product: nothing is larger, and the search for candidates reads all of them"""
        lg = F.linear(e, self.head)
        ce = F.cross_entropy(lg.flatten(0, -2).float(), labels.flatten(), reduction="none").view(labels.shape)
        return (ce * weight).sum() / weight.sum().clamp(min=1e-6), lg

    def selector_loss(self, e, lg, ids, anchors, labels, weight, joint):
        candidates = lg.detach().topk(self.c.top_k, -1)[1]
        unary = lg.gather(-1, candidates)
        previous = torch.cat((ids.gather(1, anchors)[..., None], labels[..., :-1]), -1)
        if not joint:
            unary, e = unary.detach(), e.detach()
        scores = self.model.candidate_selector.scores(unary, candidates, previous, e)
        hit = candidates == labels[..., None]
        weight = weight * hit.any(-1)
        ce = F.cross_entropy(scores.flatten(0, -2), hit.float().argmax(-1).flatten(), reduction="none").view(labels.shape)
        return (ce * weight).sum() / weight.sum().clamp(min=1e-6)

    def train_step(self, done):
        a = self.a
        ids, written, anchors = self.pick()
        with self.autocast():
            e, labels, inside, at = self.blocks(ids, anchors)
            weight = (inside & (written.gather(1, at.clamp(max=self.length - 1).flatten(1)).view(at.shape) > 0)).float().cummin(-1)[0] * self.weight
            loss, lg = self.unary(e, labels, weight)
            total, sel = loss, None
            if self.c.version == 2 and done >= a.selector_from:
                sel = self.selector_loss(e, lg, ids, anchors, labels, weight, done >= a.joint_from)
                total = loss + min(1.0, (done - a.selector_from) / 0.1) * sel
        total.backward()
        average_gradients(self.opt.params, self.world)
        self.opt.step(schedule(done, (self.step + 1) / 150, a.flat))
        self.opt.zero()
        self.step += 1
        return loss, sel

    # ---- validation: replay draft + accept over rows written greedily

    @torch.no_grad()
    def validate(self, batches=2):
        c, a, L, N = self.c, self.a, self.length, self.a.anchors
        kinds = {"argmax": [], "selector": [], "oracle": []}
        rounds = {k: [0, 0] for k in kinds}
        for b in range(batches):
            ids, written = self.val_tokens[b * a.batch:(b + 1) * a.batch].long(), self.val_written[b * a.batch:(b + 1) * a.batch]
            if not len(ids):
                break
            ids, written = (x.repeat(-(-a.batch // len(x)), 1)[:a.batch] for x in (ids, written))        # one compiled shape
            good = {k: [] for k in kinds}
            with self.autocast():
                for s in range(0, L, N):
                    anchors = torch.arange(s, s + N, device=self.device).clamp(4, L - 5)[None].expand(a.batch, -1).contiguous()
                    e, labels, inside, at = self.blocks(ids, anchors)
                    lg = F.linear(e, self.head)
                    mine = inside & (written.gather(1, at.clamp(max=L - 1).flatten(1)).view(at.shape) == 1)
                    walk, arg, cand, _ = self.model.propose(e.flatten(0, 1), lg.flatten(0, 1), ids.gather(1, anchors).flatten())
                    y, mine = labels.flatten(0, 1), mine.flatten(0, 1)
                    for k, hit in (("argmax", arg == y), ("selector", walk == y), ("oracle", (cand == y[..., None]).any(-1))):
                        good[k].append((hit & mine).long().cumprod(-1).sum(-1).view(a.batch, N))
            for k in kinds:
                acc = torch.cat(good[k], 1)[:, :L].cpu().numpy()
                w = (written == 1).cpu().numpy()
                for r in range(a.batch):
                    n = 1
                    while n < L - c.block:
                        if not w[r, n]:
                            n += 1
                            continue
                        rounds[k][0] += 1
                        step = min(int(acc[r, n]) + 1, L - n)
                        rounds[k][1] += step
                        n += step
        return {k: round(t / max(1, n), 3) for k, (n, t) in rounds.items()}

    # ---- files

    def weights(self):
        return {k: v.detach().to(torch.bfloat16).contiguous().cpu() for k, v in self.model.state_dict().items()}

    def save(self):
        os.makedirs(self.a.out, exist_ok=True)
        save_file(self.weights(), self.path("model.safetensors"), metadata={"format": "pt"})
        with open(self.path("config.json"), "w", encoding="utf8") as f:
            json.dump(self.c.to_hf(), f, indent=1)
        with open(self.path("log.json"), "w", encoding="utf8") as f:
            json.dump({"steps": self.step, "seconds": round(self.seconds), "blocks": self.step * self.a.batch * self.a.anchors * self.world, "history": self.history,
                       "parameters": sum(p.numel() for p in self.model.parameters()), "rows": len(self.tokens) + len(self.val_tokens)}, f)
        curves.drafter(self.history, self.path("curves.png"))
        torch.save({"model": self.model.state_dict(), "opt": self.opt.state(), "step": self.step, "seconds": self.seconds, "history": self.history}, self.path("state.pt"))

    def load(self):
        s = torch.load(self.path("state.pt"), map_location=self.device)
        self.model.load_state_dict(s["model"])
        self.opt.load(s["opt"])
        self.step, self.seconds, self.history = s["step"], s["seconds"], s["history"]
        torch.manual_seed(1000 + self.rank + 7919 * self.step)                 # other rows than those already seen
        print(f"resumed at step {self.step}", flush=True)

    # ---- the run

    def run(self):
        a = self.a
        if self.rank == 0:
            n = sum(p.numel() for p in self.model.parameters())
            print(f"drafter {n / 1e6:.2f} M parameters, taps {self.c.taps}, {len(self.tokens)} rows of {self.length}, {self.world} processes", flush=True)
        began, before, last_save, last_val, done, t0 = time.time(), self.seconds, time.time(), -1.0, 0.0, None
        while True:
            if t0 is not None and self.step % 8 == 0:
                self.seconds = before + time.time() - t0
                done = agree(max(self.seconds / (60 * a.minutes), self.step / a.steps), self.world, self.device)
            if done >= 1 or self.step >= a.steps:
                break
            loss, sel = self.train_step(done)
            if t0 is None:
                loss.item()
                t0 = time.time()
                if self.rank == 0:
                    print(f"first step {t0 - began:.1f} s", flush=True)
            if self.step % 50 == 0 and self.rank == 0:
                self.report(loss, sel, done, a.minutes)
            if done - last_val >= 0.1:
                last_val = done
                if self.rank == 0:
                    tps = self.validate()
                    self.history.append({"step": self.step, "tokens_per_step": tps})
                    print(f"\nstep {self.step} tokens per step {tps}", flush=True)
            if time.time() - last_save > a.save_every and self.rank == 0:
                last_save = time.time()
                self.save()
        if self.rank == 0:
            tps = self.validate(6)
            self.history.append({"step": self.step, "tokens_per_step": tps})
            print(f"\ndone: {self.step} steps, tokens per step {tps}", flush=True)
            self.save()
        if self.world > 1:
            torch.distributed.barrier()
            torch.distributed.destroy_process_group()

    def report(self, loss, sel, done, minutes):
        row = {"step": self.step, "loss": round(loss.item(), 4)}
        if sel is not None:
            row["selector"] = round(sel.item(), 4)
        self.history.append(row)
        bar = "#" * int(30 * done) + "." * (30 - int(30 * done))
        left = max(0, 60 * minutes - self.seconds)
        print(f"[{bar}] step {self.step} loss {row['loss']:.3f} selector {row.get('selector', '-')} {left:.0f} s left", flush=True)


if __name__ == "__main__":
    Trainer(arguments()).run()
