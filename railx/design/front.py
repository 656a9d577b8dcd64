"""The search over networks and plans: the front, what was dropped, what would flip."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from railx.design.point import DesignPoint, evaluate
from railx.design.rates import RateStore
from railx.design.settings import DesignSettings, Objective
from railx.economics import read_catalogue
from railx.errors import UserError
from railx.progress import counted
from railx.settings import to_dict

#: Settings that the answer repeats.
_ASKED = ("gpus", "model", "devices", "objective", "budget_usd", "watts", "faults")


class Dropped(NamedTuple):
    """A network that is not on the front, and why."""

    network: str
    reason: str


class Crossing(NamedTuple):
    """The price of a component at which another network takes the first place.

    ``usd`` is its price now, ``crossing_usd`` the nearest price that changes the first
    place, ``network`` who takes it then.
    """

    component: str
    usd: float
    crossing_usd: float
    network: str


class Flip(NamedTuple):
    """The first place after one price has changed by a factor."""

    component: str
    factor: float
    first: str


@dataclass(frozen=True)
class Design:
    """The answer: points in the order of the objective, the front first.

    ``evaluated`` are all points, ``points`` those that keep the limits, ``front`` those
    that no other point beats in step time, dollars, watts and usable share at once.
    ``network_first``: the point that is chosen where the network is chosen by dollars a
    GB/s of all-to-all first, and how much longer its step takes than the first's.
    """

    settings: DesignSettings
    evaluated: tuple[DesignPoint, ...]
    points: tuple[DesignPoint, ...]
    front: tuple[DesignPoint, ...]
    dropped: tuple[Dropped, ...]
    crossings: tuple[Crossing, ...]
    flips: tuple[Flip, ...]
    network_first: DesignPoint

    @property
    def loss(self) -> float:
        """Relative loss in the objective of choosing the network first."""
        best, first = (
            score(point, self.settings.objective) for point in (self.front[0], self.network_first)
        )
        return first / best - 1

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            **{name: getattr(self.settings, name) for name in _ASKED},
            "global_batch": self.settings.batch,
            "tokens": self.settings.tokens,
            "fidelity": "analytic",
            "front": [
                {"rank": rank, **point.row(), "settings": to_dict(point.network)}
                for rank, point in enumerate(self.front, 1)
            ],
            "off_the_front": [point.row() for point in self.points if point not in self.front],
            "dropped": [drop._asdict() for drop in self.dropped],
            "crossings": [crossing._asdict() for crossing in self.crossings],
            "flips": [flip._asdict() for flip in self.flips],
            "network_first": {"network": self.network_first.name, "loss": self.loss},
        }


def design(settings: DesignSettings, store: RateStore | None = None) -> Design:
    """Search networks and plans.

    Raises :class:`railx.errors.UserError`, one line with the nearest that works, where
    a price of the first set is zero, no network can be evaluated, or none keeps the
    budget.
    """
    settings.check_names()
    catalogue = read_catalogue(settings.catalogue)
    for component, price in catalogue.components(settings.price_set).items():
        if price.unit_usd <= 0:
            raise UserError(
                f"price_set: got {settings.price_set!r}, where a {component} costs"
                f" {price.unit_usd:g} USD; allowed: prices above 0 ({settings.catalogue})"
            )
    points: list[DesignPoint] = []
    dropped: list[Dropped] = []
    errors: list[UserError] = []
    for name, network in counted(list(settings.searched.items()), "networks"):
        try:
            point = evaluate(
                name,
                network,
                settings,
                most_chips=settings.most_chips,
                store=store,
                catalogue=catalogue,
            )
        except UserError as error:
            errors.append(error)
            dropped.append(Dropped(name, str(error)))
            continue
        same = next((other for other in points if other.network == point.network), None)
        if same is None:
            points.append(point)
        else:
            dropped.append(Dropped(name, f"is {same.name} at this size"))
    if not points:
        raise _nothing(settings, errors)
    return decided(settings, points, dropped)


def decided(
    settings: DesignSettings, points: Sequence[DesignPoint], dropped: Sequence[Dropped] = ()
) -> Design:
    """The design of evaluated points under the limits and objective of ``settings``."""
    over = {point.name: _over(point, settings) for point in points}
    allowed = [point for point in points if not over[point.name]]
    if not allowed:
        raise _no_budget(points, settings)
    ordered = sorted(allowed, key=lambda point: score(point, settings.objective))
    front = front_of(ordered)
    fed = sorted(_fed(points, settings), key=lambda point: score(point, settings.objective))
    reasons = [(name, reason) for name, reason in over.items() if reason]
    for point in ordered:
        if point not in front:
            best = next(other for other in front if dominates(other, point))
            why = f"{best.name} is no worse in step time, dollars, watts and usable share"
            reasons.append((point.name, why))
    return Design(
        settings,
        tuple(points),
        tuple(ordered),
        tuple(front),
        (*dropped, *(Dropped(*reason) for reason in reasons)),
        tuple(crossings(fed, settings.objective, settings.budget_usd)),
        tuple(flips(points, settings)),
        min(allowed, key=lambda point: point.cost.usd / point.all_to_all_gb_s),
    )


def score(point: DesignPoint, objective: Objective) -> float:
    """What an objective makes small: seconds, dollars or joules of a step.

    Points whose joules are not known come last.
    """
    if objective == "cost":
        return point.usd
    if objective == "joules":
        return math.inf if point.joules is None else point.joules
    return point.step_s


def _values(point: DesignPoint) -> tuple[float, ...]:
    """What a point is compared in, each the smaller the better."""
    watts = math.inf if point.watts is None else point.watts
    return point.step_s, point.usd, watts, -point.usable.share


def dominates(first: DesignPoint, second: DesignPoint) -> bool:
    """Whether a point is at least as good in everything and better in something."""
    ours, theirs = _values(first), _values(second)
    return ours != theirs and all(a <= b for a, b in zip(ours, theirs, strict=True))


def front_of(points: Sequence[DesignPoint]) -> list[DesignPoint]:
    """The points that no other dominates, in order."""
    return [point for point in points if not any(dominates(other, point) for other in points)]


def _fed(points: Sequence[DesignPoint], settings: DesignSettings) -> list[DesignPoint]:
    """The points within the limit of watts."""
    most = settings.watts
    return [point for point in points if most is None or (point.watts or math.inf) <= most]


def _over(point: DesignPoint, settings: DesignSettings) -> str:
    """Why a point exceeds the limits; empty where it keeps them."""
    if settings.budget_usd is not None and point.usd > settings.budget_usd:
        return f"{point.usd / 1e6:.2f} M USD, over the budget"
    if settings.watts is not None and point.watts is None:
        return "its watts have no source"
    if settings.watts is not None and (point.watts or 0) > settings.watts:
        return f"{(point.watts or 0) / 1e3:.1f} kW, over the limit"
    return ""


def _nothing(settings: DesignSettings, errors: Sequence[UserError]) -> UserError:
    """The error where no network can be evaluated: that of all if it is of a setting of
    the search, else that of most of them.
    """
    lines = [str(error) for error in errors]
    common = max(lines, key=lines.count)
    if lines.count(common) == len(lines) and hasattr(settings, common.partition(":")[0]):
        return UserError(common)
    return UserError(
        f"networks: got none of {len(lines)} for {settings.gpus} gpus; most often: {common}"
    )


def _no_budget(points: Sequence[DesignPoint], settings: DesignSettings) -> UserError:
    """The error where every point is over a limit: the cheapest, or the least watts."""
    limit = settings.budget_usd
    cheapest = min(points, key=lambda point: point.usd)
    if limit is not None and cheapest.usd > limit:
        return UserError(
            f"budget_usd: got {limit:g}, which buys no network for {settings.gpus} gpus; allowed:"
            f" {math.ceil(cheapest.usd)} or more; the nearest is {cheapest.name}"
        )
    rated = [point for point in points if point.watts is not None]
    if settings.watts is not None and rated:
        coolest = min(rated, key=lambda point: point.watts or 0)
        if (coolest.watts or 0) > settings.watts:
            return UserError(
                f"watts: got {settings.watts:g}, which feeds no network for {settings.gpus} gpus;"
                f" allowed: {math.ceil(coolest.watts or 0)} or more; the nearest is {coolest.name}"
            )
    return UserError(
        f"budget_usd, watts: got {limit} and {settings.watts}, which no network keeps together;"
        f" allowed: one of them alone, or more; the nearest is {cheapest.name} of"
        f" {math.ceil(cheapest.usd)} USD and {cheapest.watts or 0:.0f} W"
    )


def _usd_at(point: DesignPoint, component: str, usd: float) -> float:
    """Dollars of a point with one price changed."""
    change = usd - point.cost.prices.get(component, usd)
    return point.usd + change * point.cost.components.get(component, 0)


def _prices(points: Sequence[DesignPoint]) -> dict[str, float]:
    """The price of every component that any point has."""
    return {name: usd for point in points for name, usd in point.cost.prices.items()}


def crossings(
    points: Sequence[DesignPoint], objective: Objective, budget_usd: float | None
) -> list[Crossing]:
    """For each component, the nearest price at which the first place changes.

    ``points`` are in the order of the objective, those over the budget among them.
    Dollars are linear in each price. By dollars two lines cross; by step time or joules
    the first place changes where the first point leaves the budget, or where a better
    one comes into it. Components whose price never changes it have no row.
    """
    rows = []
    first = next(p for p in points if budget_usd is None or p.usd <= budget_usd)
    for component, usd in sorted(_prices(points).items()):
        candidates: list[tuple[float, str]] = []
        for other in points:
            count = other.cost.components.get(component, 0)
            if objective == "cost":
                slope = first.cost.components.get(component, 0) - count
                at = usd + (other.usd - first.usd) / slope if slope else -1.0
                candidates.append((at, other.name))
            elif budget_usd is not None and count:
                at = usd + (budget_usd - other.usd) / count
                if other is first:
                    rest = (p for p in points if p is not first)
                    fits = (p.name for p in rest if _usd_at(p, component, at) <= budget_usd)
                    candidates.append((at, next(fits, "none")))
                elif score(other, objective) < score(first, objective):
                    candidates.append((at, other.name))
        candidates = [row for row in candidates if row[0] >= 0]
        if candidates:
            at, name = min(candidates, key=lambda row: abs(row[0] - usd))
            rows.append(Crossing(component, usd, at, name))
    return rows


def flips(points: Sequence[DesignPoint], settings: DesignSettings) -> list[Flip]:
    """The first place after each price has changed, those that change it alone."""
    change = settings.price_change

    def first(usd_of: Callable[[DesignPoint], float]) -> str:
        rows = [
            point
            for point in _fed(points, settings)
            if settings.budget_usd is None or usd_of(point) <= settings.budget_usd
        ]
        if not rows:
            return "none"
        if settings.objective == "cost":
            return min(rows, key=usd_of).name
        return min(rows, key=lambda point: score(point, settings.objective)).name

    now = first(lambda point: point.usd)
    rows = []
    for component, usd in sorted(_prices(points).items()):
        for factor in (1 - change, 1 + change):
            changed = first(lambda p, c=component, u=usd * factor: _usd_at(p, c, u))  # type: ignore[misc]
            if changed != now:
                rows.append(Flip(component, factor, changed))
    return rows
