"""Texts and receivers of refusals."""

from __future__ import annotations

from railx.fabric.actions import Action, RefuseAction
from railx.fabric.circuits import Configuration, Port, ports_of
from railx.fabric.decisions.state import State, TrackedOperation, name_of
from railx.fabric.holdings import OperationKey


def refuse(core: State, rank: int, request: int | None, message: str, reason: str) -> RefuseAction:
    core.refusals[reason] += 1
    return RefuseAction(rank, request, message, reason)


def refuse_again(core: State, rank: int, request: int, key: OperationKey) -> RefuseAction:
    message = f"rank {rank} asked again for operation {key[1]} of {key[0]}, which has ended"
    return refuse(core, rank, request, message, "ended")


def misfit_of(core: State, rank: int, configuration: Configuration) -> tuple[str, str] | None:
    """Why a rank can never need this configuration, and the reason's name."""
    if rank not in configuration.members:
        message = f"rank {rank} asked for {configuration.name}, of which it is no member"
        return message, "member"
    if configuration.members[-1] >= core.ranks:
        message = f"rank {rank} asked for {configuration.name}"
        return f"{message}; allowed: ranks 0 to {core.ranks - 1}", "rank"
    return None


def problem_of(
    core: State, rank: int, key: OperationKey, configuration: Configuration
) -> tuple[str, str] | None:
    """Why a question is invalid, and the reason's name."""
    misfit = misfit_of(core, rank, configuration)
    if misfit is not None:
        return misfit
    needs = f"but {configuration.name} (operation {key[1]} of {key[0]}) needs it"
    for member in configuration.members if core.gone else ():
        if member in core.gone:
            return f"rank {member} {core.gone[member]}, {needs}", "lost"
    if core.recovering and rank not in core.presented:
        return f"rank {rank} has not presented what it had begun", "recovery"
    if core.lost_ports:
        for port in sorted(ports_of(core.layout.circuits(configuration))):
            if port in core.lost_ports:
                return f"{lost_port_text(core, port)}, {needs}", "port"
    return None


def may_have_begun(core: State, operation: TrackedOperation) -> str:
    """The leases of members without a question: on these they begin without one."""
    names = {
        f"rank {rank} holds {leased.name}"
        for rank in set(operation.configuration.members) - operation.asked.keys()
        for leased in core.holds_of.get(rank, ())
        if leased != operation.configuration and rank in core.holds[leased].holders
    }
    if not names:
        return ""
    return f" ({'; '.join(sorted(names))}, and may have begun it there without asking)"


def lost_port_text(core: State, port: Port) -> str:
    what = f"the {port.side} port of GPU {port.gpu} on rail {core.layout.rail(port.gpu)}"
    return f"{what} is lost ({core.lost_ports[port]})"


def without_port_text(core: State, operation: TrackedOperation) -> str:
    port = next(port for port in sorted(operation.ports) if port in core.lost_ports)
    return f"{lost_port_text(core, port)}, but {name_of(operation)} needs it"


def users_of(core: State, operation: TrackedOperation) -> str:
    used = {core.active[port] for port in operation.ports if port in core.active}
    names = {
        core.operations[key].configuration.name
        for circuit in used
        for key in core.leases.get(circuit, ())
    }
    for configuration in {
        item for circuit in used for item in core.holds_by_circuit.get(circuit, ())
    }:
        if core.layout.conflict(configuration, operation.configuration):
            ranks = ", ".join(map(str, sorted(core.holds[configuration].holders)))
            names.add(f"{configuration.name}, which rank {ranks} has not given back")
    return (
        "held by " + "; ".join(sorted(names))
        if names
        else "being switched or claimed by an earlier operation"
    )


def announce_loss(
    core: State, operation: TrackedOperation, message: str, reason: str, *, but: int | None = None
) -> list[Action]:
    """Send a loss to the members of a granted operation under way, once."""
    if operation.loss_announced:
        return []
    operation.loss_announced = True
    return [
        refuse(core, rank, None, message, reason)
        for rank in sorted(operation.asked)
        if rank not in operation.released and rank not in core.gone and rank != but
    ]


def disagreement(
    key: OperationKey, rank: int, configuration: Configuration, other: int, its: Configuration
) -> str:
    return (
        f"the ranks disagree about operation {key[1]} of {key[0]}: rank {rank} asked for"
        f" {configuration.name}, rank {other} for {its.name}"
    )
