"""Many answers at once from a transformers model: every slot of a batch works on its own prompt and takes the next one when it is done.

For models whose every layer is full attention (llama, qwen3, qwen3_moe, ...); prompts are read token by token, which keeps one shape and
lets the whole step be one CUDA graph. On a GPU this writes many times as fast as batches that wait for their longest answer.
"""
import time

import torch


class SlotCache:
    """what the layers of a transformers model ask of a cache: each slot writes at its own position"""

    def __init__(self, config, slots, length, device, dtype):
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (slots, config.num_key_value_heads, length, head)
        self.keys, self.values = ([torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.num_hidden_layers)] for _ in range(2))
        self.slot, self.at = torch.arange(slots, device=device), None
        self.is_compileable = False

    def update(self, k, v, layer, *_, **__):
        self.keys[layer][self.slot, :, self.at] = k[:, :, 0]
        self.values[layer][self.slot, :, self.at] = v[:, :, 0]
        return self.keys[layer], self.values[layer]

    def get_seq_length(self, *_):
        return 0


def attend(module, q, k, v, mask, scaling=None, **_):
    """one query row per slot; query heads that share keys are multiplied together"""
    B, H, T, D = q.shape
    scores = (q.view(B, k.shape[1], -1, D) @ k.mT).float() * (scaling or D ** -0.5)
    p = scores.masked_fill(~mask, -1e30).softmax(-1).to(v.dtype)
    return (p @ v).view(B, T, H, D), None


def load(path, device):
    from transformers import AttentionInterface, AutoModelForCausalLM
    AttentionInterface.register("slots", attend)
    dtype = torch.float32 if str(device) == "cpu" else torch.bfloat16
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="slots").to(device).eval().requires_grad_(False)


class Writer:
    def __init__(self, model, prompts, temperatures, max_new, slots, stop):
        self.model, self.device, self.max_new = model, model.device, max_new
        n, longest = len(prompts), max(map(len, prompts))
        put = lambda x, **kw: torch.tensor(x, device=self.device, **kw)
        self.bank = torch.zeros(n + 1, longest, dtype=torch.long)                         # the last row is for slots without work
        for i, p in enumerate(prompts):
            self.bank[i, :len(p)] = torch.tensor(p)
        self.bank = self.bank.to(self.device)
        self.length, self.temperature = put([len(p) for p in prompts] + [1]), put(list(temperatures) + [0.0])
        self.stop = put(sorted(stop))
        self.answers = torch.zeros(n + 1, max_new + 1, dtype=torch.long, device=self.device)         # the last column takes what is not kept
        self.count, self.ended = (torch.zeros(n + 1, dtype=torch.long, device=self.device) for _ in range(2))
        self.n, self.next = n, torch.full((1,), slots, device=self.device)
        self.finished = torch.zeros(1, dtype=torch.long, device=self.device)
        self.which = torch.arange(slots, device=self.device).clamp(max=n)
        self.at = torch.zeros(slots, dtype=torch.long, device=self.device)
        self.ids = self.bank[self.which, 0].clone()
        c = model.config.get_text_config()
        self.cache = SlotCache(c, slots, longest + max_new, self.device, model.dtype)
        self.span = torch.arange(longest + max_new, device=self.device)

    def step(self):
        self.cache.at = self.at
        seen = (self.span[None] <= self.at[:, None])[:, None, None]
        logits = self.model(input_ids=self.ids[:, None], position_ids=self.at[:, None], attention_mask=seen, past_key_values=self.cache, use_cache=True).logits[:, -1].float()
        noise = -torch.log(-torch.log(torch.rand_like(logits).clamp_(1e-9, 1 - 1e-7)))
        own = (logits + self.temperature[self.which][:, None] * noise).argmax(-1)
        k = self.at + 1 - self.length[self.which]                                         # index of the new token in the answer
        forced = k < 0
        token = torch.where(forced, self.bank[self.which, (self.at + 1).clamp(max=self.bank.shape[1] - 1)], own)
        stop = ~forced & (own[:, None] == self.stop).any(1)
        done = stop | (k >= self.max_new - 1)
        self.answers[self.which, torch.where(forced | stop, self.max_new, k.clamp(0, self.max_new))] = token
        self.count[torch.where(done, self.which, self.n)] = k + (~stop).long()
        self.ended[torch.where(done, self.which, self.n)] = stop.long()
        self.finished += (done & (self.which < self.n)).sum()
        turn = (self.next + done.long().cumsum(0) - 1).clamp(max=self.n)                  # the next prompts, in order
        self.next += done.sum()
        self.which.copy_(torch.where(done, turn, self.which))
        self.at.copy_(torch.where(done, 0, self.at + 1))
        self.ids.copy_(torch.where(done, self.bank[self.which, 0], token))

    @torch.no_grad()
    def run(self, seconds=1e9, progress=lambda done, n: None):
        """answers as (index, ids, ended); only the finished ones when the time is over"""
        graph, began = None, time.time()
        if self.device.type == "cuda":
            state = [x for x in (self.which, self.at, self.ids, self.next, self.finished, self.count, self.ended, self.answers)]
            kept = [x.clone() for x in state]
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):
                    self.step()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.step()
            for x, y in zip(state, kept):
                x.copy_(y)
        while True:
            for _ in range(32):
                graph.replay() if graph else self.step()
            done = self.finished.item()
            progress(done, self.n)
            if done >= self.n or time.time() - began > seconds:
                break
        count, ended, answers = (x[:self.n].cpu() for x in (self.count, self.ended, self.answers))
        return [(i, answers[i, :count[i]].tolist(), bool(ended[i])) for i in range(self.n) if count[i] or ended[i]]
