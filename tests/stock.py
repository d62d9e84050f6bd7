"""A stock model and tokenizer, small enough to make anew in every test: none of the code under test is in them."""

import runpy
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import MarianConfig, MarianMTModel, PreTrainedTokenizerFast


REPOSITORY = Path(__file__).parents[1]
PAD, BOS, EOS = 0, 1, 2
VOCAB_SIZE = 3 + 256


def byte_tokenizer(model_max_length: int = 512) -> PreTrainedTokenizerFast:
    """One token per UTF-8 byte, `</s>` at the end: whatever the text, it comes back as it was."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate(["<pad>", "<s>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", EOS)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=model_max_length,
    )


def tiny_marian(seed: int = 0, vocab_size: int = VOCAB_SIZE, **fields) -> MarianMTModel:
    torch.manual_seed(seed)
    config = MarianConfig(
        **{
            "vocab_size": vocab_size,
            "d_model": 16,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 32,
            "decoder_ffn_dim": 32,
            "max_position_embeddings": 512,
            "init_std": 0.5,  # far enough from zero for sentences to differ
            "pad_token_id": PAD,
            "bos_token_id": BOS,
            "eos_token_id": EOS,
            "decoder_start_token_id": BOS,
            "forced_eos_token_id": None,
        }
        | fields
    )
    model = MarianMTModel(config).eval()
    model.generation_config.max_length = 24
    return model


def save_stock(folder: Path, **fields) -> Path:
    tiny_marian(**fields).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def run_script(name: str, *arguments: object) -> int:
    """Runs training/<name> as the shell would, but in this process (importing torch takes seconds): the exit code."""
    before = sys.argv
    sys.argv = [name, *map(str, arguments)]
    try:
        runpy.run_path(str(REPOSITORY / "training" / name), run_name="__main__")
    except SystemExit as exit:
        return exit.code
    finally:
        sys.argv = before
    raise AssertionError(f"{name} ended without an exit code")
