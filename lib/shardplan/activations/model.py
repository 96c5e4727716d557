"""The parts of `shardlab.model`, line by line, on a tape: each variable lives as long as the same variable there.

See the tape's [Note: lifetimes]. `sizes` explains the letters of shapes. `Shape`'s flags select what other models do
differently (LayerNorm, biases, gelu, learned positions, norms of queries and keys).
"""

import torch

from shardlab.model import repeats_heads
from shardplan.activations import compiled, losses
from shardplan.activations import operations as ops
from shardplan.activations.adapters import adapted, frozen
from shardplan.activations.attention import flash, math
from shardplan.activations.experts import mixture
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
        normed = self.cheap(compiled.norm(t, "feed_forward_norm", middle, [x, y], kind))
        y = self.feed_forward(normed)
        return ops.add(t, middle, y, "residual stream, the block's result")

    def norm(self, name: str, x: Value, kind: str = "") -> Value:
        kind = kind or self.shape.norm
        if kind == "layer" or self.strategy.norm_kernel == "fused" or self.strategy.compile:
            return self.cheap(compiled.norm(self.t, name, x, [x], kind))
        return self.cheap(rms_norm(self.t, name, x, casts=1 if self.strategy.norm_kernel == "one-cast" else 2))

    def cheap(self, x: Value) -> Value:
        """Return x, which one kernel has made and, if the strategy says so, makes again in backward."""
        return ops.made_again(x) if self.strategy.recompute == "pointwise" else x

    def attention(self, x: Value, cos: Value | None, sin: Value | None) -> Value:
        shape = self.shape
        bias = shape.linear_bias if shape.out_bias is None else shape.out_bias
        x = x if self.strategy.gather_each else ops.gather(self.t, x, "attention_norm's result, all positions")
        y = self.mix(*(self.latent if shape.latent else self.heads)(x, cos, sin))
        y = ops.with_parameter(self.t, "attention.sinks", y, "H") if shape.sinks else y
        y = self.linear("attention.out", y, "B T D", "attention.out's result", bias)
        y = ops.scatter(self.t, y, "attention.out's result")
        return self.norm("attention_post_norm", y) if shape.post_norms else y

    def heads(self, x: Value, cos: Value | None, sin: Value | None) -> tuple[Value, Value, Value]:
        bias = self.shape.qkv_bias
        q = self.turned("query", self.linear("attention.query", x, "B T Q", "queries", bias), cos, sin)
        k = self.turned("key", self.linear("attention.key", x, "B T G", "keys", bias), cos, sin)
        return q, k, self.linear("attention.value", x, "B T G", "values", bias)

    def latent(self, x: Value, cos: Value | None, sin: Value | None) -> tuple[Value, Value, Value]:
        """Multi-head latent attention, as it is trained: a narrow vector a token becomes all keys and values."""
        narrow, name = x, "attention.query"
        if self.shape.latent.query_rank:
            a = self.linear("attention.query_a", x, "B T A", "narrow queries", self.shape.qkv_bias)
            narrow, name = self.norm("attention.query_a_norm", a, "rms"), "attention.query_b"
        q = self.rotate(self.linear(name, narrow, "B T Q", "queries", False), cos, sin)
        narrow = self.linear("attention.kv_a", x, "B T J", "narrow keys and values", self.shape.qkv_bias)
        narrow, turned = ops.chunk(self.t, narrow, "B T I", "B T J-I")
        kv = self.linear(
            "attention.kv_b", self.norm("attention.kv_a_norm", narrow, "rms"), "B T N", "keys, values", False
        )
        k, v = ops.chunk(self.t, kv, "B T N-O", "B T O")
        return q, ops.joined(self.t, k, self.rotate(turned, cos, sin), "B T Q", "keys, with the part that is turned"), v

    def mix(self, q: Value, k: Value, v: Value) -> Value:
        if self.strategy.attention == "math":
            return math(self.t, q, k, v)
        if self.repeats_heads(q, k):
            k, v = (ops.repeat(self.t, each, f"{ops.words_of(each)} for each query head") for each in (k, v))
        return flash(self.t, q, k, v, "B T O" if self.shape.latent else q.dims)

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
        a, b = ops.chunk(t, ops.to(t, x, 4), x.dims.replace("Q", "H E/2").replace("G", "K E/2").replace("J-I", "E/2"))
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
        if self.shape.experts or not self.strategy.gather_each:
            x = ops.gather(t, x, "feed_forward_norm's result, all positions")
        if self.shape.experts:
            y = self.experts(x)
        else:
            y = self.hidden("feed_forward", x, "B T F", bias)
            y = self.linear("feed_forward.down", y, "B T D", "feed_forward.down's result", bias)
        y = ops.scatter(t, y, "feed_forward.down's result")
        return self.norm("feed_forward_post_norm", y) if self.shape.post_norms else y

    def experts(self, x: Value) -> Value:
        e = self.shape.experts
        y = mixture(self.t, x, e, self.hidden, self.linear, self.strategy.expert > 1)
        if not e.shared_dim:
            return y
        shared = self.linear(
            "shared.down", self.hidden("shared", x, "B T U", False), "B T D", "shared experts' result", False
        )
        return ops.add(self.t, y, shared, "the mixture's result, with the shared experts'")

    def hidden(self, name: str, x: Value, dims: str, bias: bool) -> Value:
        """Compute a feed-forward's result before its last product."""
        t = self.t
        if not self.shape.gated:
            return self.cheap(ops.activation(t, self.linear(f"{name}.up", x, dims, "up", bias), "gelu(up)"))
        gate = self.linear(f"{name}.gate", x, dims, "gate", bias)
        if self.strategy.compile:
            return self.cheap(compiled.swiglu(t, gate, self.linear(f"{name}.up", x, dims, "up", bias)))
        silu = ops.activation(t, gate, "silu(gate)")
        del gate
        return self.cheap(ops.multiply(t, silu, self.linear(f"{name}.up", x, dims, "up", bias), "silu(gate) up"))

    def linear(self, name: str, x: Value, dims: str, words: str, bias: bool) -> Value:
        s = self.strategy
        x = ops.gather(self.t, x, f"{name}'s input, all positions") if s.gather_each else x
        kind = adapted if s.adapts(name) else frozen if s.lora_rank else None
        return (
            kind(self.t, name, x, dims, words, bias, s) if kind else ops.linear(self.t, name, x, dims, words, bias=bias)
        )

    # The head

    def head(self, x: Value) -> Value:
        output = "embedding" if self.shape.tied else "output"
        if self.strategy.cross_entropy == "vocabulary":
            return losses.by_vocabulary(self.t, self.normed(x), output, 4 if self.strategy.fp32_logits else 0)
        if self.strategy.cross_entropy in ("chunked", "fused"):
            loss = losses.fused if self.strategy.cross_entropy == "fused" else losses.chunked
            return loss(self.t, self.normed(x), output)
        logits = ops.linear(self.t, output, self.normed(x), "B T V", "logits")
        if self.strategy.cross_entropy == "in-place":
            return losses.in_place(self.t, logits)
        if self.strategy.cross_entropy == "compiled":
            return compiled.cross_entropy(self.t, logits)
        parallel = self.strategy.tensor > 1
        if parallel and not self.strategy.loss_parallel:
            logits, parallel = ops.copied(self.t, logits, "B T Y", "logits, gathered", kind="all_gather"), False
        wide = logits if self.strategy.cross_entropy == "plain" else ops.to(self.t, logits, 4, "logits")
        if self.strategy.cross_entropy in ("held", "plain"):
            del logits
            self.t.keep(wide)
        elif self.strategy.cross_entropy == "shifted":
            del logits
            return losses.cross_entropy(
                self.t, ops.all_but_last(self.t, wide, wide.dims.replace("T", "T1"), "logits, shifted")
            )
        return losses.parallel(self.t, wide) if parallel else losses.cross_entropy(self.t, wide)

    def normed(self, x: Value) -> Value:
        return ops.gather(self.t, self.norm("norm", x), "norm's result, all positions")
