"""The demo: a device comes in, the trace of a small transformer's decode steps goes out.

The model has what a decode step of a serving engine has: an embedding, norms, attention over a
paged key-value cache, and a mixture of experts that routes each token to a few of them. Everything
is plain torch, so that the trace holds only operators which any machine has.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, record_function

from opreplay.environment import usable_device

__all__ = ["DecodeStep", "record_decode", "recorded_step"]

_STEPS = 4


class DecodeStep:
    """One token for each of a few sequences, through one transformer layer."""

    sequences = 8
    width = 256
    heads = 4
    experts = 8
    top_k = 2
    hidden = 512
    vocabulary = 1000
    block = 16
    blocks_per_sequence = 8

    def __init__(self, device: str) -> None:
        """Makes weights, an empty cache and shuffled blocks, from a fixed seed.

        Args:
            device: Where the model lives.
        """
        random = torch.Generator().manual_seed(0)

        def weight(*dims: int) -> Tensor:
            return (torch.randn(*dims, generator=random) / math.sqrt(dims[-1])).to(device)

        self.embedding = weight(self.vocabulary, self.width)
        self.norms = [torch.ones(self.width, device=device) for _ in range(3)]
        self.query_key_value = weight(3 * self.width, self.width)
        self.attention_out = weight(self.width, self.width)
        self.router = weight(self.experts, self.width)
        self.gate_up = weight(self.experts, 2 * self.hidden, self.width)
        self.down = weight(self.experts, self.width, self.hidden)
        blocks = self.sequences * self.blocks_per_sequence
        self.head_width = self.width // self.heads
        shape = (blocks * self.block, self.heads, self.head_width)
        self.keys = torch.zeros(shape, device=device)
        self.values = torch.zeros(shape, device=device)
        shuffled = torch.randperm(blocks, generator=random)
        self.block_table = shuffled.view(self.sequences, self.blocks_per_sequence).to(device)
        self.positions = torch.arange(self.block, device=device)
        self.length = self.block * (self.blocks_per_sequence - 1)  # cached tokens per sequence

    def __call__(self, tokens: Tensor) -> Tensor:
        """Returns the next token of each sequence, for the same context length each time."""
        state = functional.embedding(tokens, self.embedding)
        state = state + self._attend(self._normalise(state, self.norms[0]))
        state = state + self._mix_experts(self._normalise(state, self.norms[1]))
        logits = functional.linear(self._normalise(state, self.norms[2]), self.embedding)
        return logits.argmax(dim=-1)

    def _normalise(self, state: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(state, (self.width,), weight, eps=1e-6)

    def _attend(self, state: Tensor) -> Tensor:
        query, key, value = functional.linear(state, self.query_key_value).chunk(3, dim=-1)
        split = (self.sequences, self.heads, self.head_width)
        last = self.block_table.select(1, self.length // self.block)
        slots = last * self.block + self.length % self.block
        self.keys.index_copy_(0, slots, key.reshape(split))
        self.values.index_copy_(0, slots, value.reshape(split))
        cached = (self.block_table.unsqueeze(-1) * self.block + self.positions).view(
            self.sequences, -1
        )[:, : self.length + 1]
        mixed = functional.scaled_dot_product_attention(
            query.reshape(split).unsqueeze(2),
            self._read(self.keys, cached),
            self._read(self.values, cached),
        )
        return functional.linear(mixed.reshape(self.sequences, self.width), self.attention_out)

    def _read(self, cache: Tensor, slots: Tensor) -> Tensor:
        entries = cache.index_select(0, slots.reshape(-1))
        return entries.view(self.sequences, -1, self.heads, self.head_width).transpose(1, 2)

    def _mix_experts(self, state: Tensor) -> Tensor:
        scores = functional.linear(state, self.router).softmax(dim=-1)
        weights, experts = scores.topk(self.top_k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        chosen = experts.reshape(-1)
        repeated = state.repeat_interleave(self.top_k, dim=0).unsqueeze(-1)
        gate, up = torch.bmm(self.gate_up.index_select(0, chosen), repeated).chunk(2, dim=1)
        out = torch.bmm(self.down.index_select(0, chosen), functional.silu(gate) * up)
        parts = out.view(self.sequences, self.top_k, self.width) * weights.unsqueeze(-1)
        return parts.sum(dim=1)


def record_decode(path: str | Path, *, device: str | None = None) -> None:
    """Records a few decode steps with torch.profiler, after two that warm the machine up.

    Args:
        path: Trace file to write; ``.gz`` is compressed.
        device: Where the model runs; the default is the accelerator if there is one.
    """
    device = usable_device(device)
    step = DecodeStep(device)
    tokens = torch.arange(step.sequences, device=device)
    activities = [ProfilerActivity.CPU]
    if torch.device(device).type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with torch.inference_mode():
        for _ in range(2):
            tokens = step(tokens)
        with profile(activities=activities, record_shapes=True) as profiler:
            for index in range(_STEPS):
                with record_function(f"decode_step_{index}"):
                    tokens = step(tokens)
            if torch.device(device).type != "cpu":
                torch.accelerator.synchronize()
    profiler.export_chrome_trace(str(path))


@contextmanager
def recorded_step(path: str | Path | None = None, *, device: str | None = None) -> Iterator[Path]:
    """Yields the path of a trace of the demo's steps, which is temporary unless `path` is given."""
    if path is not None:
        record_decode(path, device=device)
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="opreplay-") as directory:
        trace = Path(directory) / "decode.json.gz"
        record_decode(trace, device=device)
        yield trace
