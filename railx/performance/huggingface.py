"""Models from HuggingFace: the keys of a ``config.json``, without the library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from railx.errors import UserError
from railx.performance.models import Model
from railx.settings import SettingsError

__all__ = ["model_from_config"]

#: Names of the same number, the usual one first (GPT-2's last).
_ALIASES = {
    "layers": ("num_hidden_layers", "n_layer"),
    "hidden": ("hidden_size", "n_embd"),
    "heads": ("num_attention_heads", "n_head"),
    "vocabulary": ("vocab_size",),
}
#: Kinds with GELU, biases, and (but GPT-NeoX) learned positions.
_GPT = ("gpt2", "gpt_neox")
_KINDS = (
    *("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "deepseek_v3", "gpt_oss"),
    *("phi3", *_GPT),
)


def model_from_config(path: Path) -> Model:
    """The model of a ``config.json``.

    Raises :class:`railx.errors.UserError` for a file that cannot be read, a kind that is
    not known, or a key that is missing.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"model.path: got {path}: {error}; allowed: a config.json") from None
    if not isinstance(config, dict):
        raise UserError(f"model.path: got {path}, which is no object; allowed: a config.json")
    reader = _Reader(path, config)
    kind = str(reader.value("model_type"))
    if kind not in _KINDS:
        raise UserError(f"{path}: model_type: got {kind}; allowed: {', '.join(_KINDS)}")
    shape: dict[str, Any] = {key: reader.number(*names) for key, names in _ALIASES.items()}
    shape["kv_heads"] = reader.optional("num_key_value_heads") or shape["heads"]
    shape["head_width"] = reader.optional("head_dim")
    shape["tied_embeddings"] = bool(config.get("tie_word_embeddings", kind == "gpt2"))
    if kind in _GPT:
        wide = reader.optional("n_inner", "intermediate_size") or 4 * shape["hidden"]
        shape |= {"feed_forward": wide, "activation": "gelu", "biases": True}
        shape["learned_positions"] = reader.number("n_positions") if kind == "gpt2" else 0
    else:
        shape["feed_forward"] = reader.number("intermediate_size")
    shape |= _experts(reader, kind) | _attention(reader, kind, shape["layers"])
    name = str(config.get("_name_or_path") or path.parent.name or kind).rsplit("/", 1)[-1]
    try:
        return Model(name, **shape, source=str(path))
    except SettingsError as error:
        raise UserError(f"{path}: {error}") from None


class _Reader:
    """The keys of one file."""

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        self._path, self._config = path, config

    def value(self, *names: str) -> Any:
        for name in names:
            if self._config.get(name) is not None:
                return self._config[name]
        raise UserError(f"{self._path}: {names[0]}: is missing; allowed: a config.json with it")

    def number(self, *names: str) -> int:
        value = self.value(*names)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{self._path}: {names[0]}: got {value!r}; allowed: an integer above 0")
        return value

    def optional(self, *names: str) -> int:
        """The number, or 0 where it is missing or null."""
        given = [name for name in names if self._config.get(name) is not None]
        return self.number(*given) if given else 0

    def words(self, name: str) -> list[Any]:
        value = self._config.get(name)
        return value if isinstance(value, list) else []


def _experts(reader: _Reader, kind: str) -> dict[str, int]:
    if kind in ("mixtral", "gpt_oss"):
        return {
            "experts": reader.number("num_local_experts"),
            "experts_per_token": reader.number("num_experts_per_tok"),
            "expert_feed_forward": reader.number("intermediate_size"),
        }
    if kind == "qwen3_moe":
        return {
            "experts": reader.number("num_experts"),
            "experts_per_token": reader.number("num_experts_per_tok"),
            "expert_feed_forward": reader.number("moe_intermediate_size"),
        }
    if kind == "deepseek_v3":
        wide = reader.number("moe_intermediate_size")
        return {
            "experts": reader.number("n_routed_experts"),
            "experts_per_token": reader.number("num_experts_per_tok"),
            "expert_feed_forward": wide,
            "shared_feed_forward": wide * reader.optional("n_shared_experts"),
            "dense_layers": reader.optional("first_k_dense_replace"),
        }
    return {}


def _attention(reader: _Reader, kind: str, layers: int) -> dict[str, Any]:
    if kind == "deepseek_v3":
        rope = reader.number("qk_rope_head_dim")
        return {
            "head_width": reader.number("qk_nope_head_dim") + rope,
            "value_width": reader.number("v_head_dim"),
            "query_rank": reader.optional("q_lora_rank"),
            "kv_rank": reader.number("kv_lora_rank"),
            "rope_width": rope,
        }
    if kind == "gpt_oss":
        kinds = reader.words("layer_types")
        windowed = kinds.count("sliding_attention") if kinds else layers // 2
        window = reader.number("sliding_window")
        return {"biases": True, "window_tokens": window, "window_layers": windowed}
    return {}
