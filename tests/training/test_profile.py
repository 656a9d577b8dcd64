"""A real profile of a small layer, and the stage and the plan that take it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from railx.io import read_rows, write_json
from railx.performance.layer_profile import Point, ProfileSettings
from railx.performance.pipeline_cost import PipelineShape, build_pipeline_cost
from railx.performance.sequence_cost import with_profile
from railx.performance.trainer_memory import ModelShard, Pass, rank_memory
from railx.planning.format.files import read_plan
from railx.settings import SettingsError, load, to_dict
from tests.builders import checked, choice, write_corpus
from training import profile
from training.attention import Packing, variable_length_attention
from workflow.cli import main
from workflow.stages import STAGES, inputs_of

SMALL = {
    "lengths": [64, 128, 256],
    "degrees": [1, 2],
    "contexts": [0, 128],
    "device": "cpu",
    "warmups": 1,
    "repeats": 1,
    "exchange_degrees": [2],
}


def settings(**changes: Any) -> ProfileSettings:
    loaded: ProfileSettings = load(
        ProfileSettings, choice("profile", "tiny") | SMALL | changes, "profile"
    )
    return loaded


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The stage's own outputs, measured by a process of its own."""
    folder = tmp_path_factory.mktemp("profile")
    written = {name: folder / f"{name}.out" for name in STAGES["profile"].outputs}
    summary = STAGES["profile"].make(to_dict(settings()), item="small", outputs=written)
    return folder, summary


@pytest.fixture(scope="module")
def rows(made: tuple[Path, dict[str, Any]]) -> list[dict[str, Any]]:
    return read_rows(made[0] / "points.out")


def test_every_point_is_measured_on_the_device_at_hand(rows: Sequence[dict[str, Any]]) -> None:
    layers = [row for row in rows if row["part"] == "layer"]
    assert len({tuple(row[key] for key in ("degree", "context", "tokens")) for row in layers}) == 12
    assert len(layers) == 2 * 12
    assert len(rows) - len(layers) == 3 + 3
    exchanges = [row for row in rows if row["part"] == "all_to_all"]
    for row in exchanges:
        # Queries, output, keys and values of a rank's tokens, there and back.
        assert row["exchanged_bytes"] == 2 * 4 * (2 * 128 + 2 * 64) * row["tokens"] // 2
        assert min(row["forward_ms"], row["backward_ms"]) > 0
        assert (row["clock"], row["degree"]) == ("wall_time", 2)
    for row in (row for row in rows if row["part"] != "all_to_all"):
        assert row["fidelity"] == "measured_cpu"
        assert row["clock"] == "cpu_time"
        assert (row["model"], row["dtype"], row["torch"]) == ("tiny", "float32", torch.__version__)
        assert min(row["forward_ms"], row["backward_ms"]) > 0
        assert 0 < row["kept_bytes"] < row["peak_bytes"]


def test_memory_grows_with_tokens_and_is_less_with_recomputation(
    rows: Sequence[dict[str, Any]],
) -> None:
    at = {
        (row["degree"], row["context"], row["tokens"], row["checkpointed"]): row
        for row in rows
        if row["part"] == "layer"
    }
    for (degree, context, tokens, checkpointed), row in at.items():
        if tokens > 64:
            half = at[degree, context, tokens // 2, checkpointed]
            assert row["peak_bytes"] > half["peak_bytes"]
            assert row["kept_bytes"] > half["kept_bytes"]
        if checkpointed:
            assert row["kept_bytes"] < at[degree, context, tokens, False]["kept_bytes"] / 2
        # The gradients of the context's keys and values: two of 64 columns, and those
        # of the slice's own tokens in the same storage.
        share = 2 * 64 * 4 * (context + tokens) // degree if context else 0
        assert row["left_bytes"] == share


def test_the_fit_and_the_summary_are_of_what_was_measured(
    made: tuple[Path, dict[str, Any]],
) -> None:
    folder, summary = made
    fit = json.loads((folder / "fit.out").read_text())
    assert summary == {"profile": "small", **fit}
    assert fit["fidelity"] == "measured_cpu"
    assert fit["points"] == 12
    assert fit["held_out"] == 2
    assert fit["context_bytes_per_token"] == pytest.approx(2 * 64 * 4, rel=1e-6)
    assert fit["held_out_memory_error"] < 0.05
    assert fit["published_error"] == 0.06
    layers = [row for row in read_rows(folder / "points.out") if row["part"] == "layer"]
    for recomputed in (False, True):
        errors = [r["error"] for r in layers if r["held_out"] and r["checkpointed"] == recomputed]
        assert len(errors) == 2
        key = "held_out_recompute_error" if recomputed else "held_out_error"
        assert fmean(errors) == pytest.approx(fit[key])
        if not recomputed:
            assert max(errors) == pytest.approx(fit["held_out_largest_error"])
    # What a layer keeps follows from its tokens; a recomputed one keeps its input.
    assert 4 * 128 <= fit["checkpoint_bytes_per_token"] < 4 * 128 * 1.5
    assert fit["held_out_checkpoint_memory_error"] < 1e-6


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("recomputed", [0, 1, 2])
@pytest.mark.parametrize("stage", [0, 1])
def test_pipelines_plan_with_no_less_than_their_runtime_keeps(
    made: tuple[Path, dict[str, Any]], split: bool, recomputed: int, stage: int
) -> None:
    """A measured layer against what the trainer keeps of chunks that wait."""
    fit = json.loads((made[0] / "fit.out").read_text())
    planned = build_pipeline_cost(
        with_profile(checked("cost_model", "profile_tiny"), fit),
        replace(checked("cluster", "cpu_4"), tokens_per_device=None),
        settings().model,
        1024,
        PipelineShape(2, 2),
    ).activation_bytes(256, split, stage, recomputed)
    passes = [Pass(128, 2, 128 * split, recomputed, packed=not split)] * 3
    held = ModelShard(2, stage == 0, stage == 1, ranks=2)
    three, one = (
        rank_memory(settings().model, held, passes[:count], loss_chunk_tokens=64).activations_bytes
        for count in (3, 1)
    )
    kept = (three - one) / 2
    assert planned >= kept * (1 - 1e-6)
    # Beyond it the paper counts gradients of split keys and values, and the last stage
    # what was measured of embedding, head and loss.
    gradients = 2 * 2 * 64 * 4 * 128 if split else 0
    ends = fit["ends_bytes_per_token"] * 128 if stage == 1 else 0
    rotation = 2 * 16 * 4 * 128  # once a pass, and here once a layer
    assert planned - gradients - ends - rotation <= kept * 1.01


@pytest.mark.parametrize("degree", [2, 4, 8])
def test_a_rank_of_a_group_computes_its_own_heads(degree: int) -> None:
    """With the same tokens on every rank: their heads are those of one rank's queries,
    and there are as many copies of every token.
    """
    torch.manual_seed(0)
    own, heads, narrow, size, context = 6, 8, 4, 4, 5
    queries, keys, values = (torch.randn(own, count, size) for count in (heads, narrow, narrow))
    copies = max(degree // narrow, 1)
    mine = narrow * copies // degree
    earlier = tuple(torch.randn(context, mine, size) for _ in range(2))
    packing = Packing((own * degree,), (own * degree + context,))
    mixed = profile._group_attention(degree, [earlier], packing, "blocks")(1, queries, keys, values)
    share = heads // degree
    gathered = torch.cat([queries[:, rank * share : (rank + 1) * share] for rank in range(degree)])
    wide = [part.repeat_interleave(copies, dim=1) for part in (keys, values)]
    seen = [
        torch.cat([before, *(part[:, rank * mine : (rank + 1) * mine] for rank in range(degree))])
        for before, part in zip(earlier, wide, strict=True)
    ]
    expected = variable_length_attention(gathered, *seen, packing, "blocks")
    for rank in range(degree):
        torch.testing.assert_close(
            mixed[:, rank * share : (rank + 1) * share], expected[rank * own : (rank + 1) * own]
        )


def test_one_rank_computes_the_layer_of_the_model() -> None:
    """Two layers, a slice after its context."""
    small = settings(layers=2)
    decoder = profile._decoder(small, "layer", torch.device("cpu"), torch.float32)
    passes = profile._Passes(small, decoder, Point("layer", 1, 128, 64), "blocks")
    assert passes.positions.tolist() == list(range(128, 192))
    assert passes.forward().shape == (64, 128)
    assert [name for name, _ in decoder.units()] == ["layers.1", "layers.2"]


def test_a_plan_takes_the_profile_that_it_names(
    made: tuple[Path, dict[str, Any]], tmp_path: Path, experiment: dict[str, Any]
) -> None:
    inputs = inputs_of(STAGES["plan"], experiment, "flexsp_profile")
    assert inputs["profile"] == Path("results/profile/profile/tiny/fit.json")
    assert "profile" not in inputs_of(STAGES["plan"], experiment, "flexsp_stdlib")
    corpus = write_corpus(tmp_path / "corpus.parquet", list(range(16, 1000, 8)))
    chosen = experiment["plans"]["flexsp_profile"]
    STAGES["plan"].make(
        chosen,
        item="flexsp_profile",
        inputs={"corpus": corpus, "profile": made[0] / "fit.out"},
        outputs={"plan": tmp_path / "plan.json"},
    )
    fit = json.loads((made[0] / "fit.out").read_text())
    assert read_plan(tmp_path / "plan.json").settings["cost_model"]["fit"] == fit


@pytest.fixture(scope="module")
def experiment() -> dict[str, Any]:
    from workflow.experiment import checked_experiment

    return checked_experiment(["experiment=profile"])


def test_a_plan_names_a_profile_of_its_model() -> None:
    from workflow.experiment import checked_experiment

    for change, allowed in (
        ("plans.flexsp_profile.cost_model.profile=other", "allowed: tiny"),
        ("plans.flexsp_profile.model.name=another", "allowed: none here"),
    ):
        with pytest.raises(ValueError, match=rf"^plans\.flexsp_profile\.cost_model.*{allowed}"):
            checked_experiment(["experiment=profile", change])


def test_no_plan_of_quick_or_paper_is_measured() -> None:
    """Their numbers would differ from machine to machine."""
    from workflow.experiment import checked_experiment

    for name in ("quick", "paper"):
        plans = checked_experiment([f"experiment={name}"])["plans"]
        assert {plan["cost_model"]["kind"] for plan in plans.values()} <= {"analytic", "fitted"}


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model@profile.model=nothing", "error: model: got 'nothing'; allowed: "),
        ("profile.degrees=[3]", "error: profile.degrees: got 3; allowed: divisors of the heads"),
        (
            "profile.model={positions: learned, max_positions: 600}",
            "error: profile.lengths: got 1024 after a context of 512; allowed: together at most 60",
        ),
    ],
)
def test_bad_input_by_hand_is_one_line(
    override: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", override]) == 2
    error = capsys.readouterr().err
    assert error.startswith(said)
    assert error.count("\n") == 1


def test_what_cannot_be_measured_ends_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    write_json(config, to_dict(settings(attention="varlen")))
    assert profile.main(["--config", str(config), "--out", str(tmp_path / "points.json")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: profile.attention: got varlen, which cannot run here")
    assert error.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"^profile\.device: got cuda, but no CUDA device"):
        profile.measure(settings(device="cuda"))
