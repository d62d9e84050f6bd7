"""The configuration: the paper's fields, and errors in the user's terms."""

import json

import pytest
from transformers import AutoConfig

from hf_attention import VanillaTransformerConfig
from hf_attention.model.configuration_vanilla_transformer import OWN_FIELDS


WRONG = {  # given, and the words that the message must hold
    "misspelt": ({"d_mdoel": 512}, ["d_mdoel=512", "'d_model'"]),
    "unknown": ({"banana": 1}, ["banana=1", "num_heads"]),
    "generation option": ({"num_beams": 4}, ["num_beams=4"]),
    "text for a number": ({"d_model": "512"}, ["d_model='512'", "positive integer"]),
    "fraction": ({"num_layers": 1.5}, ["num_layers=1.5", "positive integer"]),
    "truth for a number": ({"d_ff": True}, ["d_ff=True", "positive integer"]),
    "zero": ({"num_heads": 0}, ["num_heads=0", "positive integer"]),
    "negative": ({"d_k": -1}, ["d_k=-1", "positive integer or None"]),
    "nothing": ({"vocab_size": None}, ["vocab_size=None"]),
    "heads": ({"d_model": 512, "num_heads": 7}, ["num_heads=7", "d_model=512"]),
    "odd width": ({"d_model": 9, "num_heads": 3}, ["d_model=9", "even"]),
    "dropout of one": ({"dropout": 1.0}, ["dropout=1.0", "0 <= dropout < 1"]),
    "dropout as text": ({"dropout": "0.1"}, ["dropout='0.1'"]),
    "positions": ({"position_encoding": "rotary"}, ["position_encoding='rotary'", "sinusoidal", "learned"]),
    "tie": ({"tie_word_embeddings": 1}, ["tie_word_embeddings=1", "true or false"]),
    "id out of range": ({"vocab_size": 5, "eos_token_id": 5}, ["eos_token_id=5", "vocab_size - 1 = 4"]),
    "no pad": ({"pad_token_id": None}, ["pad_token_id=None"]),
    "pad is eos (report 56)": ({"pad_token_id": 2}, ["pad_token_id=2", "eos_token_id"]),
    "two names": ({"hidden_size": 64, "d_model": 32}, ["hidden_size=64", "d_model=32"]),
    "dtype": ({"dtype": "float23"}, ["dtype='float23'", "bfloat16"]),
    "decoder only": ({"is_encoder_decoder": False}, ["is_encoder_decoder=False"]),
}


@pytest.mark.parametrize(("given", "words"), WRONG.values(), ids=WRONG)
def test_mistakes_name_the_field_the_value_and_what_is_wanted(given, words):
    with pytest.raises(ValueError) as error:
        VanillaTransformerConfig(**given)
    assert all(word in str(error.value) for word in words), error.value


def test_defaults_are_the_base_model_of_table_3():
    config = VanillaTransformerConfig()
    assert (config.num_layers, config.num_decoder_layers, config.d_model, config.d_ff) == (6, 6, 512, 2048)
    assert (config.num_heads, config.d_k, config.d_v, config.dropout) == (8, 64, 64, 0.1)
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (512, 6, 8)


def test_rows_a_and_b_of_table_3_set_the_widths_of_heads():
    assert VanillaTransformerConfig(num_heads=32).d_k == 16
    row_b = VanillaTransformerConfig(d_k=16)
    assert (row_b.d_k, row_b.d_v) == (16, 64)
    odd = VanillaTransformerConfig(num_heads=7, d_k=10, d_v=10)
    assert odd.d_k == 10


def test_stock_names_count_as_the_fields_they_stand_for():
    config = VanillaTransformerConfig(
        hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=100
    )
    assert (config.d_model, config.d_k, config.d_ff) == (64, 16, 100)
    assert (config.num_layers, config.num_decoder_layers) == (3, 3)


def saved(tmp_path, **change):
    VanillaTransformerConfig(d_model=64).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    content = {**json.loads(path.read_text()), **change}
    for name in [name for name, value in change.items() if value is None]:
        del content[name]
    path.write_text(json.dumps(content))
    return tmp_path


def test_save_and_load_is_exact(tmp_path):
    config = VanillaTransformerConfig(d_model=64, num_decoder_layers=2, d_k=5)
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is VanillaTransformerConfig
    fields = config.to_dict()
    assert {name: getattr(loaded, name) for name in OWN_FIELDS} == {name: fields[name] for name in OWN_FIELDS}


def test_a_file_of_a_newer_transformers_loads(tmp_path):
    folder = saved(tmp_path, transformers_version="5.99.0", some_new_switch={"on": True}, num_beams=4)
    assert AutoConfig.from_pretrained(folder).d_model == 64


def test_a_file_with_a_name_mistyped_by_hand_is_refused(tmp_path):
    with pytest.raises(ValueError, match="d_modle=32.*'d_model'"):
        AutoConfig.from_pretrained(saved(tmp_path, d_model=None, d_modle=32))


def test_a_file_with_a_wrong_value_is_refused(tmp_path):
    with pytest.raises(ValueError, match="num_heads=7"):
        AutoConfig.from_pretrained(saved(tmp_path, num_heads=7, d_k=None))


def test_a_value_made_wrong_later_is_refused_by_the_model(toy):
    toy.config.dropout = 2
    with pytest.raises(ValueError, match="dropout=2"):
        type(toy)(toy.config)
