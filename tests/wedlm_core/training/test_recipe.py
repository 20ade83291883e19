"""Recipes: fields and types are checked."""

import pytest

from jobs.train import RECIPE, read_recipe
from wedlm_core.errors import ConfigError
from wedlm_core.training.recipe import parse_recipe


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"modle": {}}, "modle"),
        ({"optim": {"lr": 0.1, "momentun": 1}}, r"recipe\.optim.*momentun"),
        ({"data": {"masking": {"block": 3}}}, r"recipe\.data\.masking"),
        ({"run": {"steps": "many"}}, r"recipe\.run\.steps"),
        ({"run": {"bf16": 1}}, r"recipe\.run\.bf16"),
        ({"optim": {"decay": "stairs"}}, r"recipe\.optim\.decay"),
        ({"run": 5}, r"recipe\.run"),
        ({"run": {"steps": -1}}, r"recipe\.run\.steps=-1: a number from 1 to"),
        ({"run": {"log_every": 0}}, r"recipe\.run\.log_every=0"),
        ({"run": {"max_minutes": 0}}, r"recipe\.run\.max_minutes=0\.0"),
        ({"data": {"rows": 0}}, r"recipe\.data\.rows=0"),
        ({"data": {"held_out": float("nan")}}, r"recipe\.data\.held_out=nan: a number from 0 to 1"),
        ({"data": {"masking": {"max_tail": -1}}}, r"recipe\.data\.masking\.max_tail=-1"),
        ({"data": {"files": [5]}}, r"recipe\.data\.files=5"),
        ({"optim": {"accumulate": 0}}, r"recipe\.optim\.accumulate=0"),
        ({"optim": {"lr": float("nan")}}, r"recipe\.optim\.lr=nan"),
        ({"optim": {"betas": [2, 3]}}, r"recipe\.optim\.betas=\(2\.0, 3\.0\)"),
        ({"optim": {"betas": [0.5]}}, r"recipe\.optim\.betas"),
    ],
)
def test_unknown_fields_and_wrong_types_are_refused_by_name(raw, message):
    with pytest.raises(ConfigError, match=message):
        parse_recipe(raw)


def test_numbers_and_lists_are_taken_as_yaml_writes_them():
    recipe = parse_recipe({"optim": {"lr": 1, "betas": [0.5, 0.6]}, "run": {"max_minutes": None}})
    assert (recipe.optim.lr, recipe.optim.betas, recipe.run.max_minutes) == (1.0, (0.5, 0.6), None)


def test_overrides_reach_their_field_and_unknown_ones_are_refused():
    assert read_recipe(RECIPE, ["run.steps=7", "optim.decay=cosine"]).run.steps == 7
    with pytest.raises(ConfigError, match="stepz"):
        read_recipe(RECIPE, ["run.stepz=7"])
    with pytest.raises(ConfigError, match="rum"):
        read_recipe(RECIPE, ["rum.steps=7"])
    with pytest.raises(ConfigError, match="no such file"):
        read_recipe(RECIPE.with_name("large.yaml"), [])
