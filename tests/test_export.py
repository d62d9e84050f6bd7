"""hf_attention.export and training/export.py: what is refused, and that nothing is left behind."""

import sys

import pytest
from conftest import build_model
from stock import byte_tokenizer, run_script, save_stock

from hf_attention.export import FORMATS, export_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("ours")
    build_model(vocab_size=259).save_pretrained(path)
    byte_tokenizer().save_pretrained(path)
    return str(path)


def test_an_output_that_is_there_is_left_alone(folder, tmp_path):
    with pytest.raises(ValueError, match="is there already, wanted a new folder"):
        export_model(folder, "ctranslate2", tmp_path)


def test_an_unknown_format(folder, tmp_path):
    with pytest.raises(ValueError, match="to is 'tflite', wanted one of ctranslate2, onnx"):
        export_model(folder, "tflite", tmp_path / "new")


@pytest.mark.parametrize("to", FORMATS)
def test_a_package_that_is_missing_is_named(folder, tmp_path, monkeypatch, capsys, to):
    monkeypatch.delitem(sys.modules, f"hf_attention.{to}_format", raising=False)
    monkeypatch.setitem(sys.modules, to, None)
    arguments = ("--model", folder, "--to", to, "--output", tmp_path / "new")
    assert run_script("export.py", *arguments) == 1
    error = capsys.readouterr().err
    assert f"error: {to} is not installed" in error and "pip install '.[export]'" in error


def test_a_backend_that_is_missing_is_named(folder, monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "hf_attention.ctranslate2_format", raising=False)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    assert run_script("translate.py", "--model", folder, "--backend", "ctranslate2") == 1
    assert "ctranslate2 is not installed, which ctranslate2 needs: pip install" in capsys.readouterr().err


@pytest.mark.parametrize("to", FORMATS)
def test_a_stock_model_is_refused_and_nothing_is_written(tmp_path, to):
    pytest.importorskip(to, reason=f"no {to}: pip install '.[export]'")
    with pytest.raises(ValueError, match="is a marian, wanted a model of ours"):
        export_model(str(save_stock(tmp_path / "marian")), to, tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["marian"]


@pytest.mark.parametrize("to", FORMATS)
def test_an_unknown_quantization_is_refused(folder, tmp_path, to):
    pytest.importorskip(to, reason=f"no {to}: pip install '.[export]'")
    with pytest.raises(ValueError, match="quantization is 'int4', wanted one of float32"):
        export_model(folder, to, tmp_path / "new", "int4")


def test_an_exported_model_wants_its_backend(tmp_path, folder, capsys):
    pytest.importorskip("ctranslate2", reason="no ctranslate2: pip install '.[export]'")
    exported = export_model(folder, "ctranslate2", tmp_path / "new")
    assert run_script("translate.py", "--model", exported) == 1
    assert "translate with --backend ctranslate2" in capsys.readouterr().err


def test_an_unknown_backend(folder, capsys):
    assert run_script("translate.py", "--model", folder, "--backend", "eole") == 2
    assert "invalid choice: 'eole'" in capsys.readouterr().err
