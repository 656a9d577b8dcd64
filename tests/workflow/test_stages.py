"""The declarations: one word for everything that a stage is, files where it says, and
the columns that it says.
"""

from __future__ import annotations

import dataclasses
import re
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from railx.io import read_rows, write_table
from railx.settings import to_dict
from tests.builders import ROOT
from tests.commands import loaded
from workflow.config import compose_experiment
from workflow.outputs import File, Json, Table, columns, typed_array
from workflow.stage import FromStage, Item, Job, Stage
from workflow.stages import (
    STAGES,
    claim_files,
    files_of,
    inputs_of,
    printed_tables,
    provenance_files,
    stage_of,
    tracked_files,
    tracked_results,
)

AT_THE_TOP = {"report", "crate", "tracking"}


@pytest.fixture(scope="module")
def experiment() -> dict[str, Any]:
    plain: dict[str, Any] = to_dict(compose_experiment(["experiment=quick"]))
    return plain


def test_module_and_folder_share_the_name_of_the_stage() -> None:
    modules = {path.stem for path in (ROOT / "workflow" / "stages").glob("*.py")} - {"__init__"}
    assert modules == set(STAGES)
    for name, stage in STAGES.items():
        assert stage.name == name
        assert stage.run.__module__ == f"workflow.stages.{name}"
        for key in stage.outputs:
            assert stage.pattern(key).startswith(f"{name}/") != (name in AT_THE_TOP)
        if stage.by_hand is not None:
            assert stage.by_hand.example.startswith(f"railx {name} ")


def _rules() -> list[tuple[str, str]]:
    """The text of every rule of a stage, with its name or the expression for it."""
    files = [ROOT / "Snakefile", *(ROOT / "workflow" / "rules").glob("*.smk")]
    rules = [
        match
        for file in files
        for match in re.finditer(r"^( *)rule ?(\w*):\n((?:\1    .*\n|\n)+)", file.read_text(), re.M)
    ]
    texts = [(match[2], re.sub(f"^{match[1]}", "", match[3], flags=re.M)) for match in rules]
    return [(name or "name", text) for name, text in texts if name != "all"]


def test_rules_have_the_same_directives_in_the_same_order() -> None:
    order = ["name", "input", "output", "params", "threads", "resources"]
    order += ["log", "benchmark", "message", "script"]
    rules = _rules()
    assert {name for name, _ in rules} == {"name", "live", "figure", "report"}
    for name, rule in rules:
        found = re.findall(r"^    (\w+):", rule, re.MULTILINE)
        assert found == [word for word in order if word in found]
        assert set(order) - set(found) <= {"name", "threads", "resources"}
        assert 'scripts/stage.py"' in rule
        helpers = "files_in|files_out|settings|code|words|log_file|benchmark_file"
        helpers += "|cluster_resources|threads_of"
        arguments = set(re.findall(rf'\b(?:{helpers})\("?(\w+)"?\)', rule))
        assert arguments == {name}
    threads = [
        re.findall(r"^    threads: (.+)", rule, re.M) for name, rule in rules if name == "name"
    ]
    assert sorted(threads) == [["WHOLE_MACHINE"], ["threads_of(name)"]]


def test_jobs_of_packets_ask_for_the_threads_of_a_run() -> None:
    shards = [f"sweeps.railx_hyperx_m4n6_min.{change}" for change in ("repeats=2", "shards=2")]
    for changes, threads in (([], 2), (["sweeps.railx_hyperx_m4n6_min.network.threads=1"], 1)):
        given = ["experiment=large_network", *shards, *changes]
        composed: dict[str, Any] = to_dict(compose_experiment(given))
        for stage, items in (("packets", 1), ("seeds", 2)):
            jobs = list(STAGES[stage].items(composed))
            assert len(jobs) == items
            needs = [STAGES[stage].needs(composed, job) for job in jobs]
            assert [need.threads_per_rank for need in needs] == [threads] * items


def test_paths_hold_the_wildcard_of_the_stage_and_no_other() -> None:
    for stage in STAGES.values():
        for key in stage.outputs:
            fields = {field for _, field, _, _ in string.Formatter().parse(stage.pattern(key))}
            assert fields - {None} == ({stage.item.wildcard} if stage.item else set())


def test_what_a_stage_reads_is_made_by_another_or_there(experiment: dict[str, Any]) -> None:
    made = {
        path
        for name, stage in STAGES.items()
        for key in stage.outputs
        for path in files_of(experiment, f"{name}.{key}").values()
    } | set(provenance_files(experiment))
    for stage in STAGES.values():
        for item in stage.items(experiment):
            for files in inputs_of(stage, experiment, item).values():
                for path in [files] if isinstance(files, Path) else files:
                    assert path in made or (ROOT / path).exists(), (stage.name, path)


def test_stages_read_the_files_behind_their_settings(experiment: dict[str, Any]) -> None:
    """Matrices, networks, quantiles and catalogues: what changes there reruns them."""
    matrix, network = {"pattern": "matrix", "path": "shares.csv"}, {"path": "wires.csv"}
    (sweep, *_) = experiment["sweeps"].values()
    sweeps = {f"in_{shards}": {**sweep, "shards": shards, "traffic": matrix} for shards in (1, 2)}
    changed = {
        **experiment,
        "traffic": matrix,
        "topologies": {"mine": network},
        "sweeps": sweeps,
        "agreement": {**experiment["agreement"], "traffics": {"own": matrix}},
        "arena": {**experiment["arena"], "networks": {"mine": network, "other": {}}},
        "design": {**experiment["design"], "networks": {"mine": network}},
        "steps": {"hosted": {"job": {"host": {"constants": "a100"}}}},
    }

    def read(stage: str, item: str = "") -> set[str]:
        inputs = inputs_of(STAGES[stage], changed, item).values()
        files = (files if isinstance(files, list) else [files] for files in inputs)
        return {path.name for group in files for path in group}

    for stage, item in (("network", "mine"), ("agreement", ""), ("seeds", "in_2-1")):
        assert "shares.csv" in read(stage, item), stage
    for item in sweeps:
        assert "shares.csv" in read("packets", item), item
    assert read("topology", "mine") == {"wires.csv"}
    assert {"wires.csv", "prices.csv", "devices.yaml", "models.yaml"} < read("arena", "mine")
    assert "wires.csv" not in read("arena", "other")
    assert {"wires.csv", "constants.yaml", "models.yaml"} < read("design")
    assert read("steps", "hosted") == {"constants.yaml"}
    assert read("corpus", "wikipedia") == {"wikipedia_length_quantiles.csv"}


def test_files_are_found_by_stage_and_output(experiment: dict[str, Any]) -> None:
    assert files_of(experiment, "network.bounds", ["torus_2d"]) == {
        "torus_2d": Path("results/quick/network/torus_2d/bounds.parquet")
    }
    assert list(files_of(experiment, "topology.graph")) == list(experiment["topologies"])
    assert files_of(experiment, "economics.bill") == {
        "": Path("results/quick/economics/bill.parquet")
    }
    assert stage_of("plan.schedule") is STAGES["plan"]
    with pytest.raises(ValueError, match=r"^network\.bound: no such output; allowed: bounds, ch"):
        stage_of("network.bound")
    with pytest.raises(ValueError, match=r"^simulate\.bounds: no such stage; allowed: topology"):
        stage_of("simulate.bounds")


def test_claims_may_read_all_but_graphs_circuits_plans_traces_and_configs(
    experiment: dict[str, Any],
) -> None:
    closed = {
        ("topology", "graph"), ("circuits", "circuits"), ("circuits", "csv"),
        ("transition", "plan"), ("transition", "csv"), ("plan", "plan"),
        ("training", "trace"), ("training", "chrome_trace"), ("training", "config"),
        ("live", "trace"),
        *(("figure", key) for key in STAGES["figure"].outputs),
        ("report", "report"), ("report", "config"), ("report", "provenance"),
        ("crate", "crate"), ("crate", "workflow"),
        ("tracking", "tracking"), ("packets", "speed"), ("seeds", "rows"),
        ("seeds", "summaries"), ("seeds", "speed"),
    }  # fmt: skip
    named = {
        (name, key)
        for name, stage in STAGES.items()
        for key, output in stage.outputs.items()
        if not output.claims
    }
    assert named == closed
    files = claim_files(experiment)
    assert len(files) == len(set(files))
    before = claim_files(experiment, before="evidence")
    assert {path.parent.name for path in set(files) - set(before)} == {"evidence"}


def test_some_stages_have_jobs_for_some_items_only(experiment: dict[str, Any]) -> None:
    assert "torus_2d" not in STAGES["circuits"].items(experiment)
    assert "railx_torus" in STAGES["circuits"].items(experiment)


def test_tracked_files_are_those_of_the_tracked_results(experiment: dict[str, Any]) -> None:
    named = {
        file
        for result in tracked_results(experiment)
        for file in (result["numbers"], *result["artifacts"], *result["inputs"])
    }
    assert list(map(str, tracked_files(experiment))) == sorted(named - {""})


def test_figures_take_the_plans_of_their_kind(experiment: dict[str, Any]) -> None:
    schedules = inputs_of(STAGES["figure"], experiment, "pipeline_schedule")["schedule"]
    assert schedules == [Path("results/quick/plan/pipeline_stdlib/schedule.parquet")]


def test_figures_take_the_plans_that_their_settings_name(experiment: dict[str, Any]) -> None:
    def groups(**settings: Any) -> list[str]:
        figures = {"one": experiment["figures"]["adaptive_speedups"] | settings}
        paths = inputs_of(STAGES["figure"], experiment | {"figures": figures}, "one")["groups"]
        assert isinstance(paths, list)
        return [path.parent.name for path in paths]

    every = groups(plans={"no_plan_here": {}})
    assert len(every) > 2
    named = [every[2], every[0]]
    # In the order of the experiment, whatever the order of the settings.
    assert groups(plans={name: {} for name in named}) == [every[0], every[2]]
    assert groups(plans={}, panels={"a": {every[1]: ""}, "b": {every[0]: ""}}) == every[:2]


def test_printed_and_tracked_come_from_the_declarations(experiment: dict[str, Any]) -> None:
    printed = {
        table["path"]: (table["title"], table["kind"]) for table in printed_tables(experiment)
    }
    assert printed["network/torus_2d/bounds.parquet"] == (
        "Uniform all-to-all on torus_2d",
        "Uniform all-to-all on each topology",
    )
    assert printed["metrics/topologies.parquet"] == ("Topologies", "")
    results = tracked_results(experiment)
    titles = [f"{result['stage']}/{result['name']}" for result in results]
    assert len(titles) == len(set(titles))
    assert {title.split("/")[0] for title in titles} == {
        "topology", "network", "packets", "agreement", "bandwidth", "mapping", "switched",
        "tenancy", "economics", "corpus", "plan", "training", "replay", "steps", "validation",
        "scaling", "arena", "design", "evidence", "figure", "report",
    }  # fmt: skip
    (run,) = (
        one for one in results if (one["stage"], one["name"]) == ("training", "flexsp_stdlib")
    )
    assert run["settings"] == experiment["runs"]["flexsp_stdlib"]
    assert run["inputs"] == [
        "results/quick/plan/flexsp_stdlib/plan.json",
        "results/quick/corpus/stdlib/sequences.parquet",
    ]


def test_a_stages_settings_hold_nothing_of_another(experiment: dict[str, Any]) -> None:
    """What a run is trained on comes in the plan's file, not in the plan's config."""
    changed = {**experiment, "plans": {}, "corpora": {}, "figures": {}}
    training, topology = STAGES["training"], STAGES["topology"]
    for run in experiment["runs"]:
        assert training.settings(changed, run) == training.settings(experiment, run)
    assert topology.settings(changed, "torus_2d") == experiment["topologies"]["torus_2d"]


def test_the_list_loads_no_science() -> None:
    heavy = {"numpy", "pyarrow", "pandas", "numba", "scipy", "torch", "hydra", "duckdb"}
    assert loaded("import workflow.stages", heavy) == set()


# A stage of two lines, declared as any other.


def grow(job: Job) -> dict[str, Any]:
    rows = [{"plant": job.item, "height": height} for height in job.settings]
    job.write_table("heights", rows)
    job.write_json("summary", {"rows": len(rows)})
    return {"rows": len(rows)}


GARDEN = Stage(
    name="garden",
    help="plants",
    message="Plant {item}",
    outputs={
        "heights": Table(columns("text plant, real height")),
        "summary": Json(),
    },
    run=grow,
    item=Item("plant", lambda experiment: experiment["plants"]),
    inputs=lambda _, plant: {"seeds": FromStage("seeds.bag", plant)},
)


def bloom(job: Job) -> dict[str, Any]:
    return {"rows": 1, "deep": {"leaves": 2}}


def test_a_json_object_without_a_declared_key_is_refused(tmp_path: Path) -> None:
    wanted = {"summary": tmp_path / "summary.json"}

    def blooming(*keys: str) -> Stage:
        outputs = {"summary": Json(keys=dict.fromkeys(keys, "int64"))}
        return dataclasses.replace(GARDEN, outputs=outputs, run=bloom)

    blooming("rows", "deep_leaves").make(item="oak", outputs=wanted)
    with pytest.raises(ValueError, match=r"lacks the declared keys stem, deep$"):
        blooming("rows", "stem", "deep").make(item="oak", outputs=wanted)


def test_a_stage_writes_what_is_wanted_under_the_declared_types(tmp_path: Path) -> None:
    path = tmp_path / "heights.parquet"
    assert GARDEN.make([1, None], item="oak", outputs={"heights": path}) == {"rows": 2}
    assert read_rows(path) == [
        {"plant": "oak", "height": 1.0},
        {"plant": "oak", "height": None},
    ]
    assert GARDEN.path("heights", "oak") == "garden/oak/heights.parquet"
    GARDEN.make([], item="oak", outputs={"heights": path})
    assert pq.read_schema(path).types == ["string", "double"]
    with pytest.raises(ValueError, match=r"^garden\.leaves: no such output; allowed: heights, su"):
        GARDEN.make([], outputs={"leaves": path})


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"plant": "oak"}, "columns differ from the declared ones: height; allowed: plant, height"),
        ({"height": 1, "plant": "oak"}, "columns differ from the declared ones: their order"),
        ({"plant": "oak", "height": "tall"}, "column height: "),
        ({"plant": "oak", "height": "3"}, "column height: "),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    tmp_path: Path, row: dict[str, Any], message: str
) -> None:
    path = tmp_path / "heights.parquet"
    job = Job(GARDEN, "oak", None, {}, {"heights": path})
    with pytest.raises(ValueError, match=re.escape(f"{path}: {message}")) as error:
        job.write_table("heights", [row])
    assert "\n" not in str(error.value)
    assert not path.exists()


def test_a_table_of_a_library_is_checked_after_the_run(tmp_path: Path) -> None:
    path = tmp_path / "heights.parquet"
    output = Table(columns("text plant"), optional=columns("integer height"))
    write_table(path, {"plant": ["oak"]})
    output.check(path)
    write_table(path, {"plant": ["oak"], "height": [3]})
    output.check(path)
    write_table(path, {"plant": ["oak"], "height": [3.5]})
    with pytest.raises(ValueError, match=r"columns differ from the declared ones: height; allowed"):
        output.check(path)


# The cheap stages of the quick experiment, made in this process, small.


@pytest.fixture(scope="module")
def small(experiment: dict[str, Any]) -> dict[str, Any]:
    tiny: dict[str, Any] = {**experiment, "topologies": {}}
    for name in ("railx_hyperx", "railx_torus", "torus_2d"):
        tiny["topologies"][name] = experiment["topologies"][name]
    tiny["plans"] = {
        name: experiment["plans"][name] for name in ("static_stdlib", "pipeline_stdlib")
    }
    tiny["corpora"] = {"stdlib": experiment["corpora"]["stdlib"]}
    tiny["figures"], tiny["runs"], tiny["sweeps"] = {}, {}, {}
    tiny["agreement"] = {**experiment["agreement"], "topologies": []}
    tiny["mapping"] = {**experiment["mapping"], "topologies": {}}
    return tiny


CHEAP = ("topology", "metrics", "circuits", "transition", "network", "economics", "corpus", "plan")


@pytest.fixture(scope="module")
def made(
    small: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "resources").symlink_to(ROOT / "resources")
        for name in CHEAP:
            stage = STAGES[name]
            for item in stage.items(small):
                stage.make(
                    stage.settings(small, item),
                    item=item,
                    inputs=inputs_of(stage, small, item),
                    outputs={
                        key: files_of(small, f"{name}.{key}", [item])[item] for key in stage.outputs
                    },
                )
        yield folder, small


def test_stages_write_every_output_where_they_say(made: tuple[Path, dict[str, Any]]) -> None:
    folder, small = made
    declared = {
        path
        for name in CHEAP
        for key in STAGES[name].outputs
        for path in files_of(small, f"{name}.{key}").values()
    }
    written = {
        path.relative_to(folder) for path in (folder / "results").rglob("*") if path.is_file()
    }
    assert written == declared


def test_tables_have_the_declared_columns(made: tuple[Path, dict[str, Any]]) -> None:
    folder, small = made
    for name in CHEAP:
        for key, output in STAGES[name].outputs.items():
            assert isinstance(output, (Table, Json, File))
            if isinstance(output, Table):
                for path in files_of(small, f"{name}.{key}").values():
                    table = pq.read_table(folder / path)
                    assert table.column_names[: len(output.declared())] == list(output.declared())
    graphs = files_of(small, "topology.graph")
    assert "ocs" in pq.read_schema(folder / graphs["railx_torus"]).names
    assert "ocs" not in pq.read_schema(folder / graphs["torus_2d"]).names


def test_values_keep_their_type_or_are_refused() -> None:
    assert typed_array([1, None], pa.int64()).to_pylist() == [1, None]
    assert typed_array([1, 2.5], pa.float64()).to_pylist() == [1.0, 2.5]
    assert typed_array([], pa.string()).type == pa.string()
    for value in (1.5, "3"):
        with pytest.raises((pa.ArrowInvalid, pa.ArrowTypeError)):
            typed_array([value], pa.int64())
