"""``railx advise``: the best plan for a model on a cluster, and why."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from railx.errors import UserError
from workflow.commands.shared import add_flag, command

__all__ = ["add"]

_EPILOG = """\
examples:
  railx advise model=llama3_70b devices=h100 gpus=1000
  railx advise model=llama3_8b devices=h200 gpus=64 tokens=32768 global_batch=128 --json
  railx advise model=llama3_70b devices=h100 gpus=512 plan.tensor=8 plan.pipeline=4 --explain
  railx advise model=hf model.path=config.json devices=b200 gpus=256 --megatron

keys: model, devices, gpus, network, tokens, global_batch, precision, program, constants,
memory_share, model.path, network.node_devices, network.slow_gb_s, and a plan to price
beside the best: plan.tensor, plan.context, plan.pipeline, plan.expert, plan.virtual,
plan.micro_batch, plan.recompute, plan.sharding. Times are of the model in docs/performance.md."""
#: Keys of the command line that are fields of another name.
_KEYS = {"model.path": "model_path"}


def add(commands: Any) -> None:
    """Add ``railx advise`` to the commands."""
    line = "the best plan for a model on a number of devices, and why"
    parser = command(commands, "advise", line, f"{line.capitalize()}.", _EPILOG)
    parser.add_argument("settings", nargs="+", metavar="KEY=VALUE", help="what is asked")
    shown = parser.add_mutually_exclusive_group()
    add_flag(shown, "--json", "print one JSON object")
    add_flag(shown, "--explain", "compare the best plan with the one that is given")
    add_flag(shown, "--megatron", "print the best plan as options of Megatron-LM")
    add_flag(shown, "--torchtitan", "print the best plan as TOML for torchtitan")
    parser.set_defaults(action=_advise)


def _advise(options: argparse.Namespace) -> int:
    from railx.performance.advice import AdviceSettings, advise
    from railx.performance.exports import megatron_options, torchtitan_toml
    from railx.settings import load

    settings: AdviceSettings = load(AdviceSettings, _values(options.settings))
    if options.explain and settings.plan is None:
        raise UserError("--explain: got no plan; allowed: with plan.tensor=... or others")
    advice = advise(settings)
    if options.json:
        print(json.dumps(advice.as_dict(), indent=2))
    elif options.megatron:
        print(megatron_options(advice.setting.model, advice.plan))
    elif options.torchtitan:
        print(torchtitan_toml(advice.setting.model, advice.plan), end="")
    elif options.explain:
        _print_comparison(advice)
    else:
        _print(advice)
    return 0


def _values(words: list[str]) -> dict[str, Any]:
    """KEY=VALUE words as nested settings; numbers as YAML reads them."""
    import yaml

    values: dict[str, Any] = {}
    for word in words:
        key, separator, text = word.partition("=")
        if not separator or not key:
            raise UserError(f"{word}: got no setting; allowed: KEY=VALUE, e.g. gpus=1000")
        value = yaml.safe_load(text) if text else None
        key = _KEYS.get(key, key)
        group, dot, field = key.partition(".")
        if dot and group in ("plan", "network"):
            values.setdefault("on" if group == "network" else group, {})[field] = value
        else:
            values[key] = value
    return values


def _print(advice: Any) -> None:
    answer = advice.as_dict()
    print(
        f"{answer['model']} ({answer['parameters'] / 1e9:.1f} B) on {answer['gpus']}"
        f" {answer['devices']}, network {answer['network']}, constants {answer['constants']}"
    )
    for number, row in enumerate(answer["plans"], 1):
        print(f"\n{number}. {_degrees(row)}")
        print("   " + _numbers(row))
        if number == 1:
            print("   time: " + _shares(row["time_s"], "s"))
            print("   memory: " + _shares(row["memory_gb"], "GB"))
    print("\nwhy: " + "; ".join(answer["reasons"]))
    for name, row in answer["baselines"].items():
        print(f"{name.replace('_', ' ')}: {_degrees(row)}; {_numbers(row)}")
    if answer["given"]:
        print(f"given plan: {_degrees(answer['given'])}; {_numbers(answer['given'])}")
    if answer["expected_error"] is not None:
        print(
            f"expected error of these times: {answer['expected_error']:.0%}, the mean on measured"
            " runs left out of the fit (railx validate)"
        )


def _print_comparison(advice: Any) -> None:
    best, given = advice.best[0], advice.given
    print(f"best:  {_degrees(best)}\n       {_numbers(best)}")
    print(f"given: {_degrees(given)}\n       {_numbers(given)}\n")
    for title, key, unit in (("time", "time_s", "s"), ("memory", "memory_gb", "GB")):
        print(f"{title:<12}{'best':>10}{'given':>10}{'difference':>12}  {unit}")
        for name in best[key]:
            ours, theirs = best[key][name], given[key][name]
            if ours or theirs:
                print(f"{name:<12}{ours:>10.3f}{theirs:>10.3f}{theirs - ours:>+12.3f}")
        print()
    print("why: " + "; ".join(advice.reasons))


def _degrees(row: Mapping[str, Any]) -> str:
    words = [
        f"{name} {row[name]}"
        for name in ("data", "tensor", "context", "pipeline", "expert", "virtual")
        if row[name] > 1
    ]
    words.append(f"{row['micro_batches']} micro-batches of {row['micro_batch']}")
    words.append(f"sharding {row['sharding']}, recompute {row['recompute']}")
    return ", ".join(words)


def _numbers(row: Mapping[str, Any]) -> str:
    idle = f", {row['idle_gpus']} of the gpus idle" if row["idle_gpus"] else ""
    slower = f", {row['slower']:+.1%}" if row["slower"] else ""
    fits = "" if row["fits"] else " (does not fit)"
    joule = (
        f", {row['tokens_per_joule']:.2f} tokens/J at rated power"
        if row["tokens_per_joule"]
        else ""
    )
    return (
        f"step {row['step_s']:.3f} s{slower}, {row['tokens_per_s']:,.0f} tokens/s, MFU"
        f" {row['mfu']:.1%}, {row['memory_total_gb']:.1f} GB{fits}{joule}{idle}"
    )


def _shares(parts: Mapping[str, float], unit: str) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in parts.items() if value) + f" {unit}"
