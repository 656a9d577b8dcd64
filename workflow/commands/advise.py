"""``railx advise``: the best plan for a model on a cluster, and why."""

from __future__ import annotations

import argparse
import gc
import re
from typing import Any

from railx.errors import UserError, allowed_names
from railx.places import CODE, SHIPPED, WORK, in_repository
from workflow.commands.shared import add_flag, command, print_json, topologies_like

_EPILOG = """\
examples:
  railx advise model=llama3_70b devices=h100 gpus=1000
  railx advise model=llama3_8b devices=h200 gpus=64 tokens=32768 global_batch=128 --json
  railx advise model=llama3_70b devices=h100 gpus=512 plan.tensor=8 plan.pipeline=4 --explain
  railx advise model=hf model.path=config.json devices=b200 gpus=256 --megatron
  railx advise model=llama3_70b devices=h100 gpus=256 network=railx_hyperx

keys: model (`railx list models`, or hf), devices (`railx list devices`), gpus, network,
tokens, global_batch, precision, program, constants, memory_share, model.path,
network.node_devices, network.slow_gb_s, and a plan to price beside the best: plan.tensor,
plan.context, plan.pipeline, plan.expert, plan.virtual, plan.micro_batch, plan.recompute,
plan.sharding. network is rail_optimised or fat_tree, priced by rings, or a choice of
conf/topology (`railx list topologies`), priced by exact loads. Times are of the model in
docs/performance.md."""
#: New objects after which the collector looks for circles; the usual 700 cost a fifth.
_OBJECTS = 1_000_000
#: Keys of the command line that are fields of another name.
_KEYS = {"model.path": "model_path"}
#: A number with an exponent, which YAML takes for a word or a fraction.
_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")


def add(commands: Any) -> None:
    line = "the best plan for a model on a number of devices, and why"
    parser = command(commands, "advise", line, f"{line.capitalize()}.", _EPILOG)
    parser.add_argument("settings", nargs="+", metavar="KEY=VALUE", help="what is asked")
    shown = parser.add_mutually_exclusive_group()
    add_flag(shown, "--json", "print one JSON object")
    add_flag(shown, "--explain", "compare the best plan with the one that is given")
    add_flag(shown, "--megatron", "print the best plan as options of Megatron-LM")
    add_flag(shown, "--torchtitan", "print the best plan as TOML for torchtitan")
    parser.set_defaults(action=_advise)


def _advise(options: argparse.Namespace) -> None:
    # Routing tables are made of many small tuples, and nothing of them is in a circle.
    gc.set_threshold(_OBJECTS)
    from railx.file_cache import read_cached, write_cached
    from railx.performance.advice import AdviceSettings, advice_lines, advise, comparison_lines
    from railx.performance.exports import megatron_options, torchtitan_toml
    from railx.places import cache
    from railx.settings import SettingsError, load

    values = _values(options.settings)
    fields = AdviceSettings.__dataclass_fields__
    if unknown := [key for key in values if key not in fields]:
        names = [re.sub("^(model_path|on)$", "model.path", name) for name in fields]
        raise UserError(f"{unknown[0]}: unknown key; allowed: {allowed_names(unknown[0], names)}")
    try:
        settings: AdviceSettings = load(AdviceSettings, values)
    except SettingsError as error:
        raise SettingsError(re.sub(r"^on\.", "network.", error.key), error.message) from None
    if options.explain and settings.plan is None:
        raise UserError("--explain: got no plan; allowed: with plan.tensor=... or others")
    topologies = _topologies(settings.network)
    if topologies:
        folder, name = cache("advice"), _rates_name(settings, topologies)
        stored = read_cached(folder, name) or {}
        rates = dict(stored)
        advice = advise(settings, topologies, rates)
        if rates != stored:
            write_cached(folder, name, rates)
    else:
        advice = advise(settings)
    model, plan, precision = advice.setting.model, advice.plan, settings.precision
    if options.json:
        print_json(advice.as_dict())
    elif options.megatron:
        print(megatron_options(model, plan, precision=precision))
    elif options.torchtitan:
        print(torchtitan_toml(model, plan, precision), end="")
    elif options.explain:
        print("\n".join(comparison_lines(advice)))
    else:
        print("\n".join(advice_lines(advice)))


def _topologies(network: str) -> list[Any]:
    """The settings of a topology and of its family's other sizes; none for rings."""
    from railx.performance.advice import RING_NETWORKS
    from workflow.choices import choices

    if network in RING_NETWORKS:
        return []
    names = choices(WORK / "conf", "topology")
    if network not in names:
        allowed = allowed_names(network, (*RING_NETWORKS, *names))
        raise UserError(f"network: got {network}; allowed: {allowed}")
    return topologies_like(network)


def _rates_name(settings: Any, topologies: list[Any]) -> str:
    from workflow.cache_keys import cache_key

    asked = settings.devices, settings.gpus, settings.constants, settings.program, settings.on
    rooms = [CODE / "railx" / room for room in ("families", "network", "performance", "vocabulary")]
    sources = [path for room in rooms for path in room.rglob("*.py")]
    sources += (SHIPPED / "resources" / "performance").glob("*.yaml")
    # An imported network is a file.
    sources += [in_repository(x.path) for x in topologies if hasattr(x, "path")]
    return cache_key([repr(topologies), repr(asked)], sources)


def _values(words: list[str]) -> dict[str, Any]:
    """KEY=VALUE words as nested settings; numbers as YAML reads them."""
    import yaml

    values: dict[str, Any] = {}
    given: set[str] = set()
    for word in words:
        key, separator, text = word.partition("=")
        if not separator or not key:
            raise UserError(f"{word}: got no setting; allowed: KEY=VALUE, e.g. gpus=1000")
        if key in given:
            raise UserError(f"{key}: got two values; allowed: one")
        given.add(key)
        try:
            value = yaml.safe_load(text) if text else None
        except yaml.YAMLError:
            raise UserError(f"{key}: got {text}; allowed: a value as in YAML") from None
        if _EXPONENT.fullmatch(text):
            value = float(text)
            value = int(value) if value.is_integer() else value
        key = _KEYS.get(key, key)
        group, dot, field = key.partition(".")
        if dot and group in ("plan", "network"):
            values.setdefault("on" if group == "network" else group, {})[field] = value
        else:
            values[key] = value
    return values
