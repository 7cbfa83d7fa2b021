"""Muon for the matrices of the layers, AdamW for everything else, and the little that training on several GPUs needs.

Muon: momentum, orthogonalised by five Newton-Schulz steps, scaled so that an update has the size of an AdamW update (RMS 0.2 * lr).
Every process holds all weights; gradients are averaged over the processes after each backward pass.
"""
import math
import os

import torch
import torch.distributed as dist

ADAM_NAMES = ("embed_tokens", "codebook", "in_proj_a", "in_proj_b", "norm", "kernel_projection", "conv1d", "base_kernel")


def start_processes():
    """(rank, world size, device); one process without torchrun"""
    world = int(os.environ.get("WORLD_SIZE", 1))
    local = int(os.environ.get("LOCAL_RANK", 0))
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(local)
    if world > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
    return int(os.environ.get("RANK", 0)), world, torch.device("cuda", local) if cuda else torch.device("cpu")


@torch.no_grad()
def average_gradients(params, world):
    if world == 1:
        return
    grads = [p.grad for p in params if p.grad is not None]
    flat = torch._utils._flatten_dense_tensors(grads)
    dist.all_reduce(flat)
    flat /= world
    torch._foreach_copy_(grads, list(torch._utils._unflatten_dense_tensors(flat, grads)))


def agree(value, world, device):
    """the first process's number, on all processes (so that all stop at the same step)"""
    if world == 1:
        return value
    t = torch.tensor([value], dtype=torch.float64, device=device)
    dist.broadcast(t, 0)
    return t.item()


@torch.no_grad()
def orthogonalise(G):
    X = G.bfloat16()
    tall = X.size(-2) > X.size(-1)
    X = X.mT if tall else X
    X = X / (X.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        A = X @ X.mT
        X = 3.4445 * X + (-4.7750 * A + 2.0315 * (A @ A)) @ X
    return X.mT if tall else X


class MuonAdam:
    def __init__(self, named, lr_muon, lr_adam, weight_decay=0.05):
        named = [(n, p) for n, p in named if p.requires_grad]
        matrices = [(n, p) for n, p in named if p.ndim == 2 and not any(a in n for a in ADAM_NAMES)]
        taken = {id(p) for _, p in matrices}
        rest = [p for _, p in named if id(p) not in taken]
        self.groups = {}                                                       # equal shapes are stepped as one batch
        for n, p in matrices:
            late = n.split(".")[0] if n.startswith(("mtp.", "candidate_selector.")) else ""           # parts that get gradients later than the rest
            self.groups.setdefault((tuple(p.shape), late), []).append(p)
        self.momentum = {k: torch.zeros(len(ps), *k[0], device=ps[0].device) for k, ps in self.groups.items()}
        self.adam = torch.optim.AdamW(rest, lr=lr_adam, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, fused=rest[0].is_cuda)
        self.params = [p for _, p in named]
        self.lr_muon, self.lr_adam, self.weight_decay = lr_muon, lr_adam, weight_decay
        self.orthogonalise = torch.compile(orthogonalise) if rest[0].is_cuda else orthogonalise

    @torch.no_grad()
    def step(self, scale):
        for g in self.adam.param_groups:
            g["lr"] = self.lr_adam * scale
        self.adam.step()
        for key, ps in self.groups.items():
            if ps[0].grad is None:
                continue
            g, m = torch.stack([p.grad for p in ps]).float(), self.momentum[key]
            m.lerp_(g, 0.05)
            u = self.orthogonalise(g.lerp(m, 0.95)).float() * (0.2 * math.sqrt(max(key[0])))
            lr = self.lr_muon * scale
            torch._foreach_mul_(ps, 1 - lr * self.weight_decay)
            torch._foreach_add_(ps, list(u.unbind(0)), alpha=-lr)

    def zero(self):
        for p in self.params:
            p.grad = None

    def state(self):
        return {"adam": self.adam.state_dict(), "momentum": list(self.momentum.values())}

    def load(self, s):
        self.adam.load_state_dict(s["adam"])
        for m, saved in zip(self.momentum.values(), s["momentum"]):
            m.copy_(saved)


def schedule(done, warm=1.0, flat=0.3, floor=0.02):
    """learning-rate factor: warm-up factor, constant for the first part, then linear decay"""
    return min(1.0, warm) * (1.0 if done < flat else max(floor, (1 - done) / (1 - flat)))
