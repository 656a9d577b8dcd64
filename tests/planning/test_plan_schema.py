"""resources/schemas/plan.schema.json describes the plans that the planners write, and
refuses what they never write.
"""

import json
from typing import Any

import jsonschema
import pytest

from railx.settings import to_dict
from tests.builders import ROOT
from workflow.config import compose_experiment
from workflow.stages import corpus, plan

SCHEMA = json.loads((ROOT / "resources" / "schemas" / "plan.schema.json").read_text())


@pytest.fixture(scope="module", params=["static_stdlib", "flexsp_stdlib", "pipeline_stdlib"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    experiment = compose_experiment(["experiment=quick"])
    folder = tmp_path_factory.mktemp("plan")
    sequences = folder / "sequences.parquet"
    corpus.STAGE.make(
        {"corpus": to_dict(experiment.corpora["stdlib"]), "seed": 1},
        item="stdlib",
        outputs={"sequences": sequences},
    )
    plan.STAGE.make(
        to_dict(experiment.plans[request.param]),
        item=request.param,
        inputs={"corpus": sequences},
        outputs={"plan": folder / "plan.json"},
    )
    return json.loads((folder / "plan.json").read_text())


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_plans_fit_the_schema(written: Any) -> None:
    assert list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(written)) == []


@pytest.mark.parametrize(
    "change",
    [{"schema": "railx.plan/1"}, {"devices": 0}, {"batches": []}, {"extra": 1}, {"kind": "tensor"}],
)
def test_what_is_no_plan_does_not_fit(written: Any, change: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**written, **change}, SCHEMA, cls=jsonschema.Draft202012Validator)


def test_batches_of_the_other_kind_do_not_fit(written: Any) -> None:
    other = "pipeline" if written["kind"] == "sequence_parallel" else "sequence_parallel"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**written, "kind": other}, SCHEMA, cls=jsonschema.Draft202012Validator)
