"""What a recipe will do, before anything is read or downloaded: `training/train.py RECIPE --dry-run`."""

import torch
from transformers import get_scheduler

from .model import VanillaTransformerForConditionalGeneration
from .optimizer import MuonWithAdam
from .recipes import Recipe


def plan(recipe: Recipe) -> str:
    """Lines on data, parameters, tokens per update, schedule, memory, decoding, and what is saved where."""
    data, training, config = recipe.data, recipe.training, recipe.config
    with torch.device("meta"):
        model = VanillaTransformerForConditionalGeneration(config)
    parameters, moments = model.num_parameters(), "Adam's two moments"
    numbers = 4 * parameters  # a weight, its gradient and the two moments
    if data.muon:
        muon, _ = MuonWithAdam(model, lr=1.0).parts
        numbers -= sum(matrix.numel() for matrix in muon.param_groups[0]["params"])
        moments = "Muon's moment or Adam's two"
    devices, accumulation = training.world_size, training.gradient_accumulation_steps
    if data.tokens_per_batch is None:
        size, unit = training.per_device_train_batch_size, "sentences"
        scored = size * data.max_tokens
    else:
        size, unit = data.tokens_per_batch, "tokens a side"
        scored = size
    update = f"{size:,} x {devices} devices x {accumulation} accumulated = {size * devices * accumulation:,} {unit}"
    scores = 2 * scored * config.vocab_size * 4  # logits and their gradient, in bytes
    generation = recipe.generation
    source = data.dataset or ", ".join(map(str, data.files("train") or ()))
    every = "epoch" if training.save_strategy == "epoch" else f"{training.save_steps:g} steps"
    averaged = data.average_last
    kept = "all kept" if training.save_total_limit is None else f"the last {training.save_total_limit} kept"
    if averaged is not None:
        kept = f"the weights of the last {averaged} kept, and their mean at the end in averaged/"
    lines = {
        "data": f"{source}, {data.source_lang} → {data.target_lang}, at most {data.max_tokens} tokens a side",
        "vocabulary": data.tokenizer or f"{config.vocab_size:,} pieces, trained on the training pairs",
        "model": f"{config.num_layers} + {config.num_decoder_layers} layers, d_model {config.d_model}, "
        f"d_ff {config.d_ff}, {config.num_heads} heads, d_k {config.d_k}, d_v {config.d_v}, "
        f"{config.position_encoding} positions",
        "parameters": f"{parameters:,}",
        "update": update,
        "updates": f"{_updates(recipe)}, label smoothing {training.label_smoothing_factor}, dropout {config.dropout}",
        "learning rate": ", ".join(f"{rate:.3g} at {step:,}" for step, rate in learning_rates(recipe).items()),
        "memory": f"{numbers * 4 / 2**30:.2f} GiB for weights, gradients and {moments}; "
        f"{scores / 2**30:.2f} GiB for the scores of a batch and their gradient",
        "decoding": f"{getattr(generation, 'search', None) or 'stock'} search, beam {generation.num_beams or 1}, "
        f"length penalty {1.0 if generation.length_penalty is None else generation.length_penalty}",
        "saved": f"{training.output_dir}: a checkpoint every {every}, {kept}; the model at the end",
    }
    if data.bidirectional_epochs:
        lines["data"] += f", in both directions for the first {data.bidirectional_epochs} epochs"
    width = max(map(len, lines))
    return "\n".join(f"{name:{width}}  {text}" for name, text in lines.items())


def learning_rates(recipe: Recipe) -> dict[int, float]:
    """Step → rate by the stock scheduler: at step 1, at the end of warm-up, and at the last step if it is known."""
    training = recipe.training
    warmup = training.get_warmup_steps(max(training.max_steps, 1))
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=training.learning_rate)
    scheduler = get_scheduler(
        training.lr_scheduler_type,
        optimizer,
        num_warmup_steps=warmup,
        num_training_steps=max(training.max_steps, 1),
        scheduler_specific_kwargs=training.lr_scheduler_kwargs,
    )
    steps = sorted({step for step in (1, int(warmup), training.max_steps) if step > 0})
    return {step: training.learning_rate * scheduler.lr_lambdas[0](step) for step in steps}


def _updates(recipe: Recipe) -> str:
    training = recipe.training
    return f"{training.max_steps:,}" if training.max_steps > 0 else f"{training.num_train_epochs:g} epochs"
