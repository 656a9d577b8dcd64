"""The tables that claims ask for are outputs of stages."""

from __future__ import annotations

from pathlib import Path

from railx.evidence import load_claims, open_database, table_name
from workflow.experiment import checked_experiment
from workflow.stages import claim_files, results_folder

RESOURCES = Path(__file__).resolve().parents[2] / "resources"


def test_the_full_experiment_makes_every_table_that_a_claim_names(tmp_path: Path) -> None:
    experiment = checked_experiment(["experiment=paper"])
    folder = results_folder(experiment)
    made = {
        table_name(str(file.relative_to(folder)))
        for file in claim_files(experiment, before="evidence")
    }
    with open_database(tmp_path, []) as database:
        for claim in load_claims(RESOURCES / "claims", RESOURCES / "published"):
            named = set(database.named(claim.settings.query))
            assert named, claim.id
            assert named <= made, claim.id
