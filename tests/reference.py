"""The paper's model once more, as plainly as it can be said: NumPy, float64, one sentence, no batch, no mask tensors.

It shares no code with the package. It reads our weights by name and computes each head with its own loop, so that a
mistake in splitting heads, masking, scaling, norm order or positions can't be made twice.
"""

import numpy as np


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Reference:
    """`Reference(state_dict, h, d_k, d_v)` of a `VanillaTransformerForConditionalGeneration`."""

    def __init__(self, state_dict, num_heads: int, d_k: int, d_v: int):
        self.w = {name: tensor.detach().double().numpy() for name, tensor in state_dict.items()}
        self.h, self.d_k, self.d_v = num_heads, d_k, d_v

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self.w[f"{name}.weight"].T + self.w[f"{name}.bias"]

    def embed(self, stack: str, ids) -> np.ndarray:
        table = self.w[f"{stack}.embed_tokens.weight"]
        width = table.shape[1]
        out = []
        for position, token in enumerate(ids):
            if f"{stack}.embed_positions.weight" in self.w:
                encoding = self.w[f"{stack}.embed_positions.weight"][position]
            else:
                encoding = np.empty(width)
                for i in range(width // 2):
                    encoding[2 * i] = np.sin(position / 10000 ** (2 * i / width))
                    encoding[2 * i + 1] = np.cos(position / 10000 ** (2 * i / width))
            out.append(table[token] * width**0.5 + encoding)
        return np.array(out)

    def attention(self, name: str, x: np.ndarray, memory: np.ndarray, causal: bool) -> np.ndarray:
        q, k, v = (self.linear(f"{name}.{p}_proj", s) for p, s in (("q", x), ("k", memory), ("v", memory)))
        heads = []
        for head in range(self.h):
            q_i = q[:, head * self.d_k : (head + 1) * self.d_k]
            k_i = k[:, head * self.d_k : (head + 1) * self.d_k]
            v_i = v[:, head * self.d_v : (head + 1) * self.d_v]
            rows = []
            for t in range(len(x)):
                seen = t + 1 if causal else len(memory)
                rows.append(softmax(q_i[t] @ k_i[:seen].T / self.d_k**0.5) @ v_i[:seen])
            heads.append(np.array(rows))
        return self.linear(f"{name}.out_proj", np.concatenate(heads, axis=-1))

    def add_norm(self, name: str, x: np.ndarray, sublayer: np.ndarray) -> np.ndarray:
        s = x + sublayer
        normal = (s - s.mean(-1, keepdims=True)) / np.sqrt(s.var(-1, keepdims=True) + 1e-5)
        return normal * self.w[f"{name}.norm.weight"] + self.w[f"{name}.norm.bias"]

    def feed_forward(self, name: str, x: np.ndarray) -> np.ndarray:
        return self.linear(f"{name}.fc2", np.maximum(0, self.linear(f"{name}.fc1", x)))

    def layers(self, stack: str) -> list[str]:
        return sorted({".".join(n.split(".")[:4]) for n in self.w if n.startswith(f"{stack}.layers.")})

    def encode(self, source) -> np.ndarray:
        x = self.embed("model.encoder", source)
        for layer in self.layers("model.encoder"):
            x = self.add_norm(f"{layer}.self_attn_add_norm", x, self.attention(f"{layer}.self_attn", x, x, False))
            x = self.add_norm(f"{layer}.feed_forward_add_norm", x, self.feed_forward(f"{layer}.feed_forward", x))
        return x

    def logits(self, source, target) -> np.ndarray:
        """Ids of one source and of one decoder input, without padding -> [T, vocab_size]."""
        memory = self.encode(source)
        x = self.embed("model.decoder", target)
        for layer in self.layers("model.decoder"):
            x = self.add_norm(f"{layer}.self_attn_add_norm", x, self.attention(f"{layer}.self_attn", x, x, True))
            attended = self.attention(f"{layer}.cross_attn", x, memory, False)
            x = self.add_norm(f"{layer}.cross_attn_add_norm", x, attended)
            x = self.add_norm(f"{layer}.feed_forward_add_norm", x, self.feed_forward(f"{layer}.feed_forward", x))
        return x @ self.w["lm_head.weight"].T
