"""Models from HuggingFace: the keys of a ``config.json``, without the library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from railx.errors import UserError
from railx.performance.models import Model
from railx.settings import SettingsError

_PLAIN = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "feed_forward": "intermediate_size",
    "vocabulary": "vocab_size",
}
_GROUPED = _PLAIN | {"kv_heads": "num_key_value_heads"}
_WIDE = _GROUPED | {"head_width": "head_dim"}
_ROUTED = {"experts": "num_local_experts", "experts_per_token": "num_experts_per_tok"}
_LATENT = (
    _PLAIN
    | _ROUTED
    | {
        "experts": "n_routed_experts",
        "expert_feed_forward": "moe_intermediate_size",
        "value_width": "v_head_dim",
        "kv_rank": "kv_lora_rank",
        "rope_width": "qk_rope_head_dim",
    }
)
#: The keys that each ``model_type`` must have, by the field of Model that they fill.
_KEYS: dict[str, dict[str, str]] = {
    "llama": _PLAIN,
    "mistral": _GROUPED,
    "mixtral": _GROUPED | _ROUTED | {"expert_feed_forward": "intermediate_size"},
    "qwen2": _GROUPED,
    "qwen3": _WIDE,
    "qwen3_moe": _WIDE
    | _ROUTED
    | {"experts": "num_experts", "expert_feed_forward": "moe_intermediate_size"},
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "kimi_k2": _LATENT,
    "glm4_moe": _WIDE
    | _ROUTED
    | {"experts": "n_routed_experts", "expert_feed_forward": "moe_intermediate_size"},
    "gpt_oss": _WIDE
    | _ROUTED
    | {"expert_feed_forward": "intermediate_size", "window_tokens": "sliding_window"},
    "phi3": _PLAIN,
    "gemma": _WIDE,
    "gemma2": _WIDE,
    "gemma3_text": _WIDE,
    "gpt_neox": _PLAIN,
    "gpt2": {
        "layers": "n_layer",
        "hidden": "n_embd",
        "heads": "n_head",
        "vocabulary": "vocab_size",
        "learned_positions": "n_positions",
    },
}
#: The keys that may be missing or null.
_OPTIONAL = {
    "kv_heads": "num_key_value_heads",
    "head_width": "head_dim",
    "query_rank": "q_lora_rank",
    "dense_layers": "first_k_dense_replace",
}
#: Keys that a file leaves out where the library's value holds.
_LEFT_OUT = {
    "gemma3_text": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
    | {"vocab_size": 262208, "sliding_window_pattern": 6}
}
#: Kinds that have one table of embeddings unless the file says otherwise.
_TIED = ("gpt2", "gemma", "gemma2", "gemma3_text")
#: Kinds whose queries and keys have norms.
_QK_NORMS = ("qwen3", "qwen3_moe", "gemma3_text")
#: Layers of these kinds have a window if there is one (``sliding_window``).
_WITH_WINDOW = (
    *("mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gpt_oss", "phi3"),
    *("gemma2", "gemma3_text"),
)


def model_from_config(path: Path) -> Model:
    """The model of a ``config.json``.

    Of a model of several kinds of input the decoder of text (``text_config``). Norms
    after sublayers (Gemma) and modules that predict further tokens are left out.
    Raises :class:`railx.errors.UserError` for a file that cannot be read, an unknown
    kind, or a key that is missing or wrong.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"model.path: got {path}: {error}; allowed: a config.json") from None
    if not isinstance(config, dict):
        raise UserError(f"model.path: got {path}, which is no object; allowed: a config.json")
    if isinstance(text := config.get("text_config"), dict):
        config = {"_name_or_path": config.get("_name_or_path")} | text
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in _KEYS:
        got = "nothing" if kind is None else kind
        raise UserError(f"{path}: model_type: got {got}; allowed: {', '.join(_KEYS)}")
    return _Reader(path, _LEFT_OUT.get(kind, {}) | config, kind).model()


class _Reader:
    """The keys of one file."""

    def __init__(self, path: Path, config: Mapping[str, Any], kind: str) -> None:
        self._path, self._config, self._kind = path, config, kind

    def model(self) -> Model:
        keys = {**_OPTIONAL, **_KEYS[self._kind]}
        gpt = self._kind in ("gpt2", "gpt_neox")
        shape: dict[str, Any] = {
            field: self._number(key, optional=field not in _KEYS[self._kind])
            for field, key in keys.items()
        }
        shape["kv_heads"] = shape["kv_heads"] or shape["heads"]
        shape["activation"] = "gelu" if gpt else "swiglu"
        shape["biases"] = gpt or self._kind == "gpt_oss"
        # The library has one norm for each kind, whatever epsilon the file names.
        shape["norm"] = "layer" if gpt else "rms"
        glm = self._kind == "glm4_moe"
        shape["qk_norms"] = self._kind in _QK_NORMS or (
            glm and bool(self._config.get("use_qk_norm"))
        )
        shape["qkv_biases"] = self._kind == "qwen2" or (
            glm and bool(self._config.get("attention_bias"))
        )
        tied = self._config.get("tie_word_embeddings")
        shape["tied_embeddings"] = self._kind in _TIED if tied is None else bool(tied)
        if self._kind == "gpt2":
            shape["feed_forward"] = self._number("n_inner", optional=True) or 4 * shape["hidden"]
        if _KEYS[self._kind] is _LATENT:
            shape["head_width"] = self._number("qk_nope_head_dim") + shape["rope_width"]
        if shape.get("experts"):
            shape["shared_feed_forward"] = shape["expert_feed_forward"] * self._number(
                "n_shared_experts", optional=True
            )
        if self._kind == "qwen3_moe":
            step = self._number("decoder_sparse_step", optional=True) or 1
            dense = set(self._list("mlp_only_layers"))
            shape["dense_layers"] = sum(
                layer in dense or bool((layer + 1) % step) for layer in range(shape["layers"])
            )
        shape |= self._windows(shape["layers"])
        name = str(self._config.get("_name_or_path") or self._path.absolute().parent.name)
        try:
            return Model(name.rsplit("/", 1)[-1] or self._kind, **shape, source=str(self._path))
        except SettingsError as error:
            key = keys.get(error.key, error.key)
            raise UserError(f"{self._path}: {key}: {error.message}") from None

    def _windows(self, layers: int) -> dict[str, int]:
        """Layers that see a window of tokens, and that window."""
        tokens = self._number("sliding_window", optional=True)
        switch = self._config.get("use_sliding_window", not self._kind.startswith("qwen"))
        if self._kind not in _WITH_WINDOW or not tokens or not switch:
            return {}
        if kinds := self._list("layer_types"):
            windowed = kinds.count("sliding_attention")
        elif self._kind in ("gpt_oss", "gemma2"):
            windowed = (layers + 1) // 2  # every second layer, from the first on
        elif self._kind == "gemma3_text":
            windowed = layers - layers // self._number("sliding_window_pattern")
        else:
            windowed = max(0, layers - self._number("max_window_layers", optional=True))
        return {"window_tokens": tokens, "window_layers": windowed} if windowed else {}

    def _number(self, key: str, *, optional: bool = False) -> int:
        """The number; 0 for an optional one that is missing, null or 0."""
        value = self._config.get(key)
        if optional and (value is None or value == 0):
            return 0
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            got = "nothing" if value is None else repr(value)
            raise UserError(f"{self._path}: {key}: got {got}; allowed: an integer above 0")
        return value

    def _list(self, key: str) -> list[Any]:
        value = self._config.get(key) or []
        if not isinstance(value, list):
            raise UserError(f"{self._path}: {key}: got {value!r}; allowed: a list")
        return value
