"""``railx design`` and ``railx advise``: answers, networks, an experiment, and a line
for bad input.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from railx import places
from railx.design.settings import ArenaSettings, PointSettings
from railx.performance import topologies
from tests.workflow.test_cli import refused
from workflow import digest
from workflow.cli import main
from workflow.commands import compare_network, shared
from workflow.commands.design import design_settings
from workflow.config import compose_experiment
from workflow.overrides import parse_overrides
from workflow.stages.design import rate_store

SMALL = ("design=small", "gpus=64", "families=[torus_2d,rail_only]")


def test_the_answer_is_one_object(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("workflow.compilation.announce_compilation", said.append)
    monkeypatch.setattr("railx.effort._LONG_S", 0.1)
    assert main(["design", *SMALL, "objective=cost", "faults=2%", "--json", "--simulate"]) == 0
    printed = capsys.readouterr()
    assert said == ["design"]
    assert printed.err.startswith("design: a rough estimate is at most 0.00")
    answer = json.loads(printed.out)
    assert answer["faults"] == 0.02
    assert (answer["global_batch"], answer["tokens"]) == (512, 8192)
    costs = [row["usd"] for row in answer["front"]]
    assert costs == sorted(costs)
    assert {row["fidelity"] for row in answer["simulated"]} == {"replay"}
    for row in answer["simulated"]:
        assert row["closed_s"] / row["replayed_s"] - 1 == pytest.approx(row["difference"])
        assert (row["term"] is None) == (abs(row["difference"]) <= 0.1)


def test_the_first_line_has_the_step_that_is_priced(capsys: pytest.CaptureFixture[str]) -> None:
    """As many sequences as devices or 4 Mi tokens: few plans divide an odd number."""
    steps = "steps of 512 sequences of 8,192 tokens, "
    assert main(["design", *SMALL]) == 0
    assert steps in capsys.readouterr().out.splitlines()[0]
    assert main(["advise", *JOB]) == 0
    assert steps in capsys.readouterr().out.splitlines()[0]


def test_networks_of_conf_take_the_place_of_the_space() -> None:
    settings = design_settings(["gpus=64", "networks=[torus_2d_1296,slim_fly]", "watts=2e6"])
    assert list(settings.networks) == ["torus_2d_1296", "slim_fly"]
    assert (settings.gpus, settings.watts) == (64, 2e6)
    assert len({network.family for network in design_settings([]).networks.values()}) >= 12


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gpus"], "gpus: got no setting; allowed: KEY=VALUE"),
        (["gpus=1"], "gpus: got 1; allowed: from 2 to 10000000"),
        (["speed=3"], "speed: unknown key; allowed: "),
        (["objective=fun"], "objective: got 'fun'; allowed: step_time, cost, joules"),
        (["budget_usd=0"], "budget_usd: got 0.0; allowed: greater than 0"),
        (["faults=80%"], "faults: got 0.8; allowed: from 0 to 0.5"),
        (["include_accelerators=true"], "include_accelerators: got true; allowed: false, or"),
        (["model=ü"], "model: got 'ü', with signs that need quotes; allowed: \"model='ü'\""),
        (["gpus=2,3"], "several values; allowed: one value, gpus=[2,3] for a list"),
        (["networks=[ether]"], "networks: got 'ether'; allowed: "),
        (["networks=[torus_2d"], "networks: got '[torus_2d'; allowed: "),
        (
            ["networks=[torus_2d]", "networks=fat_tree"],
            "networks: got ['torus_2d'] and ['fat_tree']; allowed: one of them",
        ),
        (
            ["gpus=2", "networks=torus_2d"],
            "networks: got none of 1 for 2 gpus; most often: chips: got 16 for 2; allowed: ",
        ),
        (["families=[ether]"], "families: got 'ether'; allowed: "),
        ([*SMALL, "budget_usd=5"], "which buys no network for 64 gpus; allowed: "),
        ([*SMALL, "model=llama3_405b"], "llama3_405b fits no plan"),
        ([*SMALL, "--html", "."], "--html: got ., a folder; allowed: a file"),
        (
            [*SMALL, "--html", "README.md/x"],
            "; allowed: a place that can be written, unlike README",
        ),
        ([*SMALL, "--html", "/proc/x"], "; allowed: a place that can be written, unlike /proc"),
        (["--experiment", "3x"], "--experiment: got '3x'; allowed: letters, digits"),
        (["--experiment", "quick"], "--experiment: got 'quick', which "),
    ],
)
def test_bad_input_of_a_search_is_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert message in refused(capsys, "design", *words)


def test_a_search_has_the_models_of_the_catalogue_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It has no key for the file of another, as railx advise has."""
    assert " hf, " in refused(capsys, "advise", "model=hg", "devices=h100", "gpus=8")
    line = refused(capsys, "design", "model=hf")
    assert line.startswith("model: got hf; allowed: ")
    assert " hf, " not in line


def test_an_experiment_does_it_as_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from workflow import mounts

    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "config.yaml").touch()
    (tmp_path / "Snakefile").touch()
    monkeypatch.setattr(mounts, "CONF", tmp_path / "conf")
    assert main(["design", "design=small", "gpus=64", "faults=1%", "--experiment", "mine"]) == 0
    assert "run it: railx reproduce mine" in capsys.readouterr().out
    experiment = (tmp_path / "conf" / "experiment" / "mine.yaml").read_text(encoding="utf-8")
    assert experiment.endswith("defaults:\n- design\ndesign: mine\n")
    job = (tmp_path / "conf" / "design" / "mine.yaml").read_text(encoding="utf-8")
    assert job.endswith("defaults:\n- small\ngpus: 64\nfaults: 0.01\n")


def test_no_experiment_is_written_into_an_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from workflow import mounts

    monkeypatch.setattr(mounts, "CONF", tmp_path / "conf")
    monkeypatch.setattr(shared, "is_checkout", lambda: False)
    line = refused(capsys, "design", *SMALL, "--experiment", "mine")
    assert line.startswith("Snakefile: got none in ")
    assert not list(tmp_path.iterdir())


def test_a_written_experiment_composes() -> None:
    """As a file of conf/ that inherits the experiment ``design``."""
    experiment = compose_experiment(["experiment=design", "design=small", "design.gpus=64"])
    assert (experiment.design.gpus, list(experiment.figures)) == (
        64,
        ["all_claims", "design_front"],
    )


@pytest.mark.parametrize("name", ["mine.graphml", "a,b.graphml", "it's ü.graphml"])
def test_a_network_is_read_from_a_file_of_any_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.touch()
    stem, words = compare_network._named(str(path))
    assert stem == path.stem
    parsed = {one.key_or_group: one.value() for one in parse_overrides(words)}
    assert parsed == {"topology": "imported", "topology.path": str(path)}


def test_a_missing_file_of_a_network_is_refused_by_its_key(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = refused(capsys, "compare-network", "topology=imported", "topology.path=nosuch")
    assert line.startswith("topology.path: got nosuch: ")
    assert line.endswith("; allowed: a file to read")


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


def test_settings_stand_before_and_behind_options(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("gpus=6.4e1", "network.slow_gb_s=5e1")
    assert main(["advise", *JOB[:2], "--json", *words]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert main(["advise", *JOB, "network.slow_gb_s=50", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == answer
    assert answer["global_batch"] * answer["tokens"] == 2**22


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
        ([*JOB, "one=3"], "one: unknown key; allowed: model, devices, gpus, network, tokens, "),
        ([*JOB, "network.slow_gb_s=-2e1"], "network.slow_gb_s: got -20.0; allowed: greater than 0"),
        ([*JOB, "network.speed=3"], "network.speed: unknown key; allowed: node_devices"),
        ([*JOB, "network.slow_gb_s=0"], "network.slow_gb_s: got 0.0; allowed: greater than 0"),
        ([*JOB, "network=fattree"], "network: got fattree; allowed: fat_tree, "),
        ([*JOB[:2], "gpus=9999", "network=torus_3d"], "network: got torus_3d for 9999 devices"),
        ([*JOB, "precision=fp4"], "precision: got fp4 on h100_80gb; allowed: fp16, bf16, fp8"),
        ([*JOB, "plan.tensor=3"], "leaves 1 of 64 gpus over; allowed: degrees whose product"),
        ([*JOB, "plan.virtual=2"], "plan.virtual: got 2 with one stage; allowed: 1, or"),
        ([*JOB, "plan.expert=2"], "plan.expert: got 2; allowed: a divisor of the experts, 1"),
        (["model=llama3_70b", "devices=h100", "gpus=8"], "gpus: got 8; llama3_70b fits no plan"),
    ],
)
def test_bad_input_of_a_question_is_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert message in refused(capsys, "advise", *words)


def test_what_is_kept_goes_with_the_files_behind_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(places, "cache", lambda name: tmp_path / name)
    monkeypatch.setattr(digest, "code_digest", lambda *modules: "code")
    monkeypatch.setattr(digest, "module_digest", lambda module: "code")
    prices = tmp_path / "prices.csv"
    arena = ArenaSettings(point=PointSettings(catalogue=str(prices)))
    made, rates = [], []

    def rows() -> list[str]:
        made.append(prices.read_text())
        return made[-1:]

    for text in ("low", "low", "high"):
        prices.write_text(text)
        assert compare_network._kept(arena, 1)("torus", rows) == [text]
        rates.append(rate_store([prices]).code)
    assert made == ["low", "high"]
    assert rates[0] == rates[1] != rates[2]


def test_a_config_without_its_keys_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "llama", "hidden_size": 4096}', encoding="utf-8")
    words = ("model=hf", f"model.path={config}", "devices=h100", "gpus=8")
    line = refused(capsys, "advise", *words)
    assert "num_hidden_layers: got nothing; allowed: an integer above 0" in line
