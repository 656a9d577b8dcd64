"""Programs and their fitted constants: how a framework runs a layer on a device."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Annotated, Literal

from railx.performance.resources import catalogue, entry
from railx.settings import AtLeast, NonNegative, NotEmpty, Positive


@dataclass(frozen=True)
class Program:
    """What a framework does, as far as its code says; none of it is fitted.

    Traffic is in bytes of memory read and written, by tokens and widths, forward; a
    backward pass moves ``backward_traffic`` times as much.
    """

    name: Annotated[str, NotEmpty()]
    """Name of the framework."""
    fused_attention: bool
    """Whether scores stay on the chip; otherwise they are written and read."""
    hidden_traffic: Annotated[float, NonNegative()]
    """Bytes for each value of the residual stream: norms, dropout, residuals."""
    wide_traffic: Annotated[float, NonNegative()]
    """Bytes for each activation of the feed-forward part."""
    score_traffic: Annotated[float, NonNegative()] = 0.0
    """Bytes for each score that is not fused: mask, softmax, dropout, both products."""
    logit_traffic: Annotated[float, NonNegative()] = 30.0
    """Bytes for each value of the output over the vocabulary, forward and backward."""
    backward_traffic: Annotated[float, Positive()] = 1.5
    """Traffic of a backward pass over that of a forward pass."""
    parameter_bytes: Annotated[float, Positive()] = 2.0
    """Bytes of a parameter that the model computes with and gathers."""
    gradient_bytes: Annotated[float, Positive()] = 4.0
    """Bytes of a gradient that is stored and reduced."""
    optimizer_bytes: Annotated[float, Positive()] = 12.0
    """Bytes of the optimizer's state of a parameter, its exact copy included."""
    update_traffic: Annotated[float, NonNegative()] = 30.0
    """Bytes for each parameter that an update of the optimizer reads and writes."""
    selective: Literal["scores", "products"] = "scores"
    """What selective recomputation computes again: attention's scores, or also every
    second product and all that is no product."""
    dropout: bool = False
    """Whether masks of dropout are stored."""
    logit_bytes: Annotated[float, NonNegative()] = 16.0
    """Bytes stored for each value of the output at the loss: 16 bits, exact, its
    logarithm, and the gradients of both."""
    overlaps_data: bool = False
    """Whether gradients and shards travel behind computation."""
    gathers_once: bool = False
    """Whether stages of a pipeline keep gathered shards until the step's end."""
    scatters_messages: bool = False
    """Whether tensor ranks send a share of a message each and gather it again."""
    waits_for_sends: bool = False
    """Whether a stage waits for each message to its neighbours."""
    source: str = ""
    """Where this can be read."""


@dataclass(frozen=True)
class Constants:
    """Fitted numbers of one device and program."""

    name: Annotated[str, NotEmpty()]
    """Name that ``--constants`` takes."""
    device: Annotated[str, NotEmpty()]
    """The device, an entry of ``devices.yaml``."""
    program: Annotated[str, NotEmpty()]
    """The program, an entry of ``programs.yaml``."""
    matmul_share: Annotated[float, Positive()]
    """Share of the peak that a large matrix product reaches."""
    matmul_tile: Annotated[float, NonNegative()]
    """Length that a product loses at each end: 2 m n k (1 + tile (1/m + 1/n + 1/k))."""
    memory_share: Annotated[float, Positive()]
    """Share of the memory's bandwidth that is reached."""
    attention_share: Annotated[float, Positive()]
    """Share of the peak that the products of attention reach."""
    forward_host_s: Annotated[float, NonNegative()]
    """Host time of a layer's forward pass: no pass of a layer is shorter."""
    backward_host_s: Annotated[float, NonNegative()]
    """Host time of a layer's backward pass."""
    collective_host_s: Annotated[float, NonNegative()]
    """Host time of a collective of tensor ranks, for each doubling of the group."""
    step_s: Annotated[float, NonNegative()]
    """Time of a step that depends on nothing: data, optimizer, Python."""
    forward_kernels_s: Annotated[float, NonNegative()] = 0.0
    """Time in which the kernels of a layer's forward pass start and drain, whatever
    their size; the backward pass has twice as many."""
    begin_s: Annotated[float, NonNegative()] = 0.0
    """Time of a stage before the forward pass of a micro-batch: its tokens go to the
    tensor ranks, and the host waits for the device to read their sizes back."""
    fast_share: Annotated[float, Positive()] = 0.8
    """Share of the fast domain's bandwidth that collectives reach."""
    slow_share: Annotated[float, Positive()] = 0.8
    """Share of the bandwidth between nodes that collectives reach."""
    tensor_overlap: Annotated[float, NonNegative()] = 0.5
    """Share of the tensor ranks' collectives behind products where a plan overlaps them
    (asynchronous tensor parallelism)."""
    gains: dict[str, Annotated[float, Positive()]] = field(default_factory=dict)
    """Share of the precision's peak relative to ``matmul_share``, by recipe."""
    errors: dict[str, Annotated[float, NonNegative()]] = field(default_factory=dict)
    """Mean absolute relative errors on rows left out of fits: of one_node, of
    several_nodes, of tensor_across_nodes, of all."""
    largest_run_devices: Annotated[int, AtLeast(0)] = 0
    """Devices of the largest run behind ``errors``; 0: of none."""
    fitted: tuple[str, ...] = ()
    """Which of these numbers were fitted; the others are shared or assumed."""
    rows: str = ""
    """The rows that they were fitted on."""
    digest: str = ""
    """SHA-256 of these rows."""


#: The numbers that a fit may change.
FITTED = tuple(
    f.name
    for f in fields(Constants)
    if f.name not in {"name", "device", "program", "gains", "errors"}
    and f.name not in {"largest_run_devices", "fitted", "rows", "digest"}
)


def constants_named(name: str) -> Constants:
    """The constants of ``resources/performance/constants.yaml`` with this name."""
    return entry("constants", name, "constants.yaml", Constants)


def program_named(name: str) -> Program:
    """The program of ``resources/performance/programs.yaml`` with this name."""
    return entry("program", name, "programs.yaml", Program)


def default_constants(device: str, program: str) -> Constants:
    """The constants of a program and device; where there are none, those of the program
    on another device, of the device, or of torchtitan on an H100.
    """
    entries: list[Constants] = list(catalogue("constants.yaml", Constants).values())

    def closeness(constants: Constants) -> tuple[bool, bool, bool]:
        usual = constants.name == "torchtitan_h100"
        return constants.program == program, constants.device == device, usual

    return max(entries, key=closeness)
