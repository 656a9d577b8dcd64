"""Code digests follow the imports of a stage and nothing else."""

import pytest

from workflow.digest import code_digest, code_modules


def test_only_what_is_imported_counts() -> None:
    modules = code_modules("railx.families")
    assert "railx.vocabulary.hamiltonian" in modules
    assert "railx.settings" in modules
    assert not any(
        name.startswith(("railx.planning", "railx.figures", "training")) for name in modules
    )


def test_packages_on_the_way_count_because_python_runs_them() -> None:
    assert {"railx", "railx.planning", "railx.planning.plan"} <= set(
        code_modules("railx.planning.plan")
    )


def test_digest_is_stable_and_differs_between_stages() -> None:
    assert code_digest("railx.families") == code_digest("railx.families")
    assert code_digest("railx.families") != code_digest("railx.workload")


def test_an_unknown_module_is_named() -> None:
    with pytest.raises(ValueError, match=r"railx\.nothing"):
        code_digest("railx.nothing")
