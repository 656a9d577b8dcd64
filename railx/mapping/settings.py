"""Settings of the mapping stage: jobs, the axes their parallelisms lie on, and the
topologies they are laid on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from railx.settings import AtLeast, Fraction, NotEmpty, Positive, SettingsError
from railx.workload.model import ModelSettings

__all__ = [
    "PARALLELISMS",
    "ChipSettings",
    "ExpertSettings",
    "JobSettings",
    "LayoutSettings",
    "MappedTopology",
    "MappingSettings",
]

#: Tensor, sequence (context), expert, data and pipeline parallelism.
PARALLELISMS = ("tensor", "sequence", "expert", "data", "pipeline")

Degrees: TypeAlias = dict[str, Annotated[int, AtLeast(1)]]


@dataclass(frozen=True)
class LayoutSettings:
    """Which parallelism lies on which axis, from the inside out: degrees by name on the
    mesh of a node, on a row and on a column.

    A job takes as many chips of a node, nodes of a row and nodes of a column as the
    products of the degrees say. A parallelism may lie on several axes; its degree is
    then the product.
    """

    mesh: Degrees
    x: Degrees
    y: Degrees

    def __post_init__(self) -> None:
        for axis in ("mesh", "x", "y"):
            for name in getattr(self, axis):
                if name not in PARALLELISMS:
                    raise SettingsError(
                        f"{axis}.{name}", f"unknown parallelism; allowed: {', '.join(PARALLELISMS)}"
                    )

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Chips of a node, nodes of a row, nodes of a column."""
        return math.prod(self.mesh.values()), math.prod(self.x.values()), math.prod(self.y.values())

    @property
    def chips(self) -> int:
        return math.prod(self.sizes)

    def degree(self, parallelism: str) -> int:
        """The product of the parallelism's degrees on all axes."""
        return math.prod(axis.get(parallelism, 1) for axis in (self.mesh, self.x, self.y))


@dataclass(frozen=True)
class ExpertSettings:
    """A mixture of experts: every feed-forward becomes ``experts`` of them, of which
    each token visits ``experts_per_token``.
    """

    experts: Annotated[int, AtLeast(2)]
    experts_per_token: Annotated[int, AtLeast(1)]

    def __post_init__(self) -> None:
        if self.experts_per_token > self.experts:
            raise SettingsError(
                "experts_per_token",
                f"got {self.experts_per_token}; allowed: at most {self.experts}, the experts",
            )


@dataclass(frozen=True)
class ChipSettings:
    """``peak_tflops``: 10^12 operations a second in the training precision;
    ``efficiency``: what matrix products reach of it.
    """

    peak_tflops: Annotated[float, Positive()]
    efficiency: Annotated[float, Fraction()]


@dataclass(frozen=True)
class JobSettings:
    """One training job: every replica takes ``micro_batches`` of ``sequence_tokens``
    tokens a step (1F1B pipeline).
    """

    model: ModelSettings
    experts: ExpertSettings | None
    layout: LayoutSettings
    sequence_tokens: Annotated[int, AtLeast(1)]
    micro_batches: Annotated[int, AtLeast(1)]
    bytes_per_element: Annotated[int, AtLeast(1)]
    gradient_bytes_per_element: Annotated[int, AtLeast(1)]
    chip: ChipSettings

    def __post_init__(self) -> None:
        layout, model = self.layout, self.model
        if model.layers % layout.degree("pipeline"):
            raise SettingsError(
                "layout",
                f"pipeline degree {layout.degree('pipeline')}; allowed: a divisor of the"
                f" {model.layers} layers",
            )
        if model.heads % layout.degree("tensor"):
            raise SettingsError(
                "layout",
                f"tensor degree {layout.degree('tensor')}; allowed: a divisor of the {model.heads}"
                " heads",
            )
        if self.sequence_tokens % (layout.degree("sequence") * layout.degree("tensor")):
            parts = layout.degree("sequence") * layout.degree("tensor")
            raise SettingsError(
                "sequence_tokens",
                f"got {self.sequence_tokens}; allowed: a multiple of {parts}, sequence x tensor",
            )
        experts = 1 if self.experts is None else self.experts.experts
        if experts % layout.degree("expert"):
            raise SettingsError(
                "layout",
                f"expert degree {layout.degree('expert')}; allowed: a divisor of the {experts}"
                " experts",
            )


@dataclass(frozen=True)
class MappedTopology:
    """A topology of the comparison; its bill is that of the topology's own settings."""

    routings: Annotated[tuple[Literal["min", "balanced", "valiant"], ...], NotEmpty()]
    """Routings on offer; each transfer takes the best."""

    priced: bool = True
    """Whether it is compared at equal cost too; families without a bill never are."""


@dataclass(frozen=True)
class MappingSettings:
    """All ``jobs`` on all ``topologies`` (names of the experiment's).

    Equal bandwidth: the ports of every topology are scaled to
    ``injection_gb_s_per_chip``. Equal cost: its ports are scaled once more, to what the
    network of ``reference`` costs per chip. Prices: those of ``price_set`` in
    ``catalogue``, in proportion to the rate of a port. Links inside a node stand in no
    bill and keep the rate that they have at equal bandwidth.
    """

    jobs: Annotated[dict[str, JobSettings], NotEmpty()]
    topologies: Annotated[dict[str, MappedTopology], NotEmpty()]
    injection_gb_s_per_chip: Annotated[float, Positive()]
    reference: Annotated[str, NotEmpty()]
    catalogue: Annotated[str, NotEmpty()]
    price_set: Annotated[str, NotEmpty()]

    def __post_init__(self) -> None:
        known = [name for name, topology in self.topologies.items() if topology.priced]
        if self.reference not in known:
            raise SettingsError(
                "reference",
                f"got {self.reference!r}; allowed: {', '.join(known)}, the priced topologies",
            )
