"""Models and losses of other frameworks in the shape of ours, each where it is installed.

Their own classes with their own defaults, but post-norm, biases and dropout as in ours where they let one choose:
JoeyNMT drops attention weights and inner units too, and Eole's decoder is pre-norm. Tested with JoeyNMT 2.3, Eole 0.6
and fairseq 0.12, the last as `fairseq-fixed`, its distribution for Python 3.11; it runs without the torchaudio that it
asks for.
"""

from argparse import Namespace
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from ..model import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from .orders import SMOOTHING
from .twins import MARIAN_NAMES, Batch, position_table, renamed


Loss = Callable[[Batch], torch.Tensor]


def joeynmt(config: VanillaTransformerConfig) -> tuple[nn.Module, Loss]:
    from joeynmt.model import build_model
    from joeynmt.vocabulary import Vocabulary

    specials = SimpleNamespace(
        **{"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": None},
        **{"pad_id": 1, "bos_id": 2, "eos_id": 3, "unk_id": 0, "sep_id": None, "lang_tags": []},
    )
    vocabulary = Vocabulary([f"piece{number}" for number in range(4, config.vocab_size)], specials)
    vocabulary.pad_index, vocabulary.bos_index, vocabulary.eos_index = _specials(config)
    stack = {
        "type": "transformer",
        "num_heads": config.num_heads,
        "embeddings": {"embedding_dim": config.d_model, "scale": True, "dropout": config.dropout},
        "hidden_size": config.d_model,
        "ff_size": config.d_ff,
        "dropout": config.dropout,
        "layer_norm": "post",
    }
    options = {
        "tied_embeddings": True,
        "tied_softmax": True,
        "encoder": {**stack, "num_layers": config.num_layers},
        "decoder": {**stack, "num_layers": config.num_decoder_layers},
    }
    model = build_model(options, src_vocab=vocabulary, trg_vocab=vocabulary)
    model.loss_function = ("crossentropy", SMOOTHING)

    def loss(batch: Batch) -> torch.Tensor:
        target, mask = _target(batch, config), batch["attention_mask"]
        total, *_ = model(
            return_type="loss",
            src=batch["input_ids"],
            src_mask=mask.bool()[:, None],
            src_length=mask.sum(1),
            trg_input=batch["decoder_input_ids"],
            trg=target,
            trg_mask=(batch["labels"] != -100)[:, None],
        )
        return total / _tokens(batch)

    return model, loss


def joeynmt_twin(model: VanillaTransformerForConditionalGeneration) -> nn.Module:
    """JoeyNMT's model with our weights, in evaluation mode."""
    names = {
        "model.": "",
        "feed_forward_add_norm.norm": "feed_forward.layer_norm",
        "feed_forward.fc1": "feed_forward.pwff_layer.0",
        "feed_forward.fc2": "feed_forward.pwff_layer.3",
        "cross_attn_add_norm.norm": "dec_layer_norm",
        "cross_attn.": "src_trg_att.",
        **{f"{part}_proj": f"{part}_layer" for part in "qkv"},
        "out_proj": "output_layer",
        "encoder.embed_tokens": "src_embed.lut",
        "decoder.embed_tokens": "trg_embed.lut",
        "lm_head": "decoder.output_layer",
    }
    weights = {}
    for name, tensor in renamed(model.state_dict(), names).items():
        norm, attention = (
            ("layer_norm", "src_src_att") if name.startswith("encoder.") else ("x_layer_norm", "trg_trg_att")
        )
        weights[name.replace("self_attn_add_norm.norm", norm).replace("self_attn.", f"{attention}.")] = tensor
    module, _ = joeynmt(model.config)
    _load(module, weights, (".pe",))
    for part in module.modules():
        if isinstance(part, nn.LayerNorm):
            part.eps = 1e-5
    return module.eval()


def fairseq(config: VanillaTransformerConfig) -> tuple[nn.Module, Loss]:
    from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
    from fairseq.data import Dictionary
    from fairseq.models.transformer import TransformerModel, base_architecture

    dictionary = Dictionary()
    for number in range(len(dictionary), config.vocab_size):
        dictionary.add_symbol(f"piece{number}")
    dictionary.pad_index, dictionary.bos_index, dictionary.eos_index = _specials(config)
    options = Namespace(
        dropout=config.dropout,
        share_all_embeddings=True,
        **{f"{stack}_embed_dim": config.d_model for stack in ("encoder", "decoder")},
        **{f"{stack}_ffn_embed_dim": config.d_ff for stack in ("encoder", "decoder")},
        **{f"{stack}_attention_heads": config.num_heads for stack in ("encoder", "decoder")},
        encoder_layers=config.num_layers,
        decoder_layers=config.num_decoder_layers,
        max_source_positions=1024,
        max_target_positions=1024,
    )
    base_architecture(options)  # fills in what is not given
    task: Any = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
    model = TransformerModel.build_model(options, task)
    criterion = LabelSmoothedCrossEntropyCriterion(task, sentence_avg=False, label_smoothing=SMOOTHING)

    def loss(batch: Batch) -> torch.Tensor:
        inputs = {
            "src_tokens": batch["input_ids"],
            "src_lengths": batch["attention_mask"].sum(1),
            "prev_output_tokens": batch["decoder_input_ids"],
        }
        sample = {"net_input": inputs, "target": _target(batch, config), "ntokens": _tokens(batch)}
        total, count, _ = criterion(model, sample)
        return total / count

    return model, loss


def fairseq_twin(model: VanillaTransformerForConditionalGeneration, positions: int = 1024) -> nn.Module:
    """fairseq's model with our weights and our positions, in evaluation mode."""
    module, _ = fairseq(model.config)
    names = {"model.": "", **MARIAN_NAMES, "lm_head": "decoder.output_projection"}
    _load(module, renamed(model.state_dict(), names), ("version", "_float_tensor"))
    before = torch.zeros(model.config.pad_token_id + 1, model.config.d_model)  # its positions count from there
    for stack in (module.encoder, module.decoder):
        stack.embed_positions.weights = torch.cat([before, position_table(model, positions)])
    return module.eval()


def eole(config: VanillaTransformerConfig) -> tuple[nn.Module, Loss]:
    from eole.config.models import TransformerModelConfig
    from eole.config.run import TrainConfig
    from eole.models.model import EncoderDecoderModel
    from eole.utils.loss import LossCompute

    pieces = {"<blank>": config.pad_token_id, "<s>": config.bos_token_id, "</s>": config.eos_token_id}
    pieces |= {f"piece{number}": number for number in range(len(pieces), config.vocab_size)}
    tokens = {"pad_token": "<blank>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    vocabularies = {"src": pieces, "tgt": pieces, "specials": tokens}
    options = TrainConfig(
        data={"corpus": {"path_src": __file__}},  # any file: it must exist, and is not read
        src_vocab=__file__,
        share_vocab=True,
        model=TransformerModelConfig(
            encoder={"encoder_type": "transformer", "layers": config.num_layers, "encoder_layer_style": "postnorm"},
            decoder={"decoder_type": "transformer", "layers": config.num_decoder_layers},
            hidden_size=config.d_model,
            heads=config.num_heads,
            transformer_ff=config.d_ff,
            mlp_activation_fn="relu",
            add_qkvbias=True,
            add_final_linear_bias=True,
            add_ffnbias=True,
            embeddings={"word_vec_size": config.d_model, "position_encoding_type": "SinusoidalInterleaved"},
            share_embeddings=True,
            share_decoder_embeddings=True,
        ),
        training={"dropout": [config.dropout], "attention_dropout": [0.0], "label_smoothing": SMOOTHING},
    )
    model = EncoderDecoderModel.for_training(options.model, vocabularies, options.training)
    compute = LossCompute.from_config(options, model, vocabularies)

    def loss(batch: Batch) -> torch.Tensor:
        source, lengths = batch["input_ids"], batch["attention_mask"].sum(1)
        target = torch.cat([batch["decoder_input_ids"][:, :1], _target(batch, config)], dim=1)  # start, then labels
        output = model(source, target, lengths)
        rows = {"tgt": target, "srclen": lengths, "cid": [], "cid_line_number": []}
        total, *_ = compute(rows, output.dec_out, output.attns)
        return total / _tokens(batch)

    return model, loss


def _load(module: nn.Module, weights: dict[str, torch.Tensor], own: tuple[str, ...]) -> None:
    """Loads all `weights`; the module's own may stay whose names end in one of `own`."""
    missing, unexpected = module.load_state_dict(weights, strict=False)
    if unexpected or not all(name.endswith(own) for name in missing):
        raise RuntimeError(f"{type(module).__name__} has other weights: {missing} missing, {unexpected} unexpected")


def _specials(config: VanillaTransformerConfig) -> tuple[int, int, int]:
    """Padding, start and end."""
    return config.pad_token_id, config.decoder_start_token_id, config.eos_token_id


def _target(batch: Batch, config: VanillaTransformerConfig) -> torch.Tensor:
    return batch["labels"].masked_fill(batch["labels"] == -100, config.pad_token_id)


def _tokens(batch: Batch) -> torch.Tensor:
    return (batch["labels"] != -100).sum()
