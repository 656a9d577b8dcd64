"""Figures that draw published numbers beside ours: what they hold against what."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from railx.figures import CanvasSettings, all_claims, draw_figure, windows
from railx.figures.comparisons import PUBLISHED_PLANS
from railx.figures.tables import read_frame
from railx.figures.windows import milliseconds
from railx.io import read_json
from railx.settings import SettingsError
from tests.builders import CONF, PUBLISHED, choice, write_result
from tests.figures.conftest import draw_words
from tests.figures.gallery import Gallery
from tests.figures.tables import claim
from workflow.config import compose_experiment
from workflow.plan_names import PlanNames

FigureFiles = dict[str, dict[str, list[Path]]]
SettingsOf = Callable[..., CanvasSettings]


@pytest.fixture(scope="session")
def data_of(gallery: Gallery) -> Callable[[str], tuple[pd.DataFrame, str]]:
    """The data behind a shipped figure, and its caption."""

    def read(name: str) -> tuple[pd.DataFrame, str]:
        path = gallery.path(name)
        words = read_json(path.with_suffix(".json"))
        return pd.read_csv(path.with_suffix(".csv")), str(words["caption"])

    return read


DataOf = Callable[[str], tuple[pd.DataFrame, str]]


def test_every_claim_is_one_dot_over_its_published_number(data_of: DataOf) -> None:
    data, caption = data_of("all_claims")
    by_claim = data.set_index("claim")
    assert len(by_claim) == len(data) == 16
    assert by_claim.loc["opus_slope", ["ratio", "ratio_low", "ratio_high"]].tolist() == [8, 7, 9]
    edges = by_claim["edge"].dropna().to_dict()
    assert edges == {
        "opus_trend": "No ratio",
        "flexsp_zero": "No ratio",
        "opus_overhead": "Un- decided",
        "opus_testbed": "Not judged",
    }
    assert "The 15 published claims" in caption
    assert "``opus_power`` 0.6" in caption
    assert "the one claim that this project derived or checks" in caption


def test_a_verdict_that_is_not_known_is_refused(settings_of: SettingsOf, tmp_path: Path) -> None:
    table = write_result(tmp_path, "evidence.claims", [claim("opus_x", 1.0, "perhaps")])
    with pytest.raises(ValueError, match="verdict: got perhaps; allowed: reproduced, consistent"):
        draw_figure(settings_of("all_claims"), {"claims": [table]}, tmp_path / "all_claims")


def test_many_claims_beyond_the_axis_stand_inside_it_with_their_range() -> None:
    rows = [
        claim(f"opus_{number}", 8.0 + number, "direction only", headline=False)
        for number in range(30)
    ]
    frame = pd.DataFrame(rows).assign(place="fig. 1", low=None, high=None)
    frame = all_claims._with_ratios(frame, 4.0)
    _, (row,) = all_claims._rows(frame)
    axes, edge = Figure().subplots(1, 2)
    all_claims._dots(axes, edge, row, 4.0)
    places = {round(float(line.get_xdata()[0]), 6) for line in axes.lines}
    assert len(axes.lines) == 30
    assert len(places) == 3
    assert max(places) == pytest.approx(4)
    assert [text.get_text() for text in axes.texts] == ["30: 8 to 37"]
    # The range has a row's height of its own above the dots.
    highest = min(float(line.get_ydata()[0]) for line in axes.lines)
    assert highest - all_claims._NAME > all_claims._ROW


@pytest.mark.parametrize(("count", "dots", "texts"), [(10, 10, []), (11, 0, ["11"])])
def test_many_claims_without_a_ratio_are_their_number(
    count: int, dots: int, texts: list[str]
) -> None:
    rows = [claim(f"opus_{number}", None, "not here", headline=False) for number in range(count)]
    frame = pd.DataFrame(rows).assign(place="fig. 1", low=None, high=None)
    _, (row,) = all_claims._rows(all_claims._with_ratios(frame, 4.0))
    axes, edge = Figure().subplots(1, 2)
    all_claims._dots(axes, edge, row, 4.0)
    assert len(edge.lines) == dots
    assert [text.get_text() for text in edge.texts] == texts
    assert row.height <= 1


def test_overheads_are_over_the_step_of_the_same_source(data_of: DataOf) -> None:
    data, caption = data_of("switching_overhead")
    own = data.set_index(["source", "panel", "mode", "reconfiguration_latency_ms"])
    perlmutter = own.loc[("perlmutter", "Llama-3 8B, 16 GPUs", "provisioned", 100.0)]
    assert perlmutter["overhead_percent"].item() == pytest.approx(
        100 * (10.614 / 10.1775 - 1), abs=0.01
    )
    simulated = own.loc[("simulation", "GB200, 512 GPUs (fig. 13)", "on_demand", 10.0)]
    assert simulated["overhead_percent"].item() == pytest.approx(100 * (2.8122 / 2.6881 - 1))
    smoke = own.loc[("simulation", "smoke run of 8 GPUs", "provisioned", 50.0)]
    assert smoke["overhead_percent"].item() == pytest.approx(100 * (62.2905 / 62.2416 - 1))
    # Ours: 12 or 6 stalls of the latency on 220 or 180 ms, and some noise.
    ours = own.loc[("ours", "Pipeline (CPU)", "on_demand", 50.0)]
    assert ours["overhead_percent"].item() == pytest.approx(100 * 300 / 192, abs=25)
    assert ours["low_percent"].item() <= ours["overhead_percent"].item()
    repeats = data[data["source"] == "repeat"]
    assert repeats.groupby("set_aside").size().to_dict() == {False: 56, True: 4}
    assert "2 to 3 repeats of 3 timed iterations" in caption
    assert "Pipeline (CPU) undecided: too few repeats" in caption
    assert "Llama-3 8B, 16 GPUs up to 100 ms" in caption
    assert "DeepSeek, DP, PP and TP at no latency" in caption


def test_windows_are_a_staircase_of_as_many_as_a_step_has() -> None:
    table = read_frame(PUBLISHED / "opus_deepseek236b_windows.csv", ("transition",))
    rows = windows._windows(table)
    steps = rows.groupby("window_ms")["count"].sum()
    assert {round(length, 2): count for length, count in steps.items()} == {
        0.0: 2,
        0.78: 64,
        1.57: 64,
        5.79: 56,
        11.58: 56,
        14.7: 8,
        29.41: 8,
    }
    assert windows._longer(rows, 10) == pytest.approx(72 / 258)


def test_switching_times_and_phases_are_read_from_words(data_of: DataOf) -> None:
    data, caption = data_of("switching_windows")
    switches = data[data["shows"] == "switch"].set_index("example_device")["switching_ms"]
    assert switches["Google Palomar"] == 1.2
    assert switches["EpiPhotonics"] == pytest.approx(1e-5)
    phases = data[data["shows"] == "phase"].groupby("job", sort=False)["operations"].apply(list)
    assert phases["Llama-3 8B, 16 GPUs"] == [3, 18, 1, 20, 1, 17]
    assert phases["DeepSeek, PP and TP"] == [84]
    assert "DeepSeek, PP and TP 0" in caption


def test_savings_of_every_published_size_come_out(data_of: DataOf) -> None:
    data, caption = data_of("rail_savings")
    keys = ["quantity", "platform", "gpus"]
    ratios = data.pivot_table(index=keys, columns="source", values="ratio")
    both = ratios.dropna()
    assert len(both) == 2 * 14
    assert both["ours"].to_numpy() == pytest.approx(both["published"].to_numpy(), abs=6e-4)
    # Ours stand at sizes that no bill is published for, too.
    assert ratios["published"].isna().any()
    assert "ours within" in caption


def test_a_plan_stands_beside_the_case_it_was_made_for(data_of: DataOf) -> None:
    data, caption = data_of("adaptive_speedups")
    speedups = data[data["quantity"] == "speedup"]
    ours = speedups[speedups["source"] == "ours"]
    assert ours[["model", "context", "corpus", "baseline", "value"]].to_numpy().tolist() == [
        ["7b", "192k", "wikipedia", "deepspeed", 1.6]
    ]
    # Two bars of the paper, where it prints no number.
    bars = speedups[speedups["source"] == "read off"].set_index(["model", "context", "corpus"])
    assert bars.loc[("7b", "192k", "github"), "value"] == pytest.approx(26.7 / 19.7)
    assert "1.6 against 1.72 over DeepSpeed" in caption


def test_bandwidth_is_calculated_back_from_predicted_times(data_of: DataOf) -> None:
    data, caption = data_of("all_to_all_degree")
    ours = data[data["source"] == "ours"].set_index("degree")["gb_s"]
    assert ours.to_dict() == pytest.approx({64: 4.87, 8: 96.5})
    assert "96.5 to 10.3 GB/s, 9.34 times less" in caption
    assert "costed exactly with the first" in caption


def test_pipelines_are_held_against_plans_of_the_same_batches(data_of: DataOf) -> None:
    data, _ = data_of("pipeline_speedups")
    ours = data[data["source"] == "ours"]
    values = ours.set_index(ours["baseline"].fillna("bubble"))["value"].to_dict()
    assert values == pytest.approx({"deepspeed": 2.0, "flexsp": 1.25, "bubble": 0.25})
    published = data[data["source"] == "published"].set_index("row")["value"]
    assert published["Most over FlexSP"] == 1.69
    assert published["Case study, 13B, with transfers between stages"] == 0.2


def test_pipelines_are_held_against_the_plans_that_are_named(
    inputs: FigureFiles, settings_of: SettingsOf, tmp_path: Path
) -> None:
    given = inputs["pipeline_speedups"]
    none = write_result(tmp_path, "plan.schedule", [], "flexsp_7b_192k_wikipedia")
    other = {"plan": "pipeline_other", "iteration": 0, "pipeline": 0, "replica": 0, "stage": 0}
    times = {"start_ms": 0.0, "end_ms": 1.0, "fidelity": "analytic"}
    more = write_result(tmp_path, "plan.schedule", [other | times], "pipeline_other")
    settings = settings_of(
        "pipeline_speedups", only=["pipeline_7b_192k_wikipedia", "flexsp_7b_192k_wikipedia"]
    )
    draw_words(settings, given | {"schedule": [*given["schedule"], none, more]}, tmp_path / "drawn")
    data = pd.read_csv(tmp_path / "drawn.csv")
    assert set(data[data["source"] == "ours"]["baseline"].dropna()) == {"flexsp"}


def test_prices_are_over_the_fat_tree_of_the_same_size(data_of: DataOf) -> None:
    data, _ = data_of("network_prices")
    own = data.set_index(["source", "size", "network"])["ratio"]
    assert own["published", 1024, "2D torus"] == pytest.approx(2.5 / 25.3)
    assert own["ours", 16384, "non-blocking fat tree"] == 1.0


def test_published_wikipedia_lengths_stand_beside_ours(data_of: DataOf) -> None:
    data, caption = data_of("corpus_lengths")
    published = data[data["kind"] == "published"].set_index("length_tokens")["share"]
    assert published[1001] == 0.216577  # longer than 1,000
    assert "Our Wikipedia lengths are within" in caption


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("all_to_all_degree", {"tables": {"x": "y"}}, r"tables: got x; allowed: 4k_seq_2_ib"),
        ("all_to_all_degree", {"model": "gpt_1b"}, r"model: got gpt_1b; allowed: one with layers"),
        ("network_prices", {"price_set": "gold"}, r"price_set: got gold; allowed: opus_400g"),
    ],
)
def test_what_is_not_published_is_named(
    name: str,
    change: dict[str, object],
    message: str,
    inputs: FigureFiles,
    settings_of: SettingsOf,
    tmp_path: Path,
) -> None:
    with pytest.raises(ValueError, match=message):
        draw_figure(settings_of(name, **change), inputs[name], tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [("10 us", 0.01), ("about 1.2 ms median, <3 ms p99", 1.2), ("2 s", 2000.0)],
)
def test_a_time_is_read_with_its_unit(text: str, expected: float) -> None:
    assert milliseconds(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["minutes", "", "10 msec"])
def test_a_text_without_a_time_has_none(text: str) -> None:
    assert pd.isna(milliseconds(text))


def test_a_published_table_keeps_words_and_numbers(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("id,value,note\na,1.5,\nb,,text\nc,2,3\n")
    frame = read_frame(table, ("id", "value"))
    assert frame["value"].tolist()[::2] == [1.5, 2.0]
    assert frame["note"].tolist() == ["", "text", "3"]
    with pytest.raises(ValueError, match=r"t.csv: column price is missing; found: id, value, note"):
        read_frame(table, ("price",))
    table.write_text("id,value\n")
    with pytest.raises(ValueError, match=r"t.csv: the table has no rows"):
        read_frame(table, ("id",))


def test_experiments_draw_only_plans_that_they_have() -> None:
    """A case of the settings that no plan stands for is passed over, not misspelt."""
    names = PlanNames(CONF)
    assert [plan for plan in PUBLISHED_PLANS if names.parts(plan) is None] == []


def test_bars_of_planners_are_compared_with_the_reference(data_of: DataOf) -> None:
    data, caption = data_of("planners")
    own = data.set_index(["corpus", "planner"])
    assert own.loc[("wikipedia", "static"), "seconds"] == pytest.approx(8.0)
    assert own.loc[("wikipedia", "static"), "of_reference"] == pytest.approx(8 / 6)
    assert own.loc[("github_like", "megatron"), "published_seconds"] == pytest.approx(28.4)
    assert own.loc[("wikipedia", "flexsp"), "published_seconds"] == pytest.approx(4.7)
    assert own["published_seconds"].isna().sum() == 2
    assert "Wikipedia: from 4 s (Groups that adapt) to 9 s (Megatron-LM" in caption
    assert "not from a machine" in caption


def test_a_reference_that_is_no_planner_is_refused(settings_of: SettingsOf) -> None:
    with pytest.raises(SettingsError, match="reference: got best; allowed: static, static_per"):
        settings_of("planners", reference="best")


def test_plans_that_an_experiment_lacks_are_named(
    settings_of: SettingsOf, inputs: FigureFiles, tmp_path: Path
) -> None:
    settings = settings_of("planners", planners={"mine": "Mine"}, reference="mine", published={})
    with pytest.raises(ValueError, match="planners: got mine; allowed: beginnings of plan names"):
        draw_figure(settings, inputs["planners"], tmp_path / "planners")


def test_parts_of_an_iteration_are_means_over_the_devices(data_of: DataOf) -> None:
    data, caption = data_of("iteration_parts")
    own = data[data["panel"] == data["panel"].iloc[0]].set_index("plan")
    parts = ["computation", "computed again", "all-to-all", "ZeRO-3", "waiting"]
    groups = own.loc["flexsp_a800_7b_48k_commoncrawl"]
    # A tenth of the time, in which half of the devices wait, is not theirs to gather.
    assert list(groups[parts]) == pytest.approx([5.1, 0.0, 3.0, 0.9, 1.0])
    pipeline = own.loc["pipeline_a800_7b_48k_commoncrawl"]
    assert list(pipeline[parts]) == pytest.approx([5.0, 2.0, 1.0, 1.0, 1.0])
    assert data["seconds"].to_numpy() == pytest.approx(10.0)
    assert data["over_first"].to_numpy() == pytest.approx(1.0)
    assert "FlexSP 10 s" in caption


def test_iterations_of_plans_that_an_experiment_lacks_are_named(
    settings_of: SettingsOf, inputs: FigureFiles, tmp_path: Path
) -> None:
    settings = settings_of("iteration_parts", panels={"All": {"mine": "Mine"}})
    with pytest.raises(ValueError, match="panels: got mine; allowed: plans of this experiment"):
        draw_figure(settings, inputs["iteration_parts"], tmp_path / "parts")


def test_every_plan_of_a_figure_of_iteration_parts_is_one_of_its_experiment() -> None:
    experiment = compose_experiment(["experiment=pipelines"])
    panels = [choice("figure", name).get("panels", {}) for name in experiment.figures]
    shown = {plan for one in panels for plans in one.values() for plan in plans}
    assert shown
    assert shown <= set(experiment.plans)
