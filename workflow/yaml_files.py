"""Files of conf/ as plain data, each read once while it stays the same.

The rules are those of Hydra's own files: YAML 1.2's numbers, no dates, each key once.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from railx.settings import SettingsError

#: Numbers with a point or an exponent, as in 1e9, which YAML 1.1 takes for text.
_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?"
    r"|[0-9][0-9_]*[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)"
)


def read_yaml_mapping(path: Path, root: Path) -> dict[str, Any]:
    """The mapping in a file, which the caller must not change.

    SettingsError where there is none names the file from ``root``, and the line.
    """
    try:
        status = path.stat()
        return _read(path, root, status.st_mtime_ns, status.st_size, status.st_ino)
    except OSError as error:
        got = f"cannot be read ({error.strerror})"
        raise SettingsError(_shown(path, root), f"{got}; allowed: a YAML file") from error


@lru_cache(maxsize=4096)
def _read(path: Path, root: Path, *_: int) -> dict[str, Any]:
    import yaml

    shown = _shown(path, root)
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        got = f"no YAML: byte {error.start} is no text"
        raise SettingsError(shown, f"{got}; allowed: text in UTF-8") from error
    try:
        content = yaml.load(text, Loader=_loader())  # a safe loader
    except yaml.YAMLError as error:
        raise SettingsError(shown, f"no YAML: {_words(error)}") from error
    except (ValueError, RecursionError) as error:
        raise SettingsError(shown, f"no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) and content is not None:
        allowed = "a mapping of keys to settings"
        raise SettingsError(shown, f"got {type(content).__name__}; allowed: {allowed}")
    return {str(key): value for key, value in (content or {}).items()}


def _shown(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _words(error: Exception) -> str:
    """What is wrong and where, without the excerpt."""
    context, problem = getattr(error, "context", None), getattr(error, "problem", None)
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    said = " ".join(", ".join(filter(None, (context, problem))).split())
    said = said or " ".join(str(error).split())
    return f"line {mark.line + 1}: {said}" if mark is not None else said


@lru_cache(maxsize=1)
def _loader() -> Any:
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    # libyaml's own composer, last of the bases, overflows the stack of deep nesting.
    class Loader(yaml.composer.Composer, base):  # type: ignore[misc]
        """Plain data, with the rules of this module."""

        def __init__(self, stream: Any) -> None:
            base.__init__(self, stream)
            yaml.composer.Composer.__init__(self)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: set[str] = set()
            for key, _ in node.value:
                if key.tag == "tag:yaml.org,2002:merge":
                    continue
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} stands twice", key.start_mark
                    )
                if isinstance(key.value, str):
                    seen.add(key.value)
            return super().construct_mapping(node, deep=deep)

    unread = {"tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:float"}
    Loader.yaml_implicit_resolvers = {
        first: [one for one in resolvers if one[0] not in unread]
        for first, resolvers in base.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(rf"^(?:{_FLOAT.pattern})$"), list("-+0123456789.")
    )
    return Loader
