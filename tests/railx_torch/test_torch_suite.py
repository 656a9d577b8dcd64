"""A part of torch's own tests passes over railx (all of them: ``make test-torch``)."""

from __future__ import annotations

import re

import pytest
import torch

from tests.railx_torch import torch_suite

#: Of every kind of operation some, and the tests whose errors programs read.
NAMES = (
    "test_Backend_enum_class",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_all_gather_coalesced_with_empty",
    "test_all_gather_object_default_pg",
    "test_all_reduce_coalesced_max",
    "test_all_reduce_complex_unsupported_ops",
    "test_all_reduce_sum_async",
    "test_barrier_full_group",
    "test_barrier_timeout_full_group",
    "test_barrier_timeout_global",
    "test_batch_isend_irecv_gloo",
    "test_broadcast_full_group",
    "test_destroy_group",
    "test_get_backend",
    "test_get_future",
    "test_irecv",
    "test_monitored_barrier_gloo_rank_0_timeout",
    "test_monitored_barrier_gloo_subgroup",
    "test_ddp_logging_data_cpu",
    "test_reduce_sum_twice",
    "test_scatter_object_list",
    "test_send_recv_any_source",
    "test_send_recv_with_tag",
    "test_sparse_all_reduce_sum",
)


@pytest.mark.system
@pytest.mark.skipif(torch.__version__ < "2.13", reason="the names are those of the pinned torch")
@pytest.mark.parametrize("setting", ["on_demand", "provisioned"])
def test_torchs_tests_pass(setting: str) -> None:
    outcomes = torch_suite.run(setting, NAMES)
    assert outcomes.keys() == set(NAMES)
    failed = {name: outcome for name, outcome in outcomes.items() if outcome["outcome"] != "passed"}
    assert not failed, failed


def test_the_page_says_that_all_of_gloos_tests_pass() -> None:
    page = torch_suite.PAGE.read_text()
    listed = re.split(r"[,\s]+", page.partition("```text\n")[2].partition("\n```")[0])
    assert {name.removeprefix("test_") for name in NAMES} <= set(listed)
    assert "| failed | 0 | 0 | 0 |\n" in page
    assert f"| passed{f' | {len(listed)}' * 3} |\n" in page


def test_a_lost_test_is_noticed() -> None:
    def outcome(word: str, reason: str = "") -> dict[str, object]:
        return {"outcome": word, "reason": reason, "seconds": 0.1}

    gloo = {"a": outcome("passed"), "b": outcome("failed"), "c": outcome("passed")}
    railx = {"a": outcome("failed", "why"), "b": outcome("failed"), "c": outcome("passed")}
    assert torch_suite.worse(railx, gloo) == {"a": "why"}
    page = torch_suite.page({"gloo": gloo, "on_demand": railx, "provisioned": gloo}, "2.13.0")
    assert "| failed | 1 | 2 | 1 |" in page
    assert "| a | passed | failed | passed |" in page
    assert "```text\nc\n```" in page
