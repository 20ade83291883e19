"""Small random models with tokenizers, in Hugging Face layout, whose outputs vary enough to reveal errors."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from wedlm_core.config import ModelConfig
from wedlm_core.model.checkpoint import INDEX_FILE, SINGLE_FILE
from wedlm_core.model.decoder import Decoder
from wedlm_core.model.placing import empty_decoder
from wedlm_core.model.weights import save_model

SPECIAL = ("<|endoftext|>", "<|im_end|>", "<|mask|>", "<|im_start|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT = (
    "The quick brown fox counts from one to nine, and nine plus one is ten.",
    "Grüße aus Köln, 東京の猫, naïve café, 😀😀 👩‍👩‍👧 ½ + ¼ = ¾, €100.",
    "Count from 3 to 9. Solve 2x + 3 = 11. Write a short story about a fox.",
)


def write_tokenizer(folder: Path, vocab_size: int = 320) -> None:
    """Write a byte-level BPE tokenizer with a ChatML template; the first ids are the special tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(_trained(vocab_size))
    settings = {"eos_token": SPECIAL[1], "pad_token": SPECIAL[0], "mask_token": SPECIAL[2], "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 0]}))


@cache
def _trained(vocab_size: int) -> str:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TEXT * 4, trainer)
    return backend.to_str(pretty=True)


def random_decoder(
    *,
    qwen3: bool,
    seed: int,
    sharpness: float = 1.0,
    common: float = 0.0,
    max_positions: int = 512,
    heads: int = 4,
    hidden: int = 32,
    vocab: int = 336,
) -> Decoder:
    """A decoder with random weights, scaled so that entropies range from nearly 0 to several nats.

    Args:
        qwen3: as Qwen3: q/k norm, no bias, untied; else as Qwen2.5: bias, no norm, tied.
        seed: seed of the weights.
        sharpness: scale of the logits; a larger one lowers the entropy.
        common: size of a vector added to every embedding (untied models). A larger one makes a
            mask's logits more like the next-token head's, so that drafts are accepted more often.
        max_positions: ``max_position_embeddings`` of the configuration.
        heads: query heads; there are half as many KV heads.
        hidden: width of the hidden states.
        vocab: more than the tokenizer has: the rest is padding.
    """
    config = ModelConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=8,
        max_position_embeddings=max_positions,
        rope_theta=10_000.0,
        attention_bias=not qwen3,
        qk_norm=qwen3,
        tie_word_embeddings=not qwen3,
        mask_token_id=2,
        eos_token_ids=(1,),
        pad_token_id=0,
    )
    model = Decoder(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.uniform_(0.5, 1.5, generator=generator)
            else:
                parameter.normal_(std=0.25, generator=generator)
        model.norm.weight.mul_(2.0 * sharpness)
        model.embed.weight.add_(common * torch.randn(config.hidden_size, generator=generator))
    return model.requires_grad_(False).eval()


def write_model(
    folder: Path, *, qwen3: bool, seed: int, sharpness: float = 1.0, common: float = 0.0, heads: int = 4
) -> Path:
    """Write a complete model folder: weights, configuration, tokenizer."""
    save_model(random_decoder(qwen3=qwen3, seed=seed, sharpness=sharpness, common=common, heads=heads), folder)
    write_tokenizer(folder)
    return folder


def wide_model(folder: Path, vocab_size: int, layers: int) -> None:
    """Write a model with about 4M parameters per layer and 512 per id, in bfloat16, in two or more files."""
    config = ModelConfig(
        vocab_size=vocab_size, hidden_size=512, intermediate_size=2048, num_hidden_layers=layers,
        num_attention_heads=8, num_key_value_heads=4, head_dim=64, max_position_embeddings=16, mask_token_id=0,
    )  # fmt: skip
    model = empty_decoder(config, device="cpu", dtype=torch.bfloat16)
    for parameter in model.parameters():
        parameter.fill_(0.5)
    save_sharded(model, folder, 64 << 20)


def save_sharded(model: Decoder, folder: Path, shard_bytes: int) -> None:
    """Write a model in files of at most ``shard_bytes`` (each holds a tensor at least), with an index."""
    save_model(model, folder)
    whole = folder / SINGLE_FILE
    shards: list[dict[str, torch.Tensor]] = [{}]
    for name, tensor in load_file(whole).items():
        if shards[-1] and sum(one.nbytes for one in shards[-1].values()) + tensor.nbytes > shard_bytes:
            shards.append({})
        shards[-1][name] = tensor
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        shutil.copymode(folder / "config.json", folder / file)
        weight_map.update(dict.fromkeys(shard, file))
    total = sum(tensor.nbytes for shard in shards for tensor in shard.values())
    (folder / INDEX_FILE).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    whole.unlink()
