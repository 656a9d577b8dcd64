"""A plan's training step on the virtual clock: the referee of the closed form.

Layers, the output and collectives take what :mod:`railx.performance` prices them at.
The rest is not assumed but happens: every stage's layers and its order of passes,
messages between stages, shards that are gathered one layer ahead, exchanges that wait
for each other. All ranks run, joined by packet switches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from railx.errors import UserError
from railx.fabric.circuits import Layout
from railx.performance.layers import Exchange, LayerPasses, Layers, Setting
from railx.performance.plans import Plan, Plans
from railx.planning.format.schedule import stage_layers
from railx.planning.format.simulation import Shape, orders_of
from railx.replay.run import prepare, replay_programs
from railx.steps.programs import lay_over_ranks
from railx.steps.template import Template

#: Ranks of the largest plan that is replayed.
MAX_RANKS = 1024


class _Layer(NamedTuple):
    """Seconds of one layer: its passes by kind of work, and its exchanges."""

    forward: dict[str, float]
    backward: dict[str, float]
    gather: float
    scatter: float
    parameters: float


def replayed_step_s(setting: Setting, plan: Plan, replicas: int | None = None) -> float:
    """Seconds of one training step of a plan, replayed.

    ``replicas``: how many of the data-parallel ranks run, each as long as in the plan;
    None: all. They do the same at the same time, so that a few give the step of all.
    Raises :class:`UserError` for more than ``MAX_RANKS`` devices.
    """
    templates = _Stages(setting, plan).templates()
    if replicas is not None:
        plan = replace(plan, data=replicas)
    if plan.devices > MAX_RANKS:
        raise UserError(f"plan: got {plan.devices} devices; allowed: at most {MAX_RANKS}")
    ranks = np.arange(plan.devices).reshape([getattr(plan, axis) for axis in reversed(plan.order)])
    position = dict(
        zip(reversed(plan.order), np.unravel_index(ranks.ravel(), ranks.shape), strict=True)
    )
    # Axes in the order pipeline, data, context, tensor.
    grid = np.transpose(
        ranks, [plan.order[::-1].index(axis) for axis in ("pipeline", "data", "context", "tensor")]
    )

    def members_of(lane: str, rank: int) -> tuple[int, ...]:
        stage, data, context, tensor = (
            int(position[axis][rank]) for axis in ("pipeline", "data", "context", "tensor")
        )
        if lane in ("to_next", "from_next"):
            return rank, int(grid[(stage + 1) % plan.pipeline, data, context, tensor])
        if lane in ("to_before", "from_before"):
            return int(grid[stage - 1, data, context, tensor]), rank
        if lane == "tensor":
            return tuple(grid[stage, data, context].tolist())
        if lane == "context":
            return tuple(grid[stage, data, :, tensor].tolist())
        replicas = grid[stage, :, :, tensor].ravel()
        if lane == "data":
            return tuple(replicas.tolist())
        group = (data * plan.context + context) // plan.expert
        return tuple(replicas[group * plan.expert : (group + 1) * plan.expert].tolist())

    programs = lay_over_ranks(templates, position["pipeline"].tolist(), members_of)
    replayed = replay_programs(prepare(programs, Layout(1)), "electrical", 0)
    return max(replayed.iteration_ns().values()) / 1e9


class _Stages:
    """Writes the programs of a plan's stages."""

    def __init__(self, setting: Setting, plan: Plan) -> None:
        self._setting, self._plan = setting, plan
        layers = Layers(setting, Plans.of([plan]))
        kinds = [(layers.passes(kind), layers.exchange(kind)) for kind in setting.model.kinds]
        self._exchange = kinds[0][1]
        self._layers = [_seconds(*kinds[kind]) for kind in setting.model.layer_order]
        self._hop_ns = layers.hop()[0] * 1e9
        self._head_ns, self._lookup_ns = layers.head()[0] * 1e9, layers.lookup()[0] * 1e9
        self._tables, tables_s = layers.tables()
        self._tables_s, self._update = float(tables_s[0]), layers.update

    def templates(self) -> list[Template]:
        plan = self._plan
        model_stages = plan.pipeline * plan.virtual
        chunks = [
            [self._layers[layer] for layer in layers]
            for layers in stage_layers(len(self._layers), model_stages)
        ]
        shape = Shape(plan.pipeline, [1] * plan.micro_batches, plan.virtual)
        orders = orders_of(plan.schedule, shape)
        sent = [self._messages(stage, order) for stage, order in enumerate(orders)]
        return [
            self._program(stage, order, chunks[stage :: plan.pipeline], sent)
            for stage, order in enumerate(orders)
        ]

    def _pass(self, entry: int) -> tuple[bool, int, int]:
        """Whether a pass is backward, its part of the stage and its micro-batch."""
        backward, rest = divmod(entry, self._plan.micro_batches * self._plan.virtual)
        return bool(backward), *divmod(rest, self._plan.micro_batches)

    def _messages(self, stage: int, order: Sequence[int]) -> dict[tuple[bool, int, int], int]:
        """Numbers of messages on their lanes, by backward, model stage and batch."""
        numbers: dict[tuple[bool, int, int], int] = {}
        counts = {False: 0, True: 0}
        stages, last = self._plan.pipeline, self._plan.pipeline * self._plan.virtual - 1
        for entry in order:
            backward, part, batch = self._pass(entry)
            model_stage = part * stages + stage
            if model_stage != (0 if backward else last):
                numbers[backward, model_stage, batch] = counts[backward]
                counts[backward] += 1
        return numbers

    def _program(
        self,
        stage: int,
        order: Sequence[int],
        chunks: Sequence[Sequence[_Layer]],
        sent: Sequence[dict[tuple[bool, int, int], int]],
    ) -> Template:
        plan, exchange = self._plan, self._exchange
        stages, batches = plan.pipeline, plan.micro_batches
        last_stage = stages * plan.virtual - 1
        template = _Program(exchange.overlaps)
        template.begin()
        before, after = sent[stage - 1], sent[(stage + 1) % stages]
        # Receives are posted at once, so that a message waits for nobody.
        for lane, numbers in (("from_before", before), ("from_next", after)):
            backward = lane == "from_next"
            for _ in (key for key in numbers if key[0] == backward):
                template.issue(lane, "recv", self._hop_ns)
        by_pass, once = bool(exchange.by_pass[0]), bool(exchange.once[0])
        ahead = {
            part: [template.gather(layer) for layer in chunk] if once else []
            for part, chunk in enumerate(chunks)
        }
        done = {False: [0] * plan.virtual, True: [0] * plan.virtual}
        for entry in order:
            backward, part, batch = self._pass(entry)
            model_stage = part * stages + stage
            if backward and model_stage != last_stage:
                template.wait(("from_next", after[True, model_stage + 1, batch]))
            elif not backward and model_stage:
                template.wait(("from_before", before[False, model_stage - 1, batch]))
            done[backward][part] += 1
            count = done[backward][part]
            lookup_ns = self._lookup_ns * (model_stage == 0)
            head_ns = self._head_ns * (model_stage == last_stage)
            if not backward:
                template.compute(self._setting.constants.begin_s * 1e9)
            template.compute(head_ns * 2 / 3 if backward else lookup_ns / 3)
            template.layers(
                chunks[part][::-1] if backward else chunks[part],
                backward=backward,
                gathers=by_pass,
                scatters=backward and (by_pass or count == batches),
                times=2 if bool(exchange.reduced[0]) else 1,
                ahead=ahead[part] if not backward and count == 1 else [],
            )
            template.compute(lookup_ns * 2 / 3 if backward else head_ns / 3)
            if model_stage != (0 if backward else last_stage):
                lane = "to_before" if backward else "to_next"
                message = template.issue(lane, "send", self._hop_ns)
                if self._setting.program.waits_for_sends:
                    template.wait(message)
        template.settle()
        if not by_pass and not once and not exchange.reduced[0]:
            for layer in (layer for chunk in chunks for layer in chunk):
                template.exchange("all_gather", layer.gather)
        parameters = sum(layer.parameters for chunk in chunks for layer in chunk) + np.zeros(1)
        if stage in (0, stages - 1):
            template.exchange("all_gather", self._tables_s)
            parameters = parameters + self._tables
        update_s = float(self._update(parameters)[0])
        template.compute((update_s + self._setting.constants.step_s) * 1e9)
        template.end()
        return template


class _Program(Template):
    """A stage's program, with exchanges over the replicas behind computation or not."""

    def __init__(self, overlaps: bool) -> None:
        super().__init__()
        self._overlaps = overlaps
        self._scatters: list[tuple[str, int]] = []
        self._left_ns = 0.0

    def exchange(self, kind: str, seconds: float) -> None:
        """An exchange over the replicas that the program waits for."""
        if seconds > 0:
            self.wait(self.issue("data", kind, seconds * 1e9))

    def layers(
        self,
        layers: Sequence[_Layer],
        *,
        backward: bool,
        gathers: bool,
        scatters: bool,
        times: int,
        ahead: Sequence[tuple[str, int] | None],
    ) -> None:
        """One pass, shards gathered one layer ahead; ``ahead``: gathers under way."""
        under_way = list(ahead)
        for number, layer in enumerate(layers):
            # One is gathered while the one before it computes, if anything overlaps.
            until = number + 1 + self._overlaps if gathers else 0
            under_way += [self.gather(one) for one in layers[len(under_way) : until]]
            if number < len(under_way) and (operation := under_way[number]) is not None:
                self.wait(operation)
            for kind, seconds in (layer.backward if backward else layer.forward).items():
                if kind == "compute":
                    self.compute(seconds * 1e9)
                elif seconds > 0:
                    word = {"tensor": "all_reduce", "context": "all_gather"}.get(kind, "all_to_all")
                    self.wait(self.issue(kind, word, seconds * 1e9))
            if scatters and layer.scatter > 0:
                lasts_ns = layer.scatter * times * 1e9
                if self._overlaps:
                    self._scatters.append(self.issue("data", "reduce_scatter", lasts_ns))
                elif gathers:
                    self.wait(self.issue("data", "reduce_scatter", lasts_ns))
                else:
                    self._left_ns += lasts_ns

    def settle(self) -> None:
        """Exchange what is left after the last pass, and wait for what is under way."""
        if self._left_ns:
            self._scatters.append(self.issue("data", "reduce_scatter", self._left_ns))
        for operation in self._scatters:
            self.wait(operation)

    def gather(self, layer: _Layer) -> tuple[str, int] | None:
        if not layer.gather:
            return None
        return self.issue("data", "all_gather", layer.gather * 1e9)


def _seconds(passes: LayerPasses, exchange: Exchange) -> _Layer:
    """Of the single plan of a table."""
    work = {"compute": (passes.forward, passes.backward + passes.again), **passes.sent}
    forward, backward = (
        {name: float(work[name][way][0]) for name in ("context", "compute", "tensor", "expert")}
        for way in (0, 1)
    )
    exchanged = (exchange.gather, exchange.scatter, exchange.parameters)
    return _Layer(forward, backward, *(float(column[0]) for column in exchanged))
