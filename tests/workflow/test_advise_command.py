"""``railx advise``: its networks, and a line for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from railx import places
from railx.performance import topologies
from tests.workflow.test_cli import refused
from workflow.cli import main

JOB = ("model=llama3_8b", "devices=h100", "gpus=64")


@pytest.mark.parametrize(
    ("network", "model"),
    [
        ("fat_tree", "two-level ring, 360 GB/s in nodes of 8, 11.7 between"),
        ("opus_rails", "exact loads of opus_rails with 64 chips"),
        ("dragonfly", "exact loads of dragonfly with 64 chips"),
    ],
)
def test_the_answer_names_the_model_of_the_network(
    capsys: pytest.CaptureFixture[str], network: str, model: str
) -> None:
    assert main(["advise", *JOB, f"network={network}", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["network"] == network
    assert answer["network_model"].startswith(model)
    assert (answer["expected_error"] is None) == model.startswith("exact")


def test_the_second_answer_takes_the_rates_of_the_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(places, "cache", lambda name: tmp_path / name)
    answers = []
    for devices in ("h100", "h100", "b200", "h100"):
        words = ("model=llama3_8b", f"devices={devices}", "gpus=64", "network=torus_2d")
        assert main(["advise", *words, "--json"]) == 0
        answers.append(capsys.readouterr().out)
        if len(answers) == 3:
            # Nothing that is known by now is routed again.
            monkeypatch.setattr(topologies, "routed_loads", None)
    assert answers[0] == answers[1] == answers[3] != answers[2]
    assert len(list((tmp_path / "advice").glob("*.json"))) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gpus"], "gpus: got no setting; allowed: KEY=VALUE"),
        ([*JOB, "gpus=9"], "gpus: got two values; allowed: one"),
        ([*JOB[:2], "gpus={"], "gpus: got {; allowed: a value as in YAML"),
        ([*JOB[:2], "gpus=0"], "gpus: got 0; allowed: at least 1"),
        ([*JOB, "speed=3"], "speed: unknown key; allowed: precision, "),
        ([*JOB, "network.speed=3"], "network.speed: unknown key; allowed: node_devices"),
        ([*JOB, "network.slow_gb_s=0"], "network.slow_gb_s: got 0.0; allowed: greater than 0"),
        ([*JOB, "network=ether"], "network: got ether; allowed: rail_optimised, fat_tree"),
        ([*JOB[:2], "gpus=9999", "network=torus_3d"], "network: got torus_3d for 9999 devices"),
        ([*JOB, "precision=fp4"], "precision: got fp4 on h100_80gb; allowed: fp16, bf16, fp8"),
        ([*JOB, "plan.tensor=3"], "leaves 1 of 64 gpus over; allowed: degrees whose product"),
        ([*JOB, "plan.virtual=2"], "plan.virtual: got 2 with one stage; allowed: 1, or"),
        ([*JOB, "plan.expert=2"], "plan.expert: got 2; allowed: a divisor of the experts, 1"),
        (["model=llama3_70b", "devices=h100", "gpus=8"], "gpus: got 8; llama3_70b fits no plan"),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert message in refused(capsys, "advise", *words)


def test_a_config_without_its_keys_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "llama", "hidden_size": 4096}', encoding="utf-8")
    words = ("model=hf", f"model.path={config}", "devices=h100", "gpus=8")
    line = refused(capsys, "advise", *words)
    assert "num_hidden_layers: got nothing; allowed: an integer above 0" in line
