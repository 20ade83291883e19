"""The trainer: bit-exact resume, data parallelism, accumulation, schedule, starts and outputs."""

import dataclasses
import json
import math
import random
from functools import cache
from pathlib import Path

import pytest
import torch

from jobs.train import build_model, build_tokenizer
from wedlm_core.errors import ConfigError
from wedlm_core.model.weights import load_model, save_model
from wedlm_core.training import corpus
from wedlm_core.training.batches import make_batch
from wedlm_core.training.data import Problems, batch_config
from wedlm_core.training.examples import Vocabulary
from wedlm_core.training.loss import dual_stream_loss
from wedlm_core.training.masking import IGNORE
from wedlm_core.training.optim import learning_rate_factor
from wedlm_core.training.recipe import OptimRecipe, Recipe, parse_recipe
from wedlm_core.training.trainer import Trainer

RAW = {
    "model": {"vocab_size": 512, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
              "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16},
    "data": {"rows": 2, "length": 192, "tokenizer_texts": 300, "families": dict.fromkeys(corpus.FAMILIES, 1.0),
             "masking": {"block_sizes": [8, 16]}},
    "optim": {"warmup_steps": 2},
    "run": {"steps": 6, "log_every": 1, "checkpoint_every": 100},
}  # fmt: skip


def recipe(**sections: dict) -> Recipe:
    raw = {name: {**RAW[name], **sections.get(name, {})} for name in RAW}
    return parse_recipe(raw)


@cache
def vocabulary() -> Vocabulary:
    return Vocabulary(build_tokenizer(recipe()))


def trainer(folder: Path, made: Recipe) -> Trainer:
    model = build_model(made, vocabulary().special, torch.device("cpu"))
    return Trainer(model, Problems(vocabulary(), made), made, folder, lambda line: None)


def weights_of(run: Trainer) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in run.model.named_parameters()}


@pytest.mark.parametrize("matrices", ["muon", "adamw"])
def test_an_interrupted_run_ends_bit_for_bit_like_a_whole_one(tmp_path, matrices):
    made = recipe(optim={"matrices": matrices})
    whole = trainer(tmp_path / "whole", made)
    whole.train()
    first = trainer(tmp_path / "parts", made)
    first.train(until_step=3)
    torch.manual_seed(12345)  # a new process would not have this state
    random.seed(9)
    second = trainer(tmp_path / "parts", made)
    assert second.resume()
    assert second.step == 3
    second.train()
    for name, weight in weights_of(whole).items():
        assert torch.equal(weight, weights_of(second)[name]), name
    for ours, theirs in zip(whole.optimisers, second.optimisers, strict=True):
        for mine, other in zip(ours.state.values(), theirs.state.values(), strict=True):
            assert all(torch.equal(torch.as_tensor(mine[k]), torch.as_tensor(other[k])) for k in mine)


def test_a_resumed_curve_has_each_step_once(tmp_path):
    made = recipe()
    run = trainer(tmp_path, made)
    run.train(until_step=3)
    with (tmp_path / "curve.csv").open("a") as file:
        file.write("4,9.0,1,1,1,1,1,1\n")  # logged, then killed before the next checkpoint
    second = trainer(tmp_path, made)
    assert second.resume()
    second.train()
    steps = [line.split(",")[0] for line in (tmp_path / "curve.csv").read_text().splitlines()[1:]]
    assert steps == ["1", "2", "3", "4", "5", "6"]


def test_training_lowers_the_loss_and_writes_the_curve(tmp_path):
    made = recipe(run={"steps": 40})
    run = trainer(tmp_path, made)
    run.train()
    lines = (tmp_path / "curve.csv").read_text().splitlines()
    columns = lines[0].split(",")
    first, last = (dict(zip(columns, map(float, lines[i].split(",")), strict=True)) for i in (1, -1))
    assert (first["step"], last["step"]) == (1, 40)
    assert last["next_token"] < first["next_token"] - 1
    assert last["masked"] < first["masked"] - 1


def test_accumulated_micro_batches_give_the_mean_gradient(tmp_path):
    made = recipe(optim={"accumulate": 3})
    run = trainer(tmp_path, made)
    config = batch_config(made.data)
    gradients = []
    for index in range(3):
        run.model.zero_grad()
        dual_stream_loss(run.model, make_batch(0, index, vocabulary(), config)).total.backward()
        gradients.append(run.model.embed.weight.grad.clone())
    made_big = dataclasses.replace(made, optim=dataclasses.replace(made.optim, clip_norm=1e9))
    again = trainer(tmp_path, made_big)
    again.update()
    torch.testing.assert_close(again.model.embed.weight.grad, torch.stack(gradients).mean(0), rtol=1e-4, atol=1e-6)


def test_only_training_problems_are_in_batches():
    config = batch_config(recipe().data)
    seen = 0
    for index in range(12):
        batch = make_batch(5, index, vocabulary(), config)
        for row in range(batch.ids.shape[0]):
            for document in range(int(batch.document[row].max()) + 1):
                ids = batch.ids[row][(batch.document[row] == document) & (batch.block[row] == 0)].tolist()
                text = vocabulary().tokenizer.decode(ids, skip_special_tokens=False)
                inner = text.split("user\n")[1].split("<|im_end|>")[0] if text.startswith("<|im_start|>") else None
                prompt = inner if inner is not None else text.split("\n")[0]
                assert corpus.split_of(prompt) == "train"
                seen += 1
    assert seen > 30


def test_a_batch_is_a_function_of_seed_and_index():
    config = batch_config(recipe().data)
    a, b, c, d = (make_batch(s, i, vocabulary(), config) for s, i in ((0, 4), (0, 4), (0, 5), (1, 4)))
    assert torch.equal(a.ids, b.ids)
    assert torch.equal(a.weight, b.weight)
    assert not torch.equal(a.ids, c.ids)
    assert not torch.equal(a.ids, d.ids)
    assert ((a.target == IGNORE) | (a.target < 512)).all()


def test_later_families_take_over_at_their_step(tmp_path):
    data = {"families": {"copying": 1.0}, "later_from": 2, "later_families": {"sorting": 1.0}}
    made = recipe(data=data)
    prompts = []
    for step in (1, 2):
        batch = make_batch(0, 0, vocabulary(), batch_config(made.data, step))
        prompts.append(vocabulary().tokenizer.decode(batch.ids[0].tolist()))
    assert "Copy: " in prompts[0]
    assert "Sort " not in prompts[0]
    assert "Sort " in prompts[1]
    assert "Copy: " not in prompts[1]


def test_the_schedule_warms_up_and_comes_down():
    optim = OptimRecipe(warmup_steps=10, final_share=0.1)
    factors = [learning_rate_factor(step, step / 100, optim) for step in range(101)]
    assert factors[0] == pytest.approx(0.1 * 1.0, abs=0.01)
    assert max(factors) == max(factors[9:12])
    assert factors[10:] == sorted(factors[10:], reverse=True)
    assert factors[-1] == pytest.approx(0.1)
    half = learning_rate_factor(50, 0.5, optim)
    assert half == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi / 2)) / 2)


def test_minutes_end_a_run_before_its_steps(tmp_path):
    run = trainer(tmp_path, recipe(run={"steps": 10**6, "max_minutes": 0.02}))
    run.train()
    assert 0 < run.step < 10**6
    assert run.progress >= 1


def test_training_goes_on_from_a_checkpoint_folder(tmp_path):
    made = recipe()
    first = trainer(tmp_path / "run", made)
    first.train(until_step=2)
    folder = tmp_path / "model"
    from wedlm_core.training.bpe import save_tokenizer

    save_tokenizer(vocabulary().tokenizer, folder, max_length=1024)
    save_model(first.model, folder)
    onward = recipe(model={"start": str(folder)})
    assert build_tokenizer(onward).get_vocab() == vocabulary().tokenizer.get_vocab()
    model = build_model(onward, vocabulary().special, torch.device("cpu"))
    for name, weight in model.named_parameters():
        assert torch.equal(weight, first.model.get_parameter(name)), name
    Trainer(model, Problems(vocabulary(), onward), onward, tmp_path / "onward", lambda line: None).train(until_step=1)


def test_training_starts_from_a_qwen_checkpoint_of_transformers(tmp_path):
    """An autoregressive checkpoint whose tokenizer knows no mask token, but whose embedding has spare rows."""
    from tokenizers import Tokenizer
    from transformers import Qwen2Config, Qwen2ForCausalLM

    raw = json.loads(vocabulary().tokenizer.to_str())
    raw["added_tokens"] = [token for token in raw["added_tokens"] if token["content"] != "<|mask|>"]
    raw["model"]["vocab"]["<|unused|>"] = raw["model"]["vocab"].pop("<|mask|>")
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).token_to_id("<|mask|>") is None
    config = Qwen2Config(vocab_size=576, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
                         num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=256)  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(tmp_path)

    def vocabulary_of(made):
        return Vocabulary(build_tokenizer(made))

    made = recipe(model={"start": str(tmp_path)})
    model = build_model(made, vocabulary_of(made).special, torch.device("cpu"))
    assert model.config.mask_token_id == vocabulary_of(made).special.mask < 576
    before = model.layers[0].qkv_proj.bias.detach().clone()
    Trainer(model, Problems(vocabulary_of(made), made), made, tmp_path / "run", lambda line: None).train(until_step=2)
    assert not torch.equal(before, model.layers[0].qkv_proj.bias)
    save_model(model, tmp_path / "out")
    assert load_model(tmp_path / "out", device="cpu", dtype=torch.float32).config.mask_token_id is not None

    cramped = Qwen2Config(**{**config.to_dict(), "vocab_size": vocabulary().tokenizer.get_vocab_size()})
    Qwen2ForCausalLM(cramped).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="no spare row"):
        vocabulary_of(made)


def test_bf16_autocast_trains(tmp_path):
    run = trainer(tmp_path, recipe(run={"bf16": True, "steps": 2}))
    run.train()
    assert all(torch.isfinite(p).all() for p in run.model.parameters())
    assert all(p.dtype == torch.float32 for p in run.model.parameters())
