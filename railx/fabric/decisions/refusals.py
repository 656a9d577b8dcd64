"""Texts and receivers of refusals."""

from __future__ import annotations

from railx.fabric.actions import Action, RefuseAction
from railx.fabric.circuits import Configuration, Port, ports_of
from railx.fabric.decisions.state import ControllerState, TrackedOperation, name_of
from railx.fabric.holdings import OperationKey

__all__ = [
    "announce_loss",
    "disagreement",
    "holders_of",
    "lost_port_of",
    "may_have_begun",
    "misfit_of",
    "problem_of",
    "refuse",
    "refuse_again",
    "unheard",
    "without_port",
]


def refuse(
    state: ControllerState, rank: int, request: int | None, message: str, reason: str
) -> RefuseAction:
    state.refusals[reason] += 1
    return RefuseAction(rank, request, message, reason)


def refuse_again(
    state: ControllerState, rank: int, request: int, key: OperationKey
) -> RefuseAction:
    message = f"rank {rank} asked again for operation {key[1]} of {key[0]}, which has ended"
    return refuse(state, rank, request, message, "ended")


def misfit_of(
    state: ControllerState, rank: int, configuration: Configuration
) -> tuple[str, str] | None:
    """Why a rank can never need this configuration, and the reason's name."""
    if rank not in configuration.members:
        message = f"rank {rank} asked for {configuration.name}, of which it is no member"
        return message, "member"
    if configuration.members[-1] >= state.ranks:
        message = f"rank {rank} asked for {configuration.name}"
        return f"{message}; allowed: ranks 0 to {state.ranks - 1}", "rank"
    return None


def problem_of(
    state: ControllerState, rank: int, key: OperationKey, configuration: Configuration
) -> tuple[str, str] | None:
    """Why a question is invalid, and the reason's name."""
    misfit = misfit_of(state, rank, configuration)
    if misfit is not None:
        return misfit
    needs = f"but {configuration.name} (operation {key[1]} of {key[0]}) needs it"
    for member in configuration.members if state.departed else ():
        if member in state.departed:
            return f"rank {member} {state.departed[member]}, {needs}", "lost"
    if state.recovering and rank not in state.presented:
        return f"rank {rank} has not presented what it had begun", "recovery"
    if state.lost_ports:
        for port in sorted(ports_of(state.layout.circuits(configuration))):
            if port in state.lost_ports:
                return f"{lost_port_of(state, port)}, {needs}", "port"
    return None


def may_have_begun(state: ControllerState, operation: TrackedOperation) -> str:
    """The leases of members without a question: on these they begin without one."""
    names = {
        f"rank {rank} holds {leased.name}"
        for rank in set(operation.configuration.members) - operation.asked.keys()
        for leased in state.holds_of.get(rank, ())
        if leased != operation.configuration and rank in state.holds[leased].holders
    }
    if not names:
        return ""
    return f" ({'; '.join(sorted(names))}, and may have begun it there without asking)"


def lost_port_of(state: ControllerState, port: Port) -> str:
    what = f"the {port.side} port of GPU {port.gpu} on rail {state.layout.rail(port.gpu)}"
    return f"{what} is lost ({state.lost_ports[port]})"


def without_port(state: ControllerState, operation: TrackedOperation) -> str:
    port = next(port for port in sorted(operation.ports) if port in state.lost_ports)
    return f"{lost_port_of(state, port)}, but {name_of(operation)} needs it"


def unheard(state: ControllerState, rank: int, source: int) -> str:
    return f"rank {source} {state.departed[source]}, but rank {rank} receives from any source"


def holders_of(state: ControllerState, operation: TrackedOperation) -> str:
    used = {state.active[port] for port in operation.ports if port in state.active}
    names = {
        state.operations[key].configuration.name
        for circuit in used
        for key in state.leases.get(circuit, ())
    }
    for configuration in {
        item for circuit in used for item in state.holds_by_circuit.get(circuit, ())
    }:
        if state.layout.conflict(configuration, operation.configuration):
            ranks = ", ".join(map(str, sorted(state.holds[configuration].holders)))
            names.add(f"{configuration.name}, which rank {ranks} has not given back")
    return (
        "held by " + "; ".join(sorted(names))
        if names
        else "being switched or claimed by an earlier operation"
    )


def announce_loss(
    state: ControllerState,
    operation: TrackedOperation,
    message: str,
    reason: str,
    *,
    but: int | None = None,
) -> list[Action]:
    """Send a loss to the members of a granted operation under way, once."""
    if operation.loss_announced:
        return []
    operation.loss_announced = True
    return [
        refuse(state, rank, None, message, reason)
        for rank in sorted(operation.asked)
        if rank not in operation.released and rank not in state.departed and rank != but
    ]


def disagreement(
    key: OperationKey, rank: int, configuration: Configuration, other: int, its: Configuration
) -> str:
    return (
        f"the ranks disagree about operation {key[1]} of {key[0]}: rank {rank} asked for"
        f" {configuration.name}, rank {other} for {its.name}"
    )
