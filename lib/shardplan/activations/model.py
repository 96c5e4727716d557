"""The parts of `shardlab.model`, line by line, on a tape: each variable lives as long as the same variable there.

See the tape's [Note: lifetimes]. `sizes` explains the letters of shapes. `Shape`'s flags select what other models do
differently (LayerNorm, biases, gelu, learned positions, norms of queries and keys).
"""

import torch

from shardlab.model import repeats_heads
from shardplan.activations import compiled, losses
from shardplan.activations import operations as ops
from shardplan.activations.adapters import adapted
from shardplan.activations.attention import flash, math
from shardplan.activations.norms import rms_norm
from shardplan.activations.sizes import Chosen
from shardplan.activations.tape import Tape, Value
from shardplan.planned_job import Setup


class Model:
    """The functions of a model, as a setup chooses them."""

    def __init__(self, t: Tape, setup: Setup | Chosen) -> None:
        self.t, self.shape, self.strategy, self.capability = t, setup.shape, setup.strategy, setup.capability

    # The embedding

    def embedding(self, itemsize: int) -> Value:
        """Look up the embeddings. Saves only the tokens, which belong to the batch."""
        x = ops.lookup(self.t, "embedding.weight", "B T D", "V D", itemsize, "embeddings", tied=self.shape.tied)
        x = ops.scatter(self.t, x, "embeddings")
        if not self.shape.learned_positions:
            return x
        positions = ops.lookup(self.t, "positions.weight", "S D", "L D", itemsize, "positions")
        return ops.add(self.t, x, positions, "embeddings and positions")

    def rotary_angles(self, itemsize: int = 4) -> tuple[Value, Value]:
        return self.t.new("cos", "T E/2", itemsize), self.t.new("sin", "T E/2", itemsize)

    # A block

    def block(self, x: Value, cos: Value | None = None, sin: Value | None = None) -> Value:
        """Run a block. `cos` and `sin` are given if each block has its own."""
        if self.strategy.compile:
            return self.compiled_block(x, cos, sin)
        x = ops.add(self.t, x, self.attention(self.norm("attention_norm", x), cos, sin), "residual stream in the block")
        y = self.feed_forward(self.norm("feed_forward_norm", x))
        return ops.add(self.t, x, y, "residual stream, the block's result")

    def compiled_block(self, x: Value, cos: Value | None, sin: Value | None) -> Value:
        t, kind = self.t, self.shape.norm
        y = self.attention(self.norm("attention_norm", x), cos, sin)
        middle = compiled.never_made(t, x, y)
        normed = compiled.norm(t, "feed_forward_norm", middle, [x, y], kind)
        y = self.feed_forward(normed)
        return ops.add(t, middle, y, "residual stream, the block's result")

    def norm(self, name: str, x: Value, kind: str = "") -> Value:
        kind = kind or self.shape.norm
        if kind == "layer" or self.strategy.norm_kernel == "fused" or self.strategy.compile:
            return compiled.norm(self.t, name, x, [x], kind)
        return rms_norm(self.t, name, x)

    def attention(self, x: Value, cos: Value | None, sin: Value | None) -> Value:
        shape, bias = self.shape, self.shape.qkv_bias
        x = ops.gather(self.t, x, "attention_norm's result, all positions")
        q = self.turned("query", self.linear("attention.query", x, "B T Q", "queries", bias), cos, sin)
        k = self.turned("key", self.linear("attention.key", x, "B T G", "keys", bias), cos, sin)
        v = self.linear("attention.value", x, "B T G", "values", bias)
        if self.strategy.attention == "math":
            y = math(self.t, q, k, v)
        else:
            if self.repeats_heads(q, k):
                k, v = (ops.repeat(self.t, each, f"{ops.words_of(each)} for each query head") for each in (k, v))
            y = flash(self.t, q, k, v)
        y = self.linear("attention.out", y, "B T D", "attention.out's result", shape.linear_bias)
        return ops.scatter(self.t, y, "attention.out's result")

    def repeats_heads(self, q: Value, k: Value) -> bool:
        device_type, dtype = "cuda" if self.t.on_gpu else "cpu", torch.bfloat16 if k.itemsize == 2 else torch.float32
        is_grouped = self.t.count(k.dims) < self.t.count(q.dims)
        return is_grouped and repeats_heads(device_type, dtype, self.capability)

    def turned(self, name: str, x: Value, cos: Value | None, sin: Value | None) -> Value:
        if self.shape.qk_norm:
            x = self.norm(f"attention.{name}_norm", x, "rms")
        return x if self.shape.learned_positions else self.rotate(x, cos, sin)

    def rotate(self, x: Value, cos: Value | None, sin: Value | None) -> Value:
        """Rotate x in fp32. The products save only cos and sin."""
        t = self.t
        if self.strategy.compile:
            return compiled.turn(t, x)
        a, b = ops.chunk(t, ops.to(t, x, 4), x.dims.replace("Q", "H E/2").replace("G", "K E/2"))
        words = f"{ops.words_of(x)}, turned"
        y = ops.cat(
            t,
            ops.add(t, ops.scale(t, a, "a cos", cos), ops.scale(t, b, "b sin", sin), "a cos - b sin", minus=True),
            ops.add(t, ops.scale(t, b, "b cos", cos), ops.scale(t, a, "a sin", sin), "b cos + a sin"),
            x.dims,
            words,
        )
        return ops.to(t, y, x.itemsize, words)

    def feed_forward(self, x: Value) -> Value:
        t, bias = self.t, self.shape.linear_bias
        x = ops.gather(t, x, "feed_forward_norm's result, all positions")
        if self.shape.gated:
            hidden = self.swiglu(x)
        else:
            hidden = ops.activation(t, self.linear("feed_forward.up", x, "B T F", "up", bias), "gelu(up)")
        y = self.linear("feed_forward.down", hidden, "B T D", "feed_forward.down's result", bias)
        return ops.scatter(t, y, "feed_forward.down's result")

    def swiglu(self, x: Value) -> Value:
        t, bias = self.t, self.shape.linear_bias
        gate = self.linear("feed_forward.gate", x, "B T F", "gate", bias)
        if self.strategy.compile:
            return compiled.swiglu(t, gate, self.linear("feed_forward.up", x, "B T F", "up", bias))
        silu = ops.activation(t, gate, "silu(gate)")
        del gate
        return ops.multiply(t, silu, self.linear("feed_forward.up", x, "B T F", "up", bias), "silu(gate) up")

    def linear(self, name: str, x: Value, dims: str, words: str, bias: bool) -> Value:
        if self.strategy.lora_rank:
            return adapted(
                self.t, name, x, dims, words, four_bits=self.strategy.base_4bit, is_fused=self.strategy.compile
            )
        return ops.linear(self.t, name, x, dims, words, bias=bias)

    # The head

    def head(self, x: Value) -> Value:
        output = "embedding" if self.shape.tied else "output"
        if self.strategy.cross_entropy in ("chunked", "fused"):
            loss = losses.fused if self.strategy.cross_entropy == "fused" else losses.chunked
            return loss(self.t, self.normed(x), output)
        logits = ops.linear(self.t, output, self.normed(x), "B T V", "logits")
        if self.strategy.cross_entropy == "in-place":
            return losses.in_place(self.t, logits)
        if self.strategy.cross_entropy == "compiled":
            return compiled.cross_entropy(self.t, logits)
        return losses.cross_entropy(self.t, ops.to(self.t, logits, 4, "logits"))

    def normed(self, x: Value) -> Value:
        return ops.gather(self.t, self.norm("norm", x), "norm's result, all positions")
