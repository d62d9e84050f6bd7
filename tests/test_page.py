"""The page without a browser: what stands in it, checked against the model, the trace and the rules of HTML."""

import base64
import hashlib
import html
import json
import re
import struct
from html.parser import HTMLParser

import pytest
import torch
from conftest import build_model
from torch.nn import functional
from traced import (
    ODD_SOURCES,
    ODD_TARGETS,
    SOURCES,
    TARGETS,
    base_model,
    odd_model,
    odd_trace,
    toy_model,
    toy_trace,
)

from hf_attention import Trace, trace
from hf_attention.figures import page, parameters, shading, values, writing
from hf_attention.tracing.trace import TracedTensor


HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    "\"'`&lt;",
    "a\u2028b\u2029c",
    "\u202eשלום",
    "]]><!--",
    "{{ 7 * 7 }}",
]


class Elements(HTMLParser):
    """Elements of a document and their attributes, its words, the text of scripts; drawings not yet shown as well."""

    def __init__(self, document: str):
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str]]] = []
        self.scripts: dict[str, str] = {}
        self.words: list[str] = []
        self._script: str | None = None
        self._drawings: list[str] = []
        self.feed(document)
        for drawing in map(Elements, self._drawings):
            self.found += drawing.found
            self.words += drawing.words

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag == "script":
            self._script = (
                "drawing" if dict(attributes).get("type") == "image/svg+xml" else dict(attributes).get("id", "")
            )
            self.scripts[self._script] = ""

    def handle_endtag(self, tag):
        if tag == "script":
            self._drawings += [self.scripts[self._script]] * (self._script == "drawing")
            self._script = None

    def handle_data(self, data):
        if self._script is None:
            self.words.append(data)
        else:
            self.scripts[self._script] += data

    def values(self, attribute):
        return [attributes[attribute] for _, attributes in self.found if attribute in attributes]


@pytest.fixture(scope="module")
def toy():
    return toy_trace(backward=True)


@pytest.fixture(scope="module")
def toy_page(toy):
    return page.render(toy)


@pytest.fixture(scope="module")
def elements(toy_page):
    return Elements(toy_page)


@pytest.fixture(scope="module")
def odd():
    return odd_trace()


@pytest.fixture(scope="module")
def odd_page(odd):
    return page.render(odd)


def test_it_is_one_small_document_made_from_the_saved_trace_alone(toy, toy_page, tmp_path):
    toy.save(tmp_path / "run.safetensors")
    Trace.load(tmp_path / "run.safetensors").to_html(tmp_path / "run.html")
    assert (tmp_path / "run.html").read_text(encoding="utf-8") == toy_page
    assert len(toy_page.encode()) < 2_000_000


@pytest.mark.slow
def test_the_page_of_a_base_model_can_be_sent():
    words = torch.randint(3, 37000, (4, 19), generator=torch.Generator().manual_seed(0)).tolist()
    sources, targets = [[*words[0], 2], [*words[1], 2]], [[*words[2], 2], [*words[3], 2]]
    model = base_model(num_layers=6)
    base = trace(model, None, sources, targets, backward=True, num_beams=4, max_new_tokens=24)
    assert (base.sizes["S"], base.sizes["T"], base.sizes["W"]) == (20, 20, 37_000)
    assert len(page.render(base).encode()) < 20_000_000
    held = values.all_packed(base)
    behind = ("q_heads", "k_heads", "v_heads", "heads", "products", "scores", "masked_scores", "weights")
    names = [name for name in base if re.search(rf"_attn\.({'|'.join(behind)})$", name)]
    assert len(names) == 18 * 8 and all("values" in held[f"value:{name}"] for name in names)


def test_of_many_long_sentences_the_page_holds_as_many_numbers_as_can_be_sent(monkeypatch):
    words = torch.randint(3, 30, (2, 20), generator=torch.Generator().manual_seed(0)).tolist()
    run = trace(
        build_model(vocab_size=30, d_model=64, num_heads=2, num_layers=1), None, words, [[3, 2], [4, 2]], search=False
    )
    size = run["encoder.layers.0.self_attn.q_heads"].value.numel()
    monkeypatch.setattr(values, "KEPT", 2 * size)
    held = values.all_packed(run)
    large = [name for name, each in held.items() if each["matrix"] == [20, 32] and "values" in each]
    assert large == [f"value:encoder.layers.0.self_attn.{name}_heads" for name in "qk"]
    assert "values" in held["value:encoder.layers.0.self_attn.products"]
    assert len(held["value:encoder.layers.0.self_attn.v_heads"]["heats"]) == 4


def test_nothing_in_it_asks_the_network(elements, toy_page):
    (policy,) = [
        each["content"] for tag, each in elements.found if each.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none'; ")
    assert not re.search(r"script-src[^;]*unsafe|https?:|\*|data:|blob:", policy)
    assert not elements.values("src") and all(link.startswith("#") for link in elements.values("href"))
    outside_json = re.sub(r'<script type="application/json".*?</script>', "", toy_page, flags=re.DOTALL)
    for word in ("@import", "fetch(", "XMLHttpRequest", "import(", "eval("):
        assert word not in outside_json
    assert all(address.startswith("#") for address in re.findall(r"url\((.*?)\)", outside_json))
    assert not [name for name in {name for _, each in elements.found for name in each} if name.startswith("on")]


def test_the_script_is_the_one_that_the_policy_allows(toy_page):
    (allowed,) = re.findall(r"script-src 'sha256-([^']+)'", toy_page)
    (script,) = re.findall(r"<script>(.*?)</script>", toy_page, flags=re.DOTALL)
    assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() == allowed


@pytest.mark.parametrize("document", ["toy_page", "odd_page"])
def test_every_link_leads_somewhere(document, request):
    found = Elements(request.getfixturevalue(document))
    identifiers = found.values("id")
    assert len(identifiers) == len(set(identifiers))
    assert {link.removeprefix("#") for link in found.values("href")} <= set(identifiers)
    names = [tensor["name"] for tensor in json.loads(found.scripts["index"])["tensors"]]
    for path in found.values("data-open"):
        assert any(name.startswith(f"{path}.") for name in names), path
    labelled = " ".join(found.values("aria-labelledby")).split()
    assert labelled and set(labelled) <= set(identifiers)


def test_sections_and_figures_are_all_there(elements):
    assert [each["id"] for tag, each in elements.found if tag == "section" and "id" in each] == [
        "figure-1", "figure-2", "inputs", "output", "parameters", "translation", "questions",
    ]  # fmt: skip
    questions = [each["id"] for tag, each in elements.found if tag == "article"]
    assert len(questions) == 7 and len(set(questions)) == 7
    assert [tag for tag, _ in elements.found if tag in ("header", "nav", "main", "footer")] == [
        "header", "nav", "main", "footer",
    ]  # fmt: skip
    headings = [int(tag[1]) for tag, _ in elements.found if re.fullmatch("h[1-6]", tag)]
    assert headings[0] == 1 and headings.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(headings, headings[1:], strict=False))


PLACES = ["architecture", "multi_head", "attention", "matrices", "arcs", "encoder.inputs", "decoder.inputs", "shift",
          "loss", "steps", "tree", "looked"]  # fmt: skip


@pytest.fixture(scope="module")
def figures(toy):
    return page.figures(toy)


@pytest.mark.parametrize("place", PLACES)
def test_a_figure_for_each_choice(place, figures):
    drawings = figures[place]
    each_sentence = [{"sentence": 0}, {"sentence": 1}]
    each_kind = [{"kind": kind} for kind in page.KINDS]
    wanted = {"multi_head": each_kind}
    wanted |= dict.fromkeys(
        ("attention", "matrices", "arcs"), [{**sentence, **kind} for kind in each_kind for sentence in each_sentence]
    )
    assert [each.choices for each in drawings] == wanted.get(place, each_sentence)
    assert [each.shown for each in drawings].count(True) == 1 and drawings[0].shown


@pytest.mark.parametrize(
    ("model", "sources", "targets", "document"),
    [(toy_model, SOURCES, TARGETS, "toy_page"), (odd_model, ODD_SOURCES, ODD_TARGETS, "odd_page")],
    ids=["toy", "odd"],
)
def test_every_shape_on_the_page_is_that_of_the_modules(model, sources, targets, document, request):
    sizes = measured_sizes(model(), sources, targets)
    found = Elements(request.getfixturevalue(document))
    index = json.loads(found.scripts["index"])
    written = [" ".join(found.words)] + [tensor["text"] for tensor in index["tensors"] if tensor["axes"][:1] != ["N"]]
    shapes = re.findall(r"\[([^\[\]=]+)\] = \[([\d, ]+)\]", " ".join(written))
    assert len(shapes) > 200
    for letters, numbers in shapes:
        axes = letters.split(", ")
        if axes[0] == "N":
            continue  # of a translation, which has lengths of its own
        assert numbers == ", ".join(str(sizes[axis]) for axis in axes), letters


def measured_sizes(model, sources, targets):
    """The number behind each letter, from hooks on the modules."""
    seen = {}

    def hook(module, args, output):
        seen[names[module]] = (args[0].shape if args else None, output.shape if torch.is_tensor(output) else None)

    names = {module: name.removeprefix("model.") for name, module in model.named_modules()}
    handles = [module.register_forward_hook(hook) for module in names]
    model.set_attn_implementation("eager")
    labels = padded(targets, -100)
    ids = padded(sources, 0)
    with torch.no_grad():
        weights = model(input_ids=ids, attention_mask=ids.ne(0).long(), labels=labels, output_attentions=True)
    for handle in handles:
        handle.remove()
    path = "decoder.layers.0.cross_attn"
    batch, heads, target, source = weights.cross_attentions[0].shape
    query, value = seen[f"{path}.q_proj"][1][-1], seen[f"{path}.v_proj"][1][-1]
    return {
        "B": batch, "H": heads, "T": target, "S": source, "H·K": query, "K": query // heads, "H·V": value,
        "V": value // heads, "D": seen[f"{path}.out_proj"][1][-1], "W": seen["lm_head"][1][-1],
        "F": seen["decoder.layers.0.feed_forward.fc1"][1][-1], "1": 1,
    }  # fmt: skip


def padded(rows, filler):
    width = max(map(len, rows))
    return torch.tensor([row + [filler] * (width - len(row)) for row in rows])


@pytest.mark.parametrize(("model", "document"), [(toy_model, "toy_page"), (odd_model, "odd_page")], ids=["toy", "odd"])
def test_parameters_add_up_to_the_models_own_count(model, document, request):
    found = Elements(request.getfixturevalue(document))
    counts = [int(count) for count in found.values("data-count")]
    assert sum(counts) == model().num_parameters() == sum(each.numel() for each in model().parameters())
    assert f"{sum(counts):,}" in found.words


def test_the_tied_matrix_is_counted_once_and_named_where_it_is_used_again(toy):
    rows = {row.module: row for block in parameters.blocks(toy) for row in block.rows}
    assert rows["encoder.embed_tokens"].count == 5 * 8
    for again in ("decoder.embed_tokens", "lm_head"):
        assert rows[again].count == 0 and rows[again].tied_to == "encoder.embed_tokens.weight"
        assert rows[again].shapes == [("weight", "[5, 8]")]
    untied = trace(build_model(vocab_size=5, tie_word_embeddings=False), None, SOURCES, TARGETS, search=False)
    blocks = parameters.blocks(untied)
    assert sum(block.count for block in blocks) == untied.info["model"]["num_parameters"]
    letters = {row.module: row.paper for block in blocks for row in block.rows}
    apart = {letters[name] for name in ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head")}
    assert len(apart) == 3 and "Eᵀ" not in apart
    assert "Eᵀ" not in page.render(untied)
    assert (rows["decoder.embed_tokens"].paper, rows["lm_head"].paper) == ("E", "Eᵀ")


# The numbers behind the page


def test_numbers_are_packed_to_the_last_bit(toy):
    tensor = toy["decoder.layers.1.cross_attn.scores"]
    packed = values.packed(tensor, tensor.value)
    assert packed["matrix"] == [3, 3] and packed["type"] == "f32" and "heats" not in packed
    assert list(struct.unpack("<36f", base64.b64decode(packed["values"]))) == tensor.value.flatten().tolist()


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (torch.tensor([[True, False]]), "bool", [1, 0]),
        (torch.tensor([[7, -100]]), "int", [7, -100]),
        (torch.tensor([[1.5, -2.25]], dtype=torch.float16), "f32", struct.pack("<2f", 1.5, -2.25)),
        (torch.tensor([[0.1, 0.2]], dtype=torch.float64), "f64", struct.pack("<2d", 0.1, 0.2)),
    ],
    ids=["bool", "int", "half", "double"],
)
def test_each_kind_of_number(value, kind, expected):
    packed = values.packed(TracedTensor("x", ("B", "S"), "x", value), value)
    content = packed["values"] if kind in ("bool", "int") else base64.b64decode(packed["values"])
    assert (packed["type"], packed["matrix"], content) == (kind, [2, 1], expected)


def test_a_large_matrix_is_a_heat_map_with_summary_and_corner():
    value = torch.arange(2 * 50 * 128, dtype=torch.float32).reshape(2, 50, 128)
    packed = values.packed(TracedTensor("x", ("B", "S", "D"), "x", value), value)
    assert "values" not in packed and len(packed["heats"]) == 2
    heat = packed["heats"][1]
    rows, columns = heat["size"]
    assert rows <= shading.HEAT_ROWS and columns <= shading.HEAT_COLUMNS and len(heat["levels"]) == rows * columns
    assert (heat["low"], heat["high"]) == (6400, 12799)
    assert heat["levels"][0] == "0" and heat["levels"][-1] == values.LEVELS[shading.HEAT_LEVELS - 1]
    assert heat["summary"].startswith("min 6400.0 · max 1.3e+04 · mean 9599.5")
    assert struct.unpack("<12f", base64.b64decode(heat["corner"]))[:5] == (6400, 6401, 6402, 6403, 6528)


def test_what_is_no_number_is_still_json():
    value = torch.full((1, 30, 30), float("nan"))
    value[0, 0, 0] = float("inf")
    packed = json.loads(
        json.dumps(values.packed(TracedTensor("x", ("B", "S", "D"), "x", value), value), allow_nan=False)
    )
    assert packed["heats"][0]["high"] == "Infinity" and "." in packed["heats"][0]["levels"]


def test_masks_of_narrow_types_are_minus_infinity_too(toy):
    value = torch.tensor([[[[0, torch.finfo(torch.float16).min]]]], dtype=torch.float16)
    packed = values.packed(TracedTensor("a.mask", ("B", "1", "T", "S"), "mask", value), value)
    assert struct.unpack("<2f", base64.b64decode(packed["values"]))[1] < writing.MINUS_INFINITY


# What it says


def test_the_loss_of_the_answer_is_that_of_torch(toy, elements):
    model, labels = toy_model(), padded(TARGETS, -100)
    ids = padded(SOURCES, 0)
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=ids.ne(0).long(), labels=labels).logits
    plain = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    smoothed = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
    answer = text_of(elements, "How is the loss computed?")
    assert f"= {smoothed:.3f} ; plain, {plain:.3f}" in answer
    log_prob = float(logits[0, 0].log_softmax(-1)[4])
    assert f"log p = {log_prob:.3f}".replace("-", "−") in answer
    assert "5 of 6 positions count" in answer


def test_the_mask_stops_cheating(toy, elements):
    answer = text_of(elements, "Why is the output fed in")
    change = toy.info["counterfactual"]
    assert f"the earliest at position {change['decoder_position']} ; at no position before it" in answer
    names = [each["name"] for each in change["moved"] if each["name"].startswith(("decoder.", "lm_head."))]
    assert f"{len(names)} tensors of the decoder and the output moved" in answer
    assert {name.rpartition(".")[0] for name in names} <= set(elements.values("data-open"))
    assert "the mask hides every one of them" in answer and "The encoder, which never sees the target" in answer


def test_a_run_that_cheats_would_be_told(toy):
    info = json.loads(json.dumps(toy.info))
    next(each for each in info["counterfactual"]["moved"] if each["name"] == "lm_head.logits")["first"] = 0
    answer = text_of(Elements(page.render(Trace(toy.values(), info))), "Why is the output fed in")
    assert "the earliest at position 0" in answer and "at no position before it" not in answer


def text_of(elements, question):
    """The words of the page from this question on."""
    text = re.sub(r"\s+", " ", " ".join(elements.words))
    return text[text.rindex(question) :]


def test_a_run_without_search_gradients_or_counterfactual():
    bare = trace(toy_model(), None, SOURCES, TARGETS, search=False, training=True)
    document = page.render(bare)
    assert document.count("No translation was recorded in this run.") == 2
    answer = text_of(Elements(document), "Why is the output fed in")
    assert (
        "The counterfactual was not computed in this run: dropout was on" in answer and "no target has" not in answer
    )
    wordless = text_of(
        Elements(page.render(trace(toy_model(), None, [[3, 2]], [[2]], search=False))), "Why is the output"
    )
    assert (
        "no target has a word before its end" in wordless and "dropout" not in wordless.partition("What is multi")[0]
    )


def test_the_page_of_a_model_with_an_adapter():
    peft = pytest.importorskip("peft", reason="LoRA is peft's")
    model = peft.get_peft_model(odd_model(), peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    run = trace(model, None, ODD_SOURCES, ODD_TARGETS, search=False)
    answer = text_of(Elements(page.render(run)), "Why do three arrows")
    # as the modules of ODD keep them, [outputs, inputs]: 3 heads of 5 and 7, and 12 for the model
    for matrix in ("[15, 12]", "[21, 12]", "[12, 21]"):
        assert matrix in answer
    rows = {row.module.partition("layers.0.")[2]: row for block in parameters.blocks(run) for row in block.rows}
    assert rows["self_attn.q_proj.base_layer"].paper == rows["self_attn.k_proj"].paper.replace("K", "Q")
    assert "adapter of W^Q" in rows["self_attn.q_proj.lora_A.default"].paper
    assert (
        sum(row.count for block in parameters.blocks(run) for row in block.rows) == run.info["model"]["num_parameters"]
    )


def test_one_of_everything_is_told_in_the_singular():
    model = build_model(vocab_size=5, num_layers=1, num_heads=1)
    one = trace(
        model, None, [[3, 4, 2]], [[2]], num_beams=1, max_new_tokens=1, eos_token_id=3, forced_eos_token_id=None
    )
    page_of_one = page.render(one)
    assert "split into 1 head<" in page_of_one and "into 1 heads" not in page_of_one
    document = re.sub("<svg.*?</svg>|<table.*?</table>", "", page_of_one, flags=re.DOTALL)
    text = re.sub(r"\s+", " ", " ".join(Elements(document).words))
    several = r"\b1 (sentences|heads|times|positions|labels|tokens)\b"
    for wrong in (several, "1 of them", "all 1 ", "padded", "are padding", "in grey", "Every head", "head_h"):
        assert not re.search(wrong, text), wrong
    assert "Here is one, so there is nothing to pad" in text and "There is one position, and it counts" in text


def test_without_padding_nothing_is_said_of_it():
    run = trace(toy_model(), None, [[3, 4, 2], [4, 3, 2]], [[4, 2], [3, 2]], search=False)
    text = re.sub(r"\s+", " ", " ".join(Elements(page.render(run)).words))
    assert "All 4 positions count, as there is no padding" in text
    assert "Here are 2 of them, all as long as each other: S = 3 and T = 2, without padding" in text
    assert "padded to" not in text and "the others are padding" not in text


@pytest.mark.parametrize("beams", [1, 2])
def test_a_translation_that_was_cut_off_is_told_apart_from_one_that_ended(toy, beams):
    run = trace(toy_model(), None, SOURCES, TARGETS, num_beams=beams, max_new_tokens=3)
    info = json.loads(json.dumps(run.info))
    found = []
    for fate in ("live", "finished"):
        search = info["searches"][0]
        for step in search["steps"]:
            for candidate in step["candidates"]:
                if candidate["hypothesis"] == search["winner"]:
                    candidate["fate"] = fate
        found.append(text_of(Elements(page.render(Trace(run.values(), info))), "What is fed in to translate?"))
    assert "the limit of 3 tokens cut it off" in found[0] and "had won" not in found[0] and "had ended" not in found[0]
    assert ("had ended" if beams == 1 else "had won") in found[1] and "cut it off" not in found[1]


def test_adjusted_scores_are_not_called_the_likeliest(toy):
    info = json.loads(json.dumps(toy.info))
    info["searches"][0]["adjusted"] = {"repetition_penalty": 1.8}
    answer = text_of(Elements(page.render(Trace(toy.values(), info))), "What is fed in to translate?")
    assert "repetition_penalty=1.8" in answer and "Likeliest next" not in answer
    assert "Likeliest next" in text_of(Elements(page.render(toy)), "What is fed in to translate?")


def test_spellings_that_are_no_words_are_explained_where_they_occur(toy):
    assert "How tokens are written" not in " ".join(Elements(page.render(toy)).words)
    info = json.loads(json.dumps(toy.info))
    sentence = info["sentences"][0]
    sentence["source"] = "Hündler é"
    sentence["source_tokens"] = ["·ler", "␣", "©"]
    text = re.sub(r"\s+", " ", " ".join(Elements(page.render(Trace(toy.values(), info))).words))
    line = text[text.index("How tokens are written") :][:400]
    assert (
        "goes on with the word before, as in ·ler" in line and "␣ is the space" in line and "such as © holds" in line
    )
    sentence["source_tokens"] = ["Hünd", "·ler", "</s>"]  # a letter beyond ASCII is one all the same
    text = re.sub(r"\s+", " ", " ".join(Elements(page.render(Trace(toy.values(), info))).words))
    line = text[text.index("How tokens are written") :][:400]
    assert "as in ·ler ." in line and "␣" not in line and "bytes of" not in line


def test_hostile_words_stay_words(toy):
    info = json.loads(json.dumps(toy.info))
    info["vocabulary"] |= {str(i): word for i, word in enumerate(HOSTILE[:5])}
    for sentence in info["sentences"]:
        for side in ("source", "target"):
            sentence[side] = " ".join(HOSTILE)
        for side in ("source_tokens", "decoder_tokens", "label_tokens"):
            sentence[side] = HOSTILE[: len(sentence[side])]
    document = page.render(Trace(toy.values(), info))
    plain, hostile = Elements(page.render(toy)), Elements(document)
    assert sorted(tag for tag, _ in plain.found if tag in ("script", "img", "iframe", "a")) == sorted(
        tag for tag, _ in hostile.found if tag in ("script", "img", "iframe", "a")
    )
    assert {name for _, each in hostile.found for name in each} == {name for _, each in plain.found for name in each}
    assert json.loads(hostile.scripts["index"])["words"] == HOSTILE[:5]
    assert "\u2028" not in hostile.scripts["index"] and "49" not in text_of(hostile, "The sentences")[:300]


def test_in_a_notebook_it_is_the_same_page_in_a_frame(toy, toy_page):
    frame = toy._repr_html_()
    (content,) = re.findall(r'srcdoc="([^"]*)"', frame)
    assert html.unescape(content) == toy_page
    assert 'sandbox="allow-scripts"' in frame
