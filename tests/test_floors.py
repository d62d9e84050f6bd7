"""The house: imports point down, what travels in a checkpoint imports nothing that stays at home."""

import ast
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY


PACKAGE = REPOSITORY / "hf_attention"


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in PACKAGE.rglob("*.py")}


def folder(name: str) -> set[str]:
    return {module for module in MODULES if module == name or module.startswith(f"{name}.")}


FLOORS = [  # each may import from the floors above it in this list, and its neighbours
    {"version", "text_files", "cli"},
    {"model.configuration_vanilla_transformer", "model.decoding_vanilla_transformer", "model.pipeline_translation"},
    {"model.generation_vanilla_transformer"},
    {"model.modeling_vanilla_transformer"},
    {"model"},
    {"bleu", "bpe_dropout", "dropout", "generation", "loss", "optimizer", "tokenization", "corpus", "toy"},
    {"data", "metrics", "checkpoints", "recipes", "sharing"} | folder("tracing"),
    folder("figures"),
    {"translation", "runs", "plan", "scores"},
    {"ctranslate2_format", "onnx_format", "export"},
    folder("benchmark"),
]
TRAVELS = (
    "configuration_vanilla_transformer",
    "decoding_vanilla_transformer",
    "generation_vanilla_transformer",
    "modeling_vanilla_transformer",
    "pipeline_translation",
)
# The copier reads these two as text and takes both files along; Python never runs them.
READ_ONLY = {"modeling_vanilla_transformer", "pipeline_translation"}
# `trace.figure(...)` and the like are how a user asks for a drawing. The trace imports what draws inside these methods
# only, so that a trace can be made, saved and loaded where nothing is drawn.
LAZY = {"tracing.trace": {"figures", "figures.canvas", "figures.page"}}


def imports_of(name: str) -> set[tuple[str, int]]:
    """(module, level) of every import statement, wherever it stands; `from . import x` counts as x.

    That is a module, or else a name in the package's `__init__`.
    """
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {(alias.name, 0) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module, node.level)} if node.module else {(alias.name, node.level) for alias in node.names}
    return found


def ours(name: str) -> set[str]:
    """Modules of this package that `name` imports, by their names inside it."""
    package = name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]
    inside = set()
    for module, level in imports_of(name):
        if level:
            above = ".".join(package.split(".")[: len(package.split(".")) - level + 1])
            found = f"{above}.{module}".lstrip(".")
            inside.add(found if found in MODULES or not above else above)
        elif module.partition(".")[0] == "hf_attention":
            inside.add(module.partition(".")[2])
    return inside


def test_every_module_has_a_floor():
    assert set().union(*FLOORS) | {""} == set(MODULES)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_point_down(name):
    below: set[str] = set()
    for floor in FLOORS:
        below |= floor
        if name in floor:
            break
    read_only = {f"model.{module}" for module in READ_ONLY} if name == f"model.{TRAVELS[0]}" else set()
    assert ours(name) <= below | read_only | LAZY.get(name, set())


@pytest.mark.parametrize("name", sorted(folder("figures")))
def test_figures_draw_from_a_trace_and_know_no_model(name):
    assert ours(name) <= folder("figures") | {"tracing.trace", "text_files"}


@pytest.mark.parametrize("name", sorted(folder("tracing")))
def test_a_trace_is_made_without_the_drawing_code(name):
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    at_once = [node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert not [module for module in at_once if module.startswith("figures")]


@pytest.mark.parametrize("name", TRAVELS)
def test_what_travels_needs_only_torch_transformers_and_its_siblings(name):
    for module, level in imports_of(f"model.{name}"):
        top = module.partition(".")[0]
        if level:
            assert level == 1 and module in TRAVELS
        else:
            assert top in {"torch", "transformers"} or top in sys.stdlib_module_names


def test_nothing_imports_the_scripts():
    assert not [
        name
        for name in MODULES
        if ("training", 0) in {(module.partition(".")[0], level) for module, level in imports_of(name)}
    ]
