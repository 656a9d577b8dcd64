"""Code digests follow the imports of a stage and nothing else."""

from importlib import metadata

import pytest

from workflow.digest import _version, code_digest, code_modules, package_versions
from workflow.stages import STAGES


def test_only_what_is_imported_counts() -> None:
    modules = code_modules("railx.families")
    assert "railx.vocabulary.hamiltonian" in modules
    assert "railx.settings" in modules
    assert not any(
        name.startswith(("railx.planning", "railx.figures", "training")) for name in modules
    )


def test_packages_on_the_way_count_because_python_runs_them() -> None:
    assert {"railx", "railx.planning", "railx.planning.format.plan"} <= set(
        code_modules("railx.planning.format.plan")
    )


def test_digest_is_stable_and_differs_between_stages() -> None:
    assert code_digest("railx.families") == code_digest("railx.families")
    assert code_digest("railx.families") != code_digest("railx.workload")


def test_an_unknown_module_is_named() -> None:
    with pytest.raises(ValueError, match=r"railx\.nothing"):
        code_digest("railx.nothing")


def test_packages_are_those_that_the_modules_import() -> None:
    assert "numba" in package_versions("workflow.stages.packets")
    assert "numba" not in package_versions("workflow.stages.corpus")
    assert "torch" in package_versions("workflow.stages.training", "training.run")
    assert package_versions("railx.settings") == {}


def test_every_package_is_found_under_the_name_it_is_installed_by() -> None:
    for name in STAGES:
        versions = package_versions(f"workflow.stages.{name}")
        assert "absent" not in versions.values(), (name, versions)


def test_a_changed_version_changes_the_stages_that_use_the_package_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def digests() -> dict[str, str]:
        for cached in (code_digest, package_versions, _version):
            cached.cache_clear()
        return {name: code_digest(f"workflow.stages.{name}") for name in STAGES}

    before, version = digests(), metadata.version
    monkeypatch.setattr(
        metadata, "version", lambda name: "99" if name == "numba" else version(name)
    )
    after = digests()
    monkeypatch.undo()
    assert digests() == before
    changed = {name for name in STAGES if before[name] != after[name]}
    assert changed == {
        *("network", "packets", "agreement", "bandwidth", "mapping", "switched", "tenancy"),
        *("underlay", "plan", "replay", "steps", "figure", "seeds", "validation"),
    }
