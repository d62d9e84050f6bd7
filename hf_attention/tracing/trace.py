"""A trace: every tensor of one run, by name, with what a reader needs to recompute and draw it.

It holds values and words only, no model: figures are drawn from a trace that was saved long ago, or elsewhere.
"""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from ..text_files import write_bytes


if TYPE_CHECKING:
    from ..figures.canvas import Canvas


FORMAT = "1"  # of the file; raised when an older reader would misread it
AXES = {
    "B": "sentences of the batch",
    "S": "source positions",
    "T": "target positions",
    "H": "heads",
    "K": "d_k, width of a head's queries and keys",
    "V": "d_v, width of a head's values",
    "D": "d_model, width of the model",
    "F": "d_ff, inner width of the feed-forward",
    "H·K": "queries or keys of all heads, side by side",
    "H·V": "values of all heads, side by side",
    "W": "words: pieces of the vocabulary",
    "N": "layers",
}


@dataclass(frozen=True, eq=False)
class TracedTensor:
    """One tensor of the run.

    Attributes:
        name: module path and what it is there, such as `encoder.layers.0.self_attn.scores`.
        axes: a letter of `AXES` for each dimension; `1` for one that is only there to be spread over others.
        symbol: the formula that a paper would print, such as `QKᵀ/√d_k`.
        value: on the CPU, in the dtype of the run.
        gradient: of the smoothed loss, with respect to `value`; None without `backward=True`, and for what that loss
            is not made of (ids, masks, target rows, the plain loss).
    """

    name: str
    axes: tuple[str, ...]
    symbol: str
    value: torch.Tensor
    gradient: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if len(self.axes) != self.value.ndim:
            raise ValueError(f"{self.name}: axes are {self.axes}, wanted one for each of {tuple(self.value.shape)}")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{axis}={size}" for axis, size in zip(self.axes, self.shape, strict=True))
        return f"TracedTensor({self.name}: {self.symbol} [{sizes}] {str(self.value.dtype).removeprefix('torch.')})"


class Trace(Mapping[str, TracedTensor]):
    """The tensors of a run by name, in the order of their computation, and `info`, what is known about the run.

    `info` is plain data, as JSON holds it:

        model           class, config, num_parameters
        parameters      [{name, module, shape, count, tied_to}]; tied_to is None or the name that has been counted
        sentences       [{source, target, source_tokens, decoder_tokens, label_tokens}], padding left out
        vocabulary      {id as text: token}, all of a small one, else those that occur
        special         {pad, start, end}: their ids
        loss            {smoothing}
        mode            {training, backward, dtype}
        counterfactual  what moved when a later target token was another one; see `tracing.recorder`
        searches        one for each sentence, or none; see `tracing.search`
        versions        of hf_attention, transformers, torch
    """

    def __init__(self, tensors: Iterable[TracedTensor], info: dict[str, Any]):
        self._tensors = {tensor.name: tensor for tensor in tensors}
        self.info: dict[str, Any] = json.loads(json.dumps(info))  # as it will be after saving and loading

    def __getitem__(self, name: str) -> TracedTensor:
        try:
            return self._tensors[name]
        except KeyError:
            near = difflib.get_close_matches(str(name), self._tensors, n=3, cutoff=0.5)
            raise KeyError(
                f"no tensor {name!r} in this trace" + (f"; near it: {', '.join(near)}" if near else "")
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        sizes = " ".join(f"{axis}={size}" for axis, size in self.sizes.items())
        return f"Trace({len(self)} tensors, {sizes}, {len(self.info.get('searches', []))} searches)"

    @property
    def sizes(self) -> dict[str, int]:
        """The number behind each letter of `AXES`, in this run: S and T with padding, not those of the searches."""
        sizes = {
            axis: size
            for tensor in self._tensors.values()
            if not tensor.name.startswith("search.")
            for axis, size in zip(tensor.axes, tensor.shape, strict=True)
        }
        return {axis: sizes[axis] for axis in AXES if axis in sizes}

    def within(self, path: str) -> list[TracedTensor]:
        """The tensors of one module and of those inside it, in order: `within("encoder.layers.0.self_attn")`."""
        return [tensor for name, tensor in self._tensors.items() if name.startswith(f"{path}.")]

    def token(self, token_id: int) -> str:
        """How a token is written in figures; the id itself where the trace knows no word for it."""
        return self.info["vocabulary"].get(str(int(token_id)), str(int(token_id)))

    def save(self, path: str | Path) -> None:
        """Writes one safetensors file: no code in it, and readable by every tool of that format.

        Raises:
            ValueError: `path` cannot be written.
        """
        values = {name: tensor.value for name, tensor in self._tensors.items()}
        values |= {f"gradient:{name}": t.gradient for name, t in self._tensors.items() if t.gradient is not None}
        alone = {name: value.clone(memory_format=torch.contiguous_format) for name, value in values.items()}
        index = [{"name": t.name, "axes": list(t.axes), "symbol": t.symbol} for t in self._tensors.values()]
        words = {"format": FORMAT, "index": json.dumps(index), "info": json.dumps(self.info)}
        write_bytes(path, save(alone, {"hf_attention.trace": json.dumps(words)}))

    @classmethod
    def load(cls, path: str | Path) -> "Trace":
        """Raises ValueError if `path` is no trace, or one of another format."""
        try:
            with safe_open(path, framework="pt") as file:
                words = json.loads((file.metadata() or {}).get("hf_attention.trace", "{}"))
                if words.get("format") != FORMAT:
                    found = f"a trace of format {words['format']}" if words else "a file without a trace"
                    raise ValueError(f"{path}: {found}, wanted one that Trace.save has written (format {FORMAT})")
                names = set(file.keys())
                tensors = [
                    TracedTensor(
                        entry["name"],
                        tuple(entry["axes"]),
                        entry["symbol"],
                        file.get_tensor(entry["name"]),
                        file.get_tensor(f"gradient:{entry['name']}") if f"gradient:{entry['name']}" in names else None,
                    )
                    for entry in json.loads(words["index"])
                ]
            return cls(tensors, json.loads(words["info"]))
        except (OSError, SafetensorError, json.JSONDecodeError) as error:
            raise ValueError(f"{path}: no trace that can be read: {error}") from error
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}: no trace that can be read: its description lacks a part") from error

    # What draws stands a floor above; it is asked for only when something is to be drawn.
    def figure(self, name: str, **options: Any) -> "Canvas":
        """One figure, to `save("fig.svg")` or `.png`; its name is one of `figures()`."""
        from ..figures import draw

        return draw(self, name, **options)

    def figures(self) -> list[str]:
        """The names that `figure` knows for this trace."""
        from ..figures import names

        return names(self)

    def html(self) -> str:
        """The page that holds all figures: one HTML document that needs nothing beside it."""
        from ..figures.page import render

        return render(self)

    def to_html(self, path: str | Path) -> None:
        """Writes the page. Raises ValueError if `path` cannot be written."""
        write_bytes(path, self.html().encode())

    def _repr_html_(self) -> str:
        """In a notebook: the page, in a frame of its own so that its styles stay inside."""
        from ..figures.page import framed

        return framed(self)

    def _ipython_key_completions_(self) -> list[str]:
        """In a notebook: the names that `trace["` and the tab key offer."""
        return list(self)
