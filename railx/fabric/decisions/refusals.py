"""Texts and receivers of refusals."""

from __future__ import annotations

from railx.fabric.actions import Action, RefuseAction
from railx.fabric.circuits import Configuration, Port, ports_of
from railx.fabric.decisions.state import ControllerState, TrackedOperation, name_of
from railx.fabric.holdings import OperationKey

__all__ = ["Refusals", "disagreement"]


class Refusals(ControllerState):
    """Refuses with a reason, which is counted."""

    def _refuse(self, rank: int, request: int | None, message: str, reason: str) -> RefuseAction:
        self.refusals[reason] += 1
        return RefuseAction(rank, request, message, reason)

    def _refuse_again(self, rank: int, request: int, key: OperationKey) -> RefuseAction:
        message = f"rank {rank} asked again for operation {key[1]} of {key[0]}, which has ended"
        return self._refuse(rank, request, message, "ended")

    def _misfit(self, rank: int, configuration: Configuration) -> tuple[str, str] | None:
        """Why a rank can never need this configuration, and the reason's name."""
        if rank not in configuration.members:
            message = f"rank {rank} asked for {configuration.name}, of which it is no member"
            return message, "member"
        if configuration.members[-1] >= self.ranks:
            message = f"rank {rank} asked for {configuration.name}"
            return f"{message}; allowed: ranks 0 to {self.ranks - 1}", "rank"
        return None

    def _problem(
        self, rank: int, key: OperationKey, configuration: Configuration
    ) -> tuple[str, str] | None:
        """Why a question is invalid, and the reason's name."""
        misfit = self._misfit(rank, configuration)
        if misfit is not None:
            return misfit
        needs = f"but {configuration.name} (operation {key[1]} of {key[0]}) needs it"
        for member in configuration.members if self._gone else ():
            if member in self._gone:
                return f"rank {member} {self._gone[member]}, {needs}", "lost"
        if self.recovering and rank not in self._presented:
            return f"rank {rank} has not presented what it had begun", "recovery"
        if self.lost_ports:
            for port in sorted(ports_of(self.layout.circuits(configuration))):
                if port in self.lost_ports:
                    return f"{self._lost_port(port)}, {needs}", "port"
        return None

    def _may_have_begun(self, operation: TrackedOperation) -> str:
        """The leases of members without a question: on these they begin without one."""
        names = {
            f"rank {rank} holds {leased.name}"
            for rank in set(operation.configuration.members) - operation.asked.keys()
            for leased in self._holds_of.get(rank, ())
            if leased != operation.configuration and rank in self.holds[leased].holders
        }
        if not names:
            return ""
        return f" ({'; '.join(sorted(names))}, and may have begun it there without asking)"

    def _lost_port(self, port: Port) -> str:
        what = f"the {port.side} port of GPU {port.gpu} on rail {self.layout.rail(port.gpu)}"
        return f"{what} is lost ({self.lost_ports[port]})"

    def _without_port(self, operation: TrackedOperation) -> str:
        port = next(port for port in sorted(operation.ports) if port in self.lost_ports)
        return f"{self._lost_port(port)}, but {name_of(operation)} needs it"

    def _unheard(self, rank: int, source: int) -> str:
        return f"rank {source} {self._gone[source]}, but rank {rank} receives from any source"

    def _holders(self, operation: TrackedOperation) -> str:
        used = {self.active[port] for port in operation.ports if port in self.active}
        names = {
            self._operations[key].configuration.name
            for circuit in used
            for key in self.leases.get(circuit, ())
        }
        for configuration in {
            item for circuit in used for item in self.holds_by_circuit.get(circuit, ())
        }:
            if self.layout.conflict(configuration, operation.configuration):
                ranks = ", ".join(map(str, sorted(self.holds[configuration].holders)))
                names.add(f"{configuration.name}, which rank {ranks} has not given back")
        return (
            "held by " + "; ".join(sorted(names))
            if names
            else "being switched or claimed by an earlier operation"
        )

    def _tell(
        self, operation: TrackedOperation, message: str, reason: str, *, but: int | None = None
    ) -> list[Action]:
        """Send a loss to the members of a granted operation under way, once."""
        if operation.loss_announced:
            return []
        operation.loss_announced = True
        return [
            self._refuse(rank, None, message, reason)
            for rank in sorted(operation.asked)
            if rank not in operation.released and rank not in self._gone and rank != but
        ]


def disagreement(
    key: OperationKey, rank: int, configuration: Configuration, other: int, its: Configuration
) -> str:
    return (
        f"the ranks disagree about operation {key[1]} of {key[0]}: rank {rank} asked for"
        f" {configuration.name}, rank {other} for {its.name}"
    )
