"""Steps on what everything stands on: versions, the tests that need CUDA, attention."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from importlib.util import find_spec
from itertools import product
from typing import Any

from .work import CODE, Findings, Skipped, Work, environment

#: What is wanted of the machine.
_OLDEST_TORCH = 211
_MEMORY_GIB = 72
#: How far a result may be off, absolute and relative, by precision.
_ERRORS = {"bfloat16": 5e-2, "float32": 1e-4, "float64": 1e-10}


def versions(work: Work) -> Findings:
    """Whether this machine has what the list needs."""
    import torch

    found = work.findings()
    numbers = [int(part) for part in re.findall(r"\d+", torch.__version__)[:2]]
    found.check("torch_version", numbers[0] * 100 + numbers[1], "at_least", _OLDEST_TORCH)
    found.details = {"machine": platform.platform(), "cores": os.cpu_count()}
    memory_gib = None
    if not work.dry:
        properties = torch.cuda.get_device_properties(0)
        memory_gib = properties.total_memory / 2**30
        found.details["compute_capability"] = list(torch.cuda.get_device_capability())
    found.check("device_memory", memory_gib, "at_least", _MEMORY_GIB, unit="GiB")
    one = torch.ones(8, 8, dtype=torch.bfloat16, device=work.device)
    found.check("a_product_in_bfloat16", float((one @ one)[0, 0]), "equal", 8.0)
    return found


def tests(work: Work) -> Findings:
    """The tests that need CUDA (marker gpu); on the CPU they skip themselves."""
    found = work.findings()
    packages = work.folder / "packages"
    paths = [str(packages)] if packages.is_dir() else []
    if find_spec("pytest") is None and not (packages / "pytest").is_dir():
        raise Skipped("pytest is neither installed nor in the folder")
    variables = environment()
    # Behind everything else: what is installed here comes first.
    variables["PYTHONPATH"] = os.pathsep.join([variables["PYTHONPATH"], *paths])
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "tests/training/test_cuda.py", "-m", "gpu"),
            *("-q", "--noconftest", "-p", "no:cacheprovider", "-c", "tests/training/cuda.ini"),
            *("--rootdir", str(CODE)),
        ],
        cwd=CODE,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, done.stderr, sep="\n")
    counts = dict.fromkeys(("passed", "failed", "skipped", "errors"), 0)
    for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", done.stdout):
        counts[{"error": "errors"}.get(word, word)] = int(number)
    found.details = {"counts": counts, "said": done.stdout[-4000:]}
    found.check("failed_tests", counts["failed"] + counts["errors"], "equal", 0)
    found.check("exit_code_of_pytest", done.returncode, "equal", 0)
    found.check("passed_tests", None if work.dry else counts["passed"], "at_least", 1)
    found.check("collected_tests", counts["passed"] + counts["skipped"], "at_least", 1)
    return found


def attention(work: Work) -> Findings:
    """Every kernel against float64: errors forward and backward, and peak memory.

    Grouped heads, earlier context, a sequence of one token, heads of three widths.
    """
    import torch

    from training.attention import Packing, choose_kernel, variable_length_attention

    found = work.findings()
    device = torch.device(work.device)
    packing = Packing((130, 64, 1, 7), (390, 64, 1, 300))
    if work.dry:
        packing = Packing((34, 16, 1, 7), (98, 16, 1, 75))
    for head_size in (16, 64, 128):
        draw = torch.Generator().manual_seed(head_size)
        drawn = [
            torch.randn(tokens, heads, head_size, dtype=torch.float64, generator=draw).to(device)
            for tokens, heads in (
                (sum(packing.queries), 8),
                (sum(packing.keys), 4),
                (sum(packing.keys), 4),
            )
        ]
        for precision in (torch.bfloat16, torch.float32, torch.float64):
            name = str(precision).removeprefix("torch.")
            low = [tensor.to(precision).requires_grad_() for tensor in drawn]
            # Both sides begin with numbers that the kernel's precision can hold.
            exact = [tensor.detach().double().requires_grad_() for tensor in low]
            textbook = _textbook(*exact, packing)
            expected = [textbook, *torch.autograd.grad(textbook.square().sum(), exact)]
            chosen = choose_kernel("auto", device, precision, head_size)
            for kernel in dict.fromkeys((chosen, "blocks")):
                mixed = variable_length_attention(*low, packing, kernel)
                gradients = torch.autograd.grad(mixed.double().square().sum(), low)
                with torch.no_grad():
                    errors = [
                        float(((ours.double() - theirs).abs() / (1 + theirs.abs())).max())
                        for ours, theirs in zip([mixed, *gradients], expected, strict=True)
                    ]
                subject = f"{kernel} {name} head {head_size}"
                for what, error in (
                    ("forward_error", errors[0]),
                    ("backward_error", max(errors[1:])),
                ):
                    found.check(what, error, "at_most", _ERRORS[name], subject=subject)
                    found.measured(what, error, subject=subject)
            found.details.setdefault("chosen", {})[f"{name} head {head_size}"] = chosen
    _growth(work, found)
    return found


def _textbook(queries: Any, keys: Any, values: Any, packing: Any) -> Any:
    """Attention with every score in memory, to hold the kernels to."""
    import torch

    mixed, at, behind = [], 0, 0
    for asked, seen in zip(packing.queries, packing.keys, strict=True):
        query = queries[at : at + asked]
        key, value = (
            part[behind : behind + seen].repeat_interleave(queries.shape[1] // keys.shape[1], 1)
            for part in (keys, values)
        )
        scores = torch.einsum("qhd,khd->hqk", query, key) / query.shape[-1] ** 0.5
        hidden = torch.ones(asked, seen, dtype=torch.bool, device=query.device)
        scores = scores.masked_fill(hidden.triu(seen - asked + 1), float("-inf"))
        mixed.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), value))
        at, behind = at + asked, behind + seen
    return torch.cat(mixed)


def _growth(work: Work, found: Findings) -> None:
    """Twice the tokens take twice the memory and not four times, and far less than a
    number for each pair of tokens.
    """
    import torch

    from training.allocations import allocations
    from training.attention import Packing, choose_kernel, variable_length_attention

    device = torch.device(work.device)
    shortest, head_sizes = (192, (16,)) if work.dry else (8192, (64, 128))
    precisions = (torch.float32,) if work.dry else (torch.bfloat16, torch.float32)
    for precision, head_size in product(precisions, head_sizes):
        kernel = choose_kernel("auto", device, precision, head_size)
        subject = f"{kernel} {str(precision).removeprefix('torch.')} head {head_size}"
        peaks = []
        for tokens in (shortest, 2 * shortest):
            tensors = [
                torch.randn(
                    length, heads, head_size, dtype=precision, device=device
                ).requires_grad_()
                for length, heads in ((tokens, 16), (2 * tokens, 4), (2 * tokens, 4))
            ]
            packing = Packing((tokens,), (2 * tokens,))
            with allocations(device) as seen:
                variable_length_attention(*tensors, packing, kernel).sum().backward()
            peaks.append(seen.peak_bytes)
            found.measured(
                "attention_peak",
                seen.peak_bytes,
                subject=f"{subject} {tokens} tokens",
                unit="bytes",
            )
        found.check(
            "memory_of_twice_the_tokens", peaks[1] / peaks[0], "at_most", 2.5, subject=subject
        )
        pairs = (
            16 * (2 * shortest) * (4 * shortest) * torch.empty(0, dtype=precision).element_size()
        )
        # A tile counts for much where there are few tokens.
        share = None if work.dry else peaks[1] / pairs
        found.check("memory_over_all_scores", share, "at_most", 0.25, subject=subject)
