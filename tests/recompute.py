"""Every tensor of a trace once more, in NumPy and float64: each from the recorded tensors that flow into it.

It shares no code with the package, and knows the model by its parameters only. Heads, positions and loss are loops and
formulas of the paper, as in `reference.py`; an arrow that is drawn wrong has a wrong number at its end.
"""

import numpy as np
import torch


def recompute(trace, model, batch: dict[str, torch.Tensor], smoothing: float, dropout: float = 0.0):
    """{name: value} for all names of `trace`, which `model` made of `batch` (input_ids, attention_mask, labels).

    With `dropout` the recorded result says itself what was dropped; what was not must have grown by 1 / (1 - dropout).
    """
    return _Sums(trace, model, batch, smoothing, dropout).all()


class _Sums:
    def __init__(self, trace, model, batch, smoothing, dropout):
        self.w = {name: tensor.detach().double().numpy() for name, tensor in model.state_dict().items()}
        self.config, self.smoothing, self.dropout = model.config, smoothing, dropout
        self.batch = {name: value.numpy() for name, value in batch.items()}
        self.lowest = torch.finfo(model.dtype).min
        self.values = {name: tensor.value.double().numpy() for name, tensor in trace.items()}
        self.found: dict[str, np.ndarray] = {}

    def __setitem__(self, name, value):
        assert name not in self.found
        self.found[name] = np.asarray(value, dtype=float)

    def all(self):
        """In the order of the paper's figures; what follows always takes the recorded value, not the recomputed."""
        labels = self.batch["labels"]
        self["source.input_ids"] = self.batch["input_ids"]
        self["source.attention_mask"] = self.batch["attention_mask"]
        self["target.labels"] = labels
        pad, start = self.config.pad_token_id, self.config.decoder_start_token_id
        shifted = [[start, *(pad if label == -100 else label for label in row[:-1])] for row in labels]
        self["target.decoder_input_ids"] = shifted
        self.stack("encoder", self.batch["input_ids"], self.config.num_layers)
        self.stack("decoder", np.array(shifted), self.config.num_decoder_layers)
        self["lm_head.logits"] = self.values["decoder.output"] @ self.w["lm_head.weight"].T
        self.loss(labels)
        return self.found

    def stack(self, stack, ids, layers):
        width = self.config.d_model
        self[f"{stack}.embed_tokens.rows"] = self.w[f"model.{stack}.embed_tokens.weight"][ids]
        self[f"{stack}.embed_tokens.output"] = self.values[f"{stack}.embed_tokens.rows"] * width**0.5
        positions = np.empty((ids.shape[1], width))
        for position in range(len(positions)):
            for i in range(width // 2):
                angle = position / 10000 ** (2 * i / width)
                positions[position, 2 * i : 2 * i + 2] = np.sin(angle), np.cos(angle)
        if f"model.{stack}.embed_positions.weight" in self.w:
            positions = self.w[f"model.{stack}.embed_positions.weight"][: len(positions)]
        self[f"{stack}.embed_positions.output"] = positions
        embedded = self.values[f"{stack}.embed_tokens.output"]
        self[f"{stack}.sum"] = embedded + self.values[f"{stack}.embed_positions.output"]
        x = self.drop(f"{stack}.dropped", f"{stack}.sum")
        for layer in (f"{stack}.layers.{i}" for i in range(layers)):
            x = self.add_norm(f"{layer}.self_attn_add_norm", x, self.attention(f"{layer}.self_attn", x))
            if stack == "decoder":
                attended = self.attention(f"{layer}.cross_attn", x, "encoder.output")
                x = self.add_norm(f"{layer}.cross_attn_add_norm", x, attended)
            x = self.add_norm(f"{layer}.feed_forward_add_norm", x, self.feed_forward(f"{layer}.feed_forward", x))
        self[f"{stack}.output"] = self.values[x]

    def drop(self, name, sublayer):
        kept = self.values[name] != 0 if self.dropout else 1
        self[name] = self.values[sublayer] * kept / (1 - self.dropout)
        return name

    def linear(self, name, x):
        return x @ self.w[f"model.{name}.weight"].T + self.w[f"model.{name}.bias"]

    def attention(self, name, queries_from, memory=None):
        heads, d_k, d_v = self.config.num_heads, self.config.d_k, self.config.d_v
        x = self.values[queries_from]
        self[f"{name}.input"] = x
        source = x
        if memory:
            source = self.values[memory]
            self[f"{name}.memory"] = source
        for part, given in (("q", x), ("k", source), ("v", source)):
            self[f"{name}.{part}"] = self.linear(f"{name}.{part}_proj", given)
        for part, width in (("q", d_k), ("k", d_k), ("v", d_v)):
            whole = self.values[f"{name}.{part}"]
            blocks = [whole[..., head * width : (head + 1) * width] for head in range(heads)]
            self[f"{name}.{part}_split"] = np.stack(blocks, axis=2)
        for part in "qkv":
            split = self.values[f"{name}.{part}_split"]
            self[f"{name}.{part}_heads"] = np.stack([split[:, :, head] for head in range(heads)], axis=1)
        q, k, v = (self.values[f"{name}.{part}_heads"] for part in "qkv")
        self[f"{name}.products"] = np.einsum("bhik,bhjk->bhij", q, k)
        self[f"{name}.scores"] = self.values[f"{name}.products"] / d_k**0.5
        padding, look_ahead = self.masks(name, len(x), x.shape[1], source.shape[1])
        self[f"{name}.padding_mask"] = padding
        self[f"{name}.look_ahead_mask"] = look_ahead
        self[f"{name}.mask"] = np.where((padding < 0) | (look_ahead < 0), self.lowest, 0.0)
        self[f"{name}.masked_scores"] = self.values[f"{name}.scores"] + self.values[f"{name}.mask"]
        masked = self.values[f"{name}.masked_scores"]
        powers = np.exp(masked - masked.max(-1, keepdims=True))
        self[f"{name}.weights"] = powers / powers.sum(-1, keepdims=True)
        self[f"{name}.heads"] = np.einsum("bhij,bhjv->bhiv", self.values[f"{name}.weights"], v)
        beside = [self.values[f"{name}.heads"][:, head] for head in range(heads)]
        self[f"{name}.concat"] = np.concatenate(beside, axis=-1)
        self[f"{name}.output"] = self.linear(f"{name}.out_proj", self.values[f"{name}.concat"])
        return f"{name}.output"

    def masks(self, name, sentences, queries, keys):
        """0 where a query may look; the source's padding hides keys, and in the target what is yet to be said."""
        padding, look_ahead = np.zeros((2, sentences, 1, queries, keys))
        for sentence, query, key in np.ndindex(sentences, queries, keys):
            source_is_read = name.startswith("encoder.") or name.endswith("cross_attn")
            if source_is_read and not self.batch["attention_mask"][sentence, key]:
                padding[sentence, 0, query, key] = self.lowest
            if name.startswith("decoder.") and name.endswith("self_attn") and key > query:
                look_ahead[sentence, 0, query, key] = self.lowest
        return padding, look_ahead

    def add_norm(self, name, residual, sublayer):
        self.drop(f"{name}.dropped", sublayer)
        self[f"{name}.sum"] = self.values[residual] + self.values[f"{name}.dropped"]
        total = self.values[f"{name}.sum"]
        normal = (total - total.mean(-1, keepdims=True)) / np.sqrt(total.var(-1, keepdims=True) + 1e-5)
        weight, bias = self.w[f"model.{name}.norm.weight"], self.w[f"model.{name}.norm.bias"]
        self[f"{name}.output"] = normal * weight + bias
        return f"{name}.output"

    def feed_forward(self, name, x):
        self[f"{name}.inner"] = self.linear(f"{name}.fc1", self.values[x])
        self[f"{name}.relu"] = np.where(self.values[f"{name}.inner"] > 0, self.values[f"{name}.inner"], 0.0)
        self[f"{name}.output"] = self.linear(f"{name}.fc2", self.values[f"{name}.relu"])
        return f"{name}.output"

    def loss(self, labels):
        logits = self.values["lm_head.logits"]
        words = logits.shape[-1]
        self["lm_head.log_probs"] = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        log_probs = self.values["lm_head.log_probs"]
        targets, plain, smoothed = np.zeros_like(logits), np.zeros(labels.shape), np.zeros(labels.shape)
        for place in np.ndindex(labels.shape):
            if labels[place] == -100:
                continue
            for word in range(words):
                targets[place][word] = self.smoothing / words
                if word == labels[place]:
                    targets[place][word] += 1 - self.smoothing
            plain[place] = -log_probs[place][labels[place]]
            smoothed[place] = -sum(self.values["loss.targets"][place] * log_probs[place])
        self["loss.targets"] = targets
        self["loss.counted"] = labels != -100
        self["loss.plain_per_token"] = plain
        self["loss.per_token"] = smoothed
        self["loss.divisor"] = sum(label != -100 for row in labels for label in row)
        self["loss.plain"] = self.values["loss.plain_per_token"].sum() / self.values["loss.divisor"]
        self["loss.total"] = self.values["loss.per_token"].sum() / self.values["loss.divisor"]
