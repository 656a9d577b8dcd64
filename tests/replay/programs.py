"""Programs of a few ranks, drawn at random; none can lock up."""

from __future__ import annotations

from hypothesis import strategies as st

from railx.fabric.circuits import Configuration, Layout
from railx.replay.wiring import CircuitModel, TableWiring, Wire
from tests.replay.objects import ReplayedOperation, Step

__all__ = ["StageBits", "programs", "rails"]

TIMES = st.integers(0, 5)


class StageBits(TableWiring):
    """One bit for each stage of two ranks: its ports serve messages, or the ring."""

    def is_scale_up(self, members: object) -> bool:
        return False

    def wires(self, configuration: Configuration) -> tuple[Wire, ...]:
        stages = sorted({member // 2 for member in configuration.members})
        value = int(configuration.kind == "pair")
        return tuple(Wire(0, (stage, value), ((stage,),)) for stage in stages)


def rails() -> st.SearchStrategy[CircuitModel]:
    """Ours with one or two ranks in a server, and one bit a stage."""
    return st.sampled_from([Layout(1), Layout(2), StageBits()])


@st.composite
def programs(draw: st.DrawFn, most_operations: int = 14) -> dict[int, list[Step]]:
    """Members issue operations in one common order and wait for each at any time later.

    Some messages are waited for late or never, so that collectives overtake them.
    """
    ranks = draw(st.integers(2, 6))
    groups = draw(
        st.lists(
            st.sets(st.integers(0, ranks - 1), min_size=2).map(lambda item: tuple(sorted(item))),
            min_size=1,
            max_size=4,
            unique=True,
        )
    )
    steps: dict[int, list[Step]] = {rank: [] for rank in range(ranks)}
    numbers: dict[str, int] = {}
    for iteration in range(draw(st.integers(1, 3))):
        open_: dict[int, list[ReplayedOperation]] = {rank: [] for rank in range(ranks)}
        for rank in range(ranks):
            steps[rank].append(Step(iteration, "begin", draw(TIMES)))
        for _ in range(draw(st.integers(0, most_operations))):
            operation = _operation(draw, draw(st.sampled_from(groups)), numbers)
            for rank in operation.configuration.members:
                steps[rank].append(
                    Step(iteration, "issue", draw(TIMES), operation, pickup_ns=draw(TIMES))
                )
                open_[rank].append(operation)
                for what in draw(st.permutations(open_[rank])):
                    if draw(st.integers(0, 2)) == 0:
                        open_[rank].remove(what)
                        steps[rank].append(
                            Step(iteration, "wait", draw(TIMES), what, resume_ns=draw(TIMES))
                        )
        for rank in range(ranks):
            steps[rank].append(Step(iteration, "end", draw(TIMES)))
    return steps


def _operation(
    draw: st.DrawFn, group: tuple[int, ...], numbers: dict[str, int]
) -> ReplayedOperation:
    is_pair = len(group) == 2 and draw(st.booleans())
    sender = draw(st.sampled_from(group)) if is_pair else None
    name = f"{sender}>" if is_pair else draw(st.sampled_from(("a", "b")))
    lane = f"{','.join(map(str, group))}:{name}"
    numbers[lane] = numbers.get(lane, -1) + 1
    return ReplayedOperation(
        (lane, numbers[lane]),
        Configuration("pair" if is_pair else "ring", group),
        {member: draw(TIMES) for member in group},
        frozenset({sender} if sender is not None and draw(st.booleans()) else ()),
        kind="send" if is_pair else "all_reduce",
        sender=sender,
    )
