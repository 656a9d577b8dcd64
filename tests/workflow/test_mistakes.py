"""Every mistake is met with one clear line before anything is computed or written."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import pytest

from railx.errors import UserError
from railx.settings import AtLeast, SettingsError, load
from railx.tracking import store
from tests.builders import ROOT
from tests.commands import environment
from tests.workflow.mistakes import ALLOWED, Checker, experiment_mistakes, mistakes_of, settings_of
from workflow import config, mounts
from workflow.config import CONF, choices, compose_experiment
from workflow.experiment import overrides_from
from workflow.places import check_cores, check_folder, check_targets
from workflow.settings import RESERVED, Experiment
from workflow.stages.recorded import RECORDINGS


def test_mistakes_in_any_setting_are_refused_in_one_line() -> None:
    drawn = list(experiment_mistakes(choices("experiment")))
    assert len(drawn) > 10_000
    checker = Checker()
    said = {str(mistake): checker.unclear(mistake) for mistake in drawn}
    assert {mistake: line for mistake, line in said.items() if line} == {}


def test_some_of_them_as_overrides_name_the_same() -> None:
    """Composed from the command line, not only loaded."""
    drawn = [one for one in experiment_mistakes(["quick"]) if one.kind in ("type", "range", "null")]
    checker = Checker()
    for mistake in random.Random(2).sample(drawn, 10):
        assert checker.unclear(mistake) == ""
        with pytest.raises(SettingsError) as refused:
            compose_experiment(mistake.overrides)
        assert mistake.key in str(refused.value), mistake


def test_the_generator_finds_what_is_accepted() -> None:
    """A generator that calls everything refused would find nothing for ever."""
    wrong = next(one for one in experiment_mistakes(["quick"]) if one.key == "seed")
    right = replace(wrong, value=7)
    assert Checker().unclear(right) == "is accepted"


def test_mistakes_follow_the_type() -> None:
    drawn = set(map(repr, mistakes_of(Annotated[int, AtLeast(2)])))
    assert {repr(one) for one in (("null", None), ("range", 1), ("type", "no such word"))} <= drawn
    assert repr(("type", 7)) not in drawn
    assert ("choice", "") in list(mistakes_of(Literal["a", "b"] | None))
    assert ("null", None) not in list(mistakes_of(Literal["a", "b"] | None))
    assert ("range", [1]) in list(mistakes_of(tuple[Annotated[int, AtLeast(2)], ...]))


def test_what_is_allowed_is_a_field_of_an_experiment() -> None:
    known = {
        setting.field
        for name in choices("experiment")
        for setting in settings_of(Experiment, compose_experiment([f"experiment={name}"]))
    }
    for allowed in ALLOWED.values():
        assert {f"{cls}.{name}" for cls, own in allowed.items() for name in own} <= known


@pytest.mark.parametrize("value", [10**400, 1e19, float("nan"), float("-inf")])
def test_numbers_that_nothing_can_compute_with_are_refused(value: float) -> None:
    for hint in (int, float):
        with pytest.raises(SettingsError, match=r"^key: got .*; allowed: ") as refused:
            load(hint, value, "key")
        assert len(str(refused.value)) < 120
    assert load(int, 2.0**53, "key") == 2**53


# files

#: What can be wrong with a file, and what is said of it after its name.
BROKEN: dict[str, tuple[bytes, str]] = {
    "a tab": (b"family: torus_2d\n\tn: 2\n", "no YAML: line 2: "),
    "a key twice": (b"family: torus_2d\nn: 2\nn: 3\n", "no YAML: line 3: the key 'n' stands twice"),
    "unclosed": (b"family: [torus_2d\n", "no YAML: line 2: "),
    "binary": (b"\x89PNG\r\n\x00\xff", "no YAML: byte 0 is no text; allowed: text in UTF-8"),
    "a control character": (b"n: \x01\n", "no YAML: "),
    "a list": (b"- n\n", "got list; allowed: a mapping"),
    "a word": (b"torus\n", "got str; allowed: a mapping"),
}


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A conf/ of its own."""
    return Path(shutil.copytree(CONF, tmp_path_factory.mktemp("copied") / "conf"))


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("file", ["topology/torus_2d.yaml", "experiment/quick.yaml", "config.yaml"])
def test_a_broken_file_is_named_with_its_line(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, file: str
) -> None:
    for module in (config, mounts):
        monkeypatch.setattr(module, "CONF", copied)
    monkeypatch.setattr(config, "KEPT", tmp_path / "kept")
    content, said = BROKEN[fault]
    (copied / file).write_bytes(content)
    try:
        with pytest.raises(SettingsError) as refused:
            compose_experiment(["experiment=quick"])
    finally:
        shutil.copy(CONF / file, copied / file)
    assert str(refused.value).startswith(f"conf/{file}: {said}")
    assert "\n" not in str(refused.value)


# what a run asks of the machine


def test_a_run_on_no_core_is_refused() -> None:
    check_cores(None)
    check_cores(1)
    with pytest.raises(SettingsError, match=r"^cores: got 0; allowed: "):
        check_cores(0)


def test_results_that_cannot_be_written_are_refused(
    tmp_path: Path,
) -> None:
    check_folder(tmp_path / "results" / "quick")
    (tmp_path / "results").write_text("in the way")
    with pytest.raises(SettingsError, match=r"results: is a file; allowed: a folder"):
        check_folder(tmp_path / "results" / "quick")
    for target in ("linked", "not mounted"):  # to itself, and to nowhere
        (tmp_path / "linked").unlink(missing_ok=True)
        (tmp_path / "linked").symlink_to(target)
        with pytest.raises(SettingsError, match=rf"linked: leads to {target}, which is not there"):
            check_folder(tmp_path / "linked" / "quick")
    with pytest.raises(UserError, match=r"^results: got /proc/other; allowed: a place that can"):
        check_folder(Path("/proc/other"))


def test_a_target_that_no_stage_writes_is_refused() -> None:
    from railx.settings import to_dict

    experiment = to_dict(compose_experiment(["experiment=quick"]))
    check_targets(experiment, ["results/quick/figure/cost.svg", "all", "results/quick/report.html"])
    with pytest.raises(SettingsError, match=r"^figure: got 'costs'; allowed: .*cost"):
        check_targets(experiment, ["results/quick/figure/costs.svg"])
    said = r"^figure: got 'results/quick/figure/cost.gif'; allowed: results/quick/figure/"
    with pytest.raises(SettingsError, match=said):
        check_targets(experiment, ["results/quick/figure/cost.gif"])


def test_a_file_beside_the_results_of_no_job_is_refused() -> None:
    from railx.settings import to_dict

    experiment = to_dict(compose_experiment(["experiment=quick"]))
    there = ("provenance/figure/cost.json", "provenance/report.json", "logs/economics.log")
    check_targets(experiment, [f"results/quick/{name}" for name in there])
    for name in ("provenance/figure/costs.json", "benchmarks/figure/costs.tsv"):
        with pytest.raises(SettingsError, match=r"^figure: got 'costs'; allowed: .*cost"):
            check_targets(experiment, [f"results/quick/{name}"])


def test_a_target_of_another_run_is_refused() -> None:
    """Snakemake would name no more than the file that no rule makes."""
    from railx.settings import to_dict

    experiment = to_dict(compose_experiment(["experiment=quick", "name=mine"]))
    check_targets(experiment, ["-n", "results/mine/figure/cost.svg", "results.txt", "conf/x"])
    check_targets(experiment, ["--report", "results/quick/snakemake-report.html", "-n"])
    for other in (
        "results/quick/figure/cost.svg",
        "results/mine",
        "results/recorded/gpu",
        "results",
    ):
        said = rf"^targets: got '{other}'; allowed: files of this run, below results/mine$"
        with pytest.raises(SettingsError, match=said):
            check_targets(experiment, ["-n", other])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"hydra": "a='b"}, r"^hydra: got .*; allowed: closed quotes"),
        (
            {"experiment": "quick", "hydra": "seed=1 seed=2"},
            r"^seed: got '1' and '2'; allowed: one",
        ),
        ({"experiment": ""}, r"^experiment: got ''; allowed: "),
        ({"experiment": 7}, r"^experiment: got '7'; allowed: "),
        ({"experiment": "quick paper"}, r"^experiment: got 'quick paper'; allowed: "),
        ({"experiment": None}, r"^experiment: got "),
    ],
)
def test_a_mistake_on_snakemakes_command_line_is_named(
    given: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        compose_experiment(overrides_from(given))


@pytest.mark.parametrize(
    ("override", "line"),
    [
        (
            "topologies.torus_2d.n=3,4",
            (
                "topologies.torus_2d.n: got '3,4', several values; allowed: one value,"
                " topologies.torus_2d.n=[3,4] for a list, or `railx sweep` for a run with each"
            ),
        ),
        (
            "++seed=range(1,3)",
            (
                "seed: got 'range(1,3)', several values; allowed: one value, or `railx sweep` for a"
                " run with each"
            ),
        ),
        (
            "topologies.a b=torus_2d",
            (
                "topologies.a b: cannot be read as a key; allowed: letters, digits and underscores,"
                " dots between, e.g. topologies.torus_2d.n"
            ),
        ),
        (
            "topologies.torus_2d.n=[1",
            (
                "topologies.torus_2d.n: got '[1', no viable alternative at input '[1'; allowed: a"
                " value in Hydra's syntax"
            ),
        ),
        (
            "corpora.mine.path=a b/ü.json",
            (
                "corpora.mine.path: got 'a b/ü.json', with signs that need quotes; allowed:"
                " \"corpora.mine.path='a b/ü.json'\""
            ),
        ),
        (
            "seed=choice()",
            "seed: got 'choice()', empty choice is not legal; allowed: a value in Hydra's syntax",
        ),
    ],
)
def test_an_override_that_cannot_be_is_named(override: str, line: str) -> None:
    with pytest.raises(SettingsError) as refused:
        compose_experiment(["experiment=quick", override])
    assert str(refused.value) == line


# names


@pytest.mark.parametrize("name", RESERVED)
def test_a_name_of_another_folder_in_results_is_refused(name: str) -> None:
    said = rf"^name: got '{name}'; allowed: any name but gpu_folder, .*recorded, wandb, folders of"
    with pytest.raises(SettingsError, match=said):
        compose_experiment(["experiment=quick", f"name={name}"])


def test_the_other_folders_in_results_are_all_reserved() -> None:
    """Those that the code and the Makefile write or read there beside runs."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"results/(\w+)", makefile))
    named |= {f"{name}_dry" for name in re.findall(r"results/(\w+)\$\(if \$\(DRY\)", makefile)}
    tracking = ROOT / "railx" / "tracking"
    assert 'folder / "wandb"' in (tracking / "wandb_runs.py").read_text(encoding="utf-8")
    named |= {RECORDINGS.parts[1], "wandb", store._ARTIFACTS}
    assert named - {"EXPERIMENT"} == set(RESERVED)


# real commands

Change = Callable[[Path], None]


def _write(name: str, content: bytes) -> Change:
    def change(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    return change


def _nothing(folder: Path) -> None:
    pass


def _link_to_itself(folder: Path) -> None:
    (folder / "results").symlink_to("results")


SNAKEMAKE = ("-m", "snakemake", "--cores", "1")
QUICK = ("--config", "experiment=quick")


def run(*overrides: str, config: tuple[str, ...] = QUICK, dry: bool = True) -> tuple[str, ...]:
    hydra = (f"hydra={' '.join(overrides)}",) if overrides else ()
    return (*SNAKEMAKE, *(("-n",) if dry else ()), *config, *hydra)


def railx(*arguments: str) -> tuple[str, ...]:
    return ("-m", "workflow.cli", *arguments)


FILE = ("plan", "corpus=file", "cluster.devices=64")
#: Commands, what is done to their folder before, and what the one line begins with.
COMMANDS: list[tuple[tuple[str, ...], Change, str]] = [
    (
        run(),
        _write("conf/topology/torus_2d.yaml", b"\tn: 2\n"),
        "conf/topology/torus_2d.yaml: no Y",
    ),
    (
        run(),
        _write("conf/experiment/quick.yaml", b"a: 1\na: 2\n"),
        "conf/experiment/quick.yaml: no",
    ),
    (run(), _write("conf/config.yaml", b"\xff\xfe\x00"), "conf/config.yaml: no YAML: byte 0"),
    (run(dry=False), _write("conf/economics/full_scale.yaml", b"a: ["), "conf/economics/full_scal"),
    (run(dry=False), _write("results", b""), "results: is a file; allowed: a folder"),
    (run(), _link_to_itself, "results: leads to results, which is not there; allowed: a folder"),
    (
        railx("topology", "topology=mine"),
        _write("conf/topology/mine.yaml", b"defaults: [mine]\n"),
        "defaults: conf/topology/mine.yaml inherits itself",
    ),
    (run(config=("--config", "experiment=")), _nothing, "experiment: got ''; allowed: "),
    (run(config=("--config", "experiment=7")), _nothing, "experiment: got '7'; allowed: "),
    (run(config=("--config", "experiment=a b")), _nothing, "experiment: got 'a b'; allowed: "),
    (run("sweeps.railx_hyperx_min.loads=[1e9]"), _nothing, "sweeps.railx_hyperx_min.loads: got"),
    (run("tenancy.stream.arrivals=100000000"), _nothing, "tenancy.stream.arrivals: got 100,000,0"),
    (run("corpora.wikipedia.sequences=1e12"), _nothing, "corpora.wikipedia.sequences: got "),
    (run("topologies.railx_hyperx.m=1e12"), _nothing, "topologies.railx_hyperx.m: got "),
    (run("figures.channel_loads.only=[nope]"), _nothing, "figures.channel_loads.only: got 'nope'"),
    (run("economics.catalogue=nowhere.csv"), _nothing, "economics.catalogue: "),
    (run("economics.price_set=nope"), _nothing, "economics.price_set: got 'nope'; allowed: "),
    (run("underlay.price_set=nope"), _nothing, "underlay.price_set: got 'nope'; allowed: "),
    (run("seed=1 seed=2"), _nothing, "seed: got '1' and '2'; allowed: one of them"),
    (run("seed"), _nothing, "seed: not an override; allowed: key=value"),
    (run("a='b"), _nothing, "hydra: got "),
    (run("topologies.torus_2d.n=[1"), _nothing, "topologies.torus_2d.n: got '[1', no viable"),
    (run("mapping.jobs.dense.layout.mesh={tensor:1000000}"), _nothing, "mapping.jobs.dense"),
    (run("plans.pipeline_stdlib.planner.stages=3"), _nothing, "plans.pipeline_stdlib.planner"),
    (run("corpora.wikipedia.quantiles=nowhere.csv"), _nothing, "corpora.wikipedia.quantiles: got"),
    ((*SNAKEMAKE, "-n", "results/quick/figure/nope.svg", *QUICK), _nothing, "figure: got 'nope';"),
    (("-m", "snakemake", "--cores", "0", "-n", *QUICK), _nothing, "cores: got 0; allowed: "),
    (railx("nope"), _nothing, "COMMAND: got 'nope'; allowed: "),
    (railx(), _nothing, "COMMAND: is missing; allowed: what --help lists"),
    (railx("topology", "--nope"), _nothing, "--nope: is not known"),
    (railx("topology", "topology.m=two"), _nothing, "topology.m: got 'two'; allowed: an integer"),
    (railx("topology", "topology=torus_2d", "topology=torus_3d"), _nothing, "topology: got 'torus"),
    (railx("topology", "planner=flexsp"), _nothing, "planner: is not used here; allowed: "),
    (railx("topology", "--out", "."), _nothing, "--out: got .; allowed: a file that ends in"),
    (
        railx("topology", "--out", "f/g.parquet"),
        _write("f", b""),
        "--out: got f/g.parquet; allowed",
    ),
    (
        railx("topology", "--out", "/proc/g.parquet"),
        _nothing,
        "--out: got /proc/g.parquet; allowed",
    ),
    (railx("packets", "traffic.load=1e9"), _nothing, "traffic.load: got 1e+09; allowed: at most"),
    (
        railx("packets", "topology=railx_hyperx_full", "network.routing=adaptive"),
        _nothing,
        "topology: got railx_hyperx of ",
    ),
    (railx("tenancy", "tenancy.stream.arrivals=100000000"), _nothing, "tenancy.stream.arrivals: g"),
    (railx("economics", "economics.price_set=nope"), _nothing, "economics.price_set: got 'nope'"),
    (
        railx("economics", "economics.networks.mine=7"),
        _nothing,
        "economics.networks.mine: got 7; al",
    ),
    (railx(*FILE, "corpus.path=no.json"), _nothing, ""),
    (railx(*FILE, "corpus.path=a.json"), _write("a.json", b"[1000000000000]"), ""),
    (railx(*FILE, "corpus.path=a.json"), _write("a.json", b"[-5]"), ""),
    (railx(*FILE, "corpus.path=a.parquet"), _write("a.parquet", b"5\n6\n"), ""),
    (
        railx(*FILE, "corpus.path=a.csv"),
        _write("a.csv", b"\x00\xff\xfe"),
        "corpus.path: got a.csv: byte ",
    ),
    (
        railx("sql", "select", "--experiment", "quick", "--results", "f"),
        _write("f", b""),
        "--results",
    ),
    (railx("claim", "nope", "--experiment", "quick"), _nothing, ""),
    (railx("verdicts", "--experiment", "quick"), _nothing, ""),
    (railx("compare", "a", "b"), _nothing, ""),
]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pipeline's files, code by link: only conf/ is a test's own."""
    folder = tmp_path_factory.mktemp("checkout")
    packages = ("railx", "railx_torch", "training", "workflow")
    for part in ("Snakefile", *packages, "resources", "pyproject.toml"):
        copied = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        if part == "workflow":
            shutil.copytree(ROOT / part, folder / part)
        elif copied is shutil.copy:
            shutil.copy(ROOT / part, folder / part)
        else:
            (folder / part).symlink_to(ROOT / part)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "change", "line"),
    COMMANDS,
    ids=[f"{number}_{' '.join(one[0][1:])[:60]}" for number, one in enumerate(COMMANDS)],
)
def test_a_real_command_ends_in_one_line(
    checkout: Path, command: tuple[str, ...], change: Change, line: str
) -> None:
    for left in ("conf", "results", "f", ".snakemake"):
        path = checkout / left
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    shutil.copytree(CONF, checkout / "conf")
    change(checkout)
    before = {path for path in checkout.glob("*") if path.name not in (".cache", ".snakemake")}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=checkout,
        env=environment(checkout),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    said = [one for one in done.stderr.splitlines() if one.startswith("error: ")]
    assert done.returncode not in (0, 1, -9) or (done.returncode == 1 and "snakemake" in command)
    assert len(said) == 1, done.stderr
    assert said[0].startswith(f"error: {line}")
    assert "Traceback" not in done.stdout + done.stderr
    if "workflow.cli" in command:
        assert done.stdout == ""
        assert done.stderr.splitlines() == said
    after = {path for path in checkout.glob("*") if path.name not in (".cache", ".snakemake")}
    assert after == before


def test_there_are_forty_real_commands() -> None:
    assert len(COMMANDS) >= 40
