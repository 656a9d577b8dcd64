"""A ``config.json`` is read as the catalogue's entry; files that cannot be end in one
line that names the file and the key.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from railx.errors import UserError
from railx.performance.huggingface import model_from_config
from railx.performance.models import model_named

Config = dict[str, Any]


def decoder(kind: str, layers: int, hidden: int, heads: int, wide: int, vocabulary: int) -> Config:
    return {
        "model_type": kind,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "intermediate_size": wide,
        "vocab_size": vocabulary,
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-05,
    }


#: The configurations on the hub, without the keys that do not change the shape.
CONFIGS: dict[str, Config] = {
    "llama3_8b": decoder("llama", 32, 4096, 32, 14336, 128256),
    "llama3_70b": decoder("llama", 80, 8192, 64, 28672, 128256),
    "llama3_405b": decoder("llama", 126, 16384, 128, 53248, 128256),
    "qwen3_32b": decoder("qwen3", 64, 5120, 64, 25600, 151936)
    | {"head_dim": 128, "sliding_window": None, "use_sliding_window": False},
    "qwen3_235b_a22b": decoder("qwen3_moe", 94, 4096, 64, 12288, 151936)
    | {
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1536,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "sliding_window": None,
    },
    "deepseek_v3": decoder("deepseek_v3", 61, 7168, 128, 18432, 129280)
    | {
        "num_key_value_heads": 128,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3,
        "moe_layer_freq": 1,
        "num_nextn_predict_layers": 1,
    },
    "gpt_oss_120b": decoder("gpt_oss", 36, 2880, 64, 2880, 201088)
    | {
        "head_dim": 64,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 18,
        "attention_bias": True,
    },
    "mixtral_8x22b": decoder("mixtral", 56, 6144, 48, 16384, 32000)
    | {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None},
    "gpt3_175b": {
        "model_type": "gpt2",
        "n_layer": 96,
        "n_embd": 12288,
        "n_head": 96,
        "n_positions": 2048,
        "n_inner": None,
        "vocab_size": 50257,
    },
}


DEEPSEEK_LITE = CONFIGS["deepseek_v3"] | (
    decoder("deepseek_v2", 27, 2048, 16, 10944, 102400)
    | {"num_key_value_heads": 16, "q_lora_rank": None, "n_routed_experts": 64}
    | {"n_shared_experts": 2, "num_experts_per_tok": 6, "moe_intermediate_size": 1408}
    | {"first_k_dense_replace": 1}
)
KIMI = CONFIGS["deepseek_v3"] | (
    decoder("kimi_k2", 61, 7168, 64, 18432, 163840)
    | {"num_key_value_heads": 64, "n_routed_experts": 384, "first_k_dense_replace": 1}
)
GLM = decoder("glm4_moe", 46, 4096, 96, 10944, 151552) | (
    {"head_dim": 128, "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8}
    | {"moe_intermediate_size": 1408, "first_k_dense_replace": 1, "attention_bias": True}
)
GEMMA_2 = decoder("gemma2", 42, 3584, 16, 14336, 256000) | (
    {"head_dim": 256, "sliding_window": 4096, "tie_word_embeddings": None}
)
#: Keys with the library's values are left out in Gemma 3's files.
GEMMA_3 = {
    "model_type": "gemma3",
    "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    },
}


def written(folder: Path, config: Any) -> Path:
    path = folder / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_is_the_catalogues_entry(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, CONFIGS[name] | {"_name_or_path": f"someone/{name}"})
    assert model_from_config(path) == replace(model_named(name), source=str(path))


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (
            {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12}
            | {"n_positions": 1024, "vocab_size": 50257},
            124_439_808,
        ),
        # Pythia 6.9B
        (
            decoder("gpt_neox", 32, 4096, 32, 16384, 50432) | {"num_key_value_heads": None},
            6_857_302_016,
        ),
        # Mistral 7B v0.1
        (decoder("mistral", 32, 4096, 32, 14336, 32000), 7_241_732_096),
        # Llama 2 7B: no grouped heads
        (
            decoder("llama", 32, 4096, 32, 11008, 32000) | {"num_key_value_heads": None},
            6_738_415_616,
        ),
        # Phi-3 mini
        (
            decoder("phi3", 32, 3072, 32, 8192, 32064) | {"num_key_value_heads": 32},
            3_821_079_552,
        ),
        # Gemma 2B: tied embeddings unless the file says otherwise
        (
            decoder("gemma", 18, 2048, 8, 16384, 256000)
            | {"num_key_value_heads": 1, "head_dim": 256, "tie_word_embeddings": None},
            2_506_172_416,
        ),
        # Qwen2 7B, whose biases of queries, keys and values are left out
        (
            decoder("qwen2", 28, 3584, 28, 18944, 152064) | {"num_key_value_heads": 4},
            7_615_616_512 - 28 * (28 + 2 * 4) * 128,
        ),
        # DeepSeek-V2-Lite
        (DEEPSEEK_LITE, 15_706_484_224),
        # Kimi K2, without the corrections of the router's scores
        (KIMI, 1_026_408_232_448 - 60 * 384),
        # GLM-4.5-Air, as well without biases of queries, keys and values
        (GLM, 106_852_251_264 - 45 * 128 - 46 * (96 + 2 * 8) * 128),
        # Gemma 2 9B, without the two norms after sublayers
        (GEMMA_2, 9_241_705_984 - 42 * 2 * 3584),
        # Gemma 3 4B's text decoder: as well without the norms of queries and keys
        (GEMMA_3, 3_880_263_168 - 34 * (2 * 2560 + 2 * 256)),
    ],
)
def test_other_kinds_have_the_published_parameters(
    config: Config, parameters: int, tmp_path: Path
) -> None:
    assert model_from_config(written(tmp_path, config)).parameters == parameters


@pytest.mark.parametrize(
    ("kind", "keys", "windows"),
    [
        ("mistral", {"sliding_window": 4096}, (4096, 32)),
        ("llama", {"sliding_window": 4096}, (0, 0)),
        ("qwen2", {"sliding_window": 4096, "use_sliding_window": False}, (0, 0)),
        ("qwen2", {"sliding_window": 4096}, (0, 0)),
        (
            "qwen2",
            {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 28},
            (4096, 4),
        ),
        ("phi3", {"sliding_window": 2047}, (2047, 32)),
        ("gemma2", {"head_dim": 128, "sliding_window": 4096}, (4096, 16)),
        ("gemma3_text", {"head_dim": 128, "sliding_window": 512}, (512, 27)),
        ("gemma3_text", {"sliding_window": 512, "sliding_window_pattern": 2}, (512, 16)),
        ("phi3", {"sliding_window": 8, "layer_types": ["full_attention"] * 32}, (0, 0)),
    ],
)
def test_windows(kind: str, keys: Config, windows: tuple[int, int], tmp_path: Path) -> None:
    config = decoder(kind, 32, 4096, 32, 14336, 32000) | keys
    model = model_from_config(written(tmp_path, config))
    assert (model.window_tokens, model.window_layers) == windows


@pytest.mark.parametrize(
    ("kind", "keys", "expected"),
    [
        ("llama", {"attention_bias": True}, ("rms", False, False)),
        ("qwen2", {}, ("rms", False, True)),
        ("qwen3", {"head_dim": 128}, ("rms", True, False)),
        ("gemma3_text", {"head_dim": 128}, ("rms", True, False)),
        ("gemma2", {"head_dim": 128}, ("rms", False, False)),
        ("gpt_neox", {"layer_norm_eps": 1e-5}, ("layer", False, False)),
    ],
)
def test_norms_and_biases(
    kind: str, keys: Config, expected: tuple[str, bool, bool], tmp_path: Path
) -> None:
    config = decoder(kind, 32, 4096, 32, 14336, 32000) | keys
    model = model_from_config(written(tmp_path, config))
    assert (model.norm, model.qk_norms, model.qkv_biases) == expected


@pytest.mark.parametrize("normed", [False, True])
def test_norms_and_biases_of_glm_are_in_its_file(normed: bool, tmp_path: Path) -> None:
    model = model_from_config(written(tmp_path, GLM | {"use_qk_norm": normed}))
    assert (model.qk_norms, model.qkv_biases) == (normed, True)
    model = model_from_config(written(tmp_path, GLM | {"attention_bias": False}))
    assert (model.qk_norms, model.qkv_biases) == (False, False)


def test_windows_of_gpt_oss_without_a_list_are_every_second_layer(tmp_path: Path) -> None:
    config = CONFIGS["gpt_oss_120b"] | {"num_hidden_layers": 5, "layer_types": None}
    assert model_from_config(written(tmp_path, config)).window_layers == 3


@pytest.mark.parametrize(
    ("keys", "dense"),
    [
        ({"mlp_only_layers": [0, 1, 1]}, 2),
        ({"decoder_sparse_step": 2}, 47),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [0, 1, 3]}, 49),
    ],
)
def test_dense_layers_of_qwen3(keys: Config, dense: int, tmp_path: Path) -> None:
    config = CONFIGS["qwen3_235b_a22b"] | keys
    assert model_from_config(written(tmp_path, config)).dense_layers == dense


def test_a_model_without_a_name_has_that_of_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    folder.mkdir()
    assert model_from_config(written(folder, CONFIGS["llama3_8b"])).name == "llama"


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as error:
        model_from_config(path)
    message = str(error.value)
    assert "\n" not in message
    assert "; allowed: " in message
    return message


#: Keys without which a shape cannot be known.
NEEDED = {
    "llama3_8b": ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"),
    "qwen3_32b": ("num_key_value_heads", "head_dim", "intermediate_size"),
    "qwen3_235b_a22b": ("num_experts", "num_experts_per_tok", "moe_intermediate_size"),
    "deepseek_v3": ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim", "n_routed_experts"),
    "gpt_oss_120b": ("num_local_experts", "sliding_window", "head_dim"),
    "mixtral_8x22b": ("num_local_experts", "num_experts_per_tok", "num_key_value_heads"),
    "gpt3_175b": ("n_layer", "n_embd", "n_head", "n_positions", "vocab_size"),
}


@pytest.mark.parametrize(("name", "key"), [(name, key) for name in NEEDED for key in NEEDED[name]])
def test_a_missing_key_is_named(name: str, key: str, tmp_path: Path) -> None:
    path = written(tmp_path, {k: v for k, v in CONFIGS[name].items() if k != key})
    assert refusal(path) == f"{path}: {key}: got nothing; allowed: an integer above 0"


@pytest.mark.parametrize("value", [0, -1, 1.5, "32", True, [32]])
def test_a_wrong_value_is_named(value: Any, tmp_path: Path) -> None:
    path = written(tmp_path, CONFIGS["llama3_8b"] | {"num_hidden_layers": value})
    message = f"{path}: num_hidden_layers: got {value!r}; allowed: an integer above 0"
    assert refusal(path) == message


@pytest.mark.parametrize("value", [None, "bert", ["llama"]])
def test_an_unknown_kind_lists_the_kinds(value: Any, tmp_path: Path) -> None:
    path = written(tmp_path, CONFIGS["llama3_8b"] | {"model_type": value})
    message = refusal(path)
    assert message.startswith(f"{path}: model_type: got {value or 'nothing'}; allowed: llama, ")
    assert "deepseek_v3" in message


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"num_key_value_heads": 5}, "num_key_value_heads: got 5; allowed: a divisor"),
        ({"hidden_size": 4095}, "hidden_size: got 4095; allowed: a multiple of heads"),
    ],
)
def test_an_impossible_shape_names_the_files_key(
    keys: Config, message: str, tmp_path: Path
) -> None:
    path = written(tmp_path, CONFIGS["llama3_8b"] | keys)
    assert refusal(path).startswith(f"{path}: {message}")


def test_more_experts_a_token_than_there_are(tmp_path: Path) -> None:
    path = written(tmp_path, CONFIGS["mixtral_8x22b"] | {"num_experts_per_tok": 9})
    assert refusal(path).startswith(f"{path}: num_experts_per_tok: got 9; allowed: at most 8")


def test_a_list_of_layers_that_is_none(tmp_path: Path) -> None:
    path = written(tmp_path, CONFIGS["gpt_oss_120b"] | {"layer_types": "full"})
    assert refusal(path) == f"{path}: layer_types: got 'full'; allowed: a list"


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '"llama"'])
def test_a_file_that_is_no_object(text: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    assert refusal(path).startswith(f"model.path: got {path}")


def test_a_file_that_is_no_text_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    assert refusal(path).startswith(f"model.path: got {path}")
    path.write_bytes(b"\xff\xfe\x00")
    assert refusal(path).startswith(f"model.path: got {path}")
    assert refusal(tmp_path).startswith(f"model.path: got {tmp_path}")
