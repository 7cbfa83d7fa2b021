"""Training for a 4-bit file: weights rounded to what `1bit quantize --hadamard 32` stores, so that the file loses nothing.

Every row of a matrix is cut into blocks of 32, rotated by the orthonormal Hadamard matrix, rounded to Q4_0 (one half-precision scale, codes
-8..7; the scale of least squared error among a few, the engine's own search) and rotated back. `Rounded` does it around a training step: the
step sees rounded weights, the gradient goes to the exact ones (straight-through).
"""
import torch

BLOCK = 32
ROUNDED = ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def hadamard(device):
    h = torch.ones(1, 1, device=device)
    while len(h) < BLOCK:
        h = torch.cat((torch.cat((h, h), 1), torch.cat((h, -h), 1)))
    return h * BLOCK ** -0.5


def half(x):
    return x.to(torch.float16).float()


def encode(x):
    """x [N, 32] float -> scales [N, 1] (representable in half precision), codes [N, 32] float in -8..7"""
    extreme = x.gather(1, x.abs().argmax(1, keepdim=True))
    safe = torch.where(extreme == 0, torch.ones_like(extreme), extreme)
    gain, fit = torch.zeros_like(extreme), torch.zeros_like(extreme)
    for step in range(-9, 10):
        target = -8 - 0.1 * step if step <= 5 else 7 + 0.2 * (step - 7)
        q = (x * (target / safe)).round().clamp(-8, 7)
        xq, qq = (x * q).sum(1, keepdim=True), (q * q).sum(1, keepdim=True).clamp(min=1e-30)
        better = xq * xq > gain * qq
        gain, fit = torch.where(better, xq * xq / qq, gain), torch.where(better, xq / qq, fit)
    searched, plain = half(fit), half(extreme / -8)
    inverse = lambda d: torch.where(d == 0, torch.zeros_like(d), 1 / torch.where(d == 0, torch.ones_like(d), d))
    code_s = (x * inverse(searched)).round().clamp(-8, 7)
    code_p = (x * inverse(extreme / -8) + 8.5).floor().clamp(0, 15) - 8
    better = ((x - searched * code_s) ** 2).sum(1, keepdim=True) < ((x - plain * code_p) ** 2).sum(1, keepdim=True)
    return torch.where(better, searched, plain), torch.where(better, code_s, code_p)


def rounded(w):
    """w [..., K], K a multiple of 32: the weights that the file would hold, in the unrotated order"""
    h = hadamard(w.device)
    scale, code = encode(w.float().reshape(-1, BLOCK) @ h)
    return ((scale * code) @ h).reshape(w.shape)


def is_rounded(name):
    return name.endswith(".weight") and name.split(".")[-2] in ROUNDED


class Rounded:
    """with Rounded(model): the matrices of the model are rounded inside and exact again outside"""

    def __init__(self, model):
        self.matrices = [p for n, p in model.named_parameters() if is_rounded(n)]
        self.compiled = torch.compile(rounded, dynamic=False) if self.matrices[0].is_cuda else rounded

    def write(self, blocks):
        parts = blocks.flatten().split([p.numel() for p in self.matrices])
        torch._foreach_copy_(self.matrices, [x.view_as(p) for x, p in zip(parts, self.matrices)])

    @torch.no_grad()
    def __enter__(self):
        self.exact = torch.cat([p.data.reshape(-1, BLOCK) for p in self.matrices])
        self.write(self.compiled(self.exact))

    @torch.no_grad()
    def __exit__(self, *_):
        self.write(self.exact)
        self.exact = None
