"""Settings of the fabric between the GPUs.

The rails with their switches, and how one repetition of a training run asks for their
circuits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

from railx.effort import Cost, Costs
from railx.settings import (
    MAX_TIMEOUT_S,
    AtLeast,
    Between,
    NonNegative,
    NotEmpty,
    Positive,
    SettingsError,
)

Mode = Literal["electrical", "on_demand", "provisioned"]
Priority = Literal["normal", "real_time"]
#: Milliseconds of a day, the longest latency.
DAY_MS = 86_400_000


@dataclass(frozen=True)
class PortFailureSettings:
    """An injected failure of the emulated switch."""

    ports: Annotated[tuple[str, ...], NotEmpty()]
    """Ports that are lost, as GPU.left or GPU.right."""
    after_s: Annotated[float, NonNegative()]
    """Seconds from the start of the controller to the loss."""
    for_s: Annotated[float, Positive()] | None
    """Seconds until the ports are back. None: they stay lost."""
    reason: Annotated[str, NotEmpty()]
    """Reason in the errors of ranks."""


@dataclass(frozen=True)
class EmulatedSwitchSettings:
    """An emulated switch on each rail: circuits in memory, latency by a timer."""

    driver: Literal["emulated"] = "emulated"
    """Emulated: no light is switched."""
    technology: str | None = None
    """Row of resources/published/opus_ocs_technologies.csv of the numbers.
    None: no particular switch."""
    ports: Annotated[int, AtLeast(2)] | None = None
    """Ports of a switch; a GPU takes two. None: as many as the run needs."""
    switching_ms: Annotated[float, Between(0, DAY_MS)] | None = None
    """Milliseconds from a command for one circuit to light. None: the latency of the
    run (reconfiguration_latency_ms)."""
    per_port_ms: Annotated[float, Between(0, DAY_MS)] = 0.0
    """Milliseconds more for each port that moves beyond the first two of a command."""
    state_file: Annotated[str, NotEmpty()] | None = None
    """File that keeps the light, so that a controller that starts anew reads it. None:
    the switch is dark at every start."""
    failures: tuple[PortFailureSettings, ...] = ()
    """Injected failures."""

    def costs(self) -> Costs:
        """Estimated work by field."""
        return {"ports": Cost(1e-6, 1e2) * self.ports}


@dataclass(frozen=True)
class NetconfSwitchSettings:
    """A real switch on each rail, by NETCONF over SSH.

    It has to speak resources/yang/railx-cross-connect.yang, a model of our own.
    """

    driver: Literal["netconf"]
    """Real switches with NETCONF."""
    addresses: Annotated[tuple[str, ...], NotEmpty()]
    """host:port of the switch of each rail, rails in order."""
    host_keys: tuple[str, ...]
    """Public host key of each switch in base64, as ssh-keyscan prints it. No other key
    is accepted."""
    username: Annotated[str, NotEmpty()]
    """User name. The password is in the environment: RAILX_SWITCH_PASSWORD."""
    key_file: Annotated[str, NotEmpty()] | None
    """File with the private key that logs in. None: the password does."""
    reply_timeout_s: Annotated[float, Positive(), Between(0, MAX_TIMEOUT_S)]
    """Seconds without an answer after which a switch counts as lost."""
    poll_s: Annotated[float, Between(0.01, 3600)]
    """Seconds between two questions for failed ports."""

    def __post_init__(self) -> None:
        if len(self.host_keys) != len(self.addresses):
            raise SettingsError(
                "host_keys",
                f"got {len(self.host_keys)} of them; allowed: {len(self.addresses)}, one for each"
                " address",
            )


SwitchSettings: TypeAlias = EmulatedSwitchSettings | NetconfSwitchSettings


@dataclass(frozen=True)
class JournalSettings:
    """The journal of a controller: every event, so that a run can be replayed."""

    path: Annotated[str, NotEmpty()]
    """File of the events of this start; earlier starts move on to PATH.1 to PATH.5."""
    limit_mib: Annotated[int, AtLeast(1)]
    """Size in MiB at which it ends. The controller goes on without it."""


@dataclass(frozen=True)
class RailSettings:
    """The rails of a training run, the same in every repetition of it.

    One switch per GPU of a server, two optical ports per GPU (left and right).
    """

    gpus_per_server: Annotated[int, AtLeast(1)]
    """GPUs that share a server, and so the rails."""
    host: Annotated[str, NotEmpty()]
    """Address that the controller listens on, or ``unix:/path`` of a socket file."""
    port: Annotated[int, Between(0, 65535)]
    """Port that the controller listens on. 0: any free one."""
    timeout_s: Annotated[float, Positive(), Between(0, MAX_TIMEOUT_S)]
    """Seconds that a rank waits for circuits or for the controller before the run ends
    in an error. A rank without a heartbeat for so long counts as dead."""
    heartbeat_s: Annotated[float, Positive(), Between(0, MAX_TIMEOUT_S)] = field(
        default=5.0, kw_only=True
    )
    """Seconds between two heartbeats of a rank."""
    switch: SwitchSettings = field(default_factory=EmulatedSwitchSettings, kw_only=True)
    """Driver of the switches."""
    controller_priority: Priority = field(default="normal", kw_only=True)
    """How the system schedules the controller beside the ranks.

    ``real_time``: before them (SCHED_RR), as on a separate machine. That needs
    CAP_SYS_NICE; without it the controller is scheduled as the ranks are."""
    journal: JournalSettings | None = field(default=None, kw_only=True)
    """Journal of every event, for `railx fabric replay-log`. None: no journal."""


@dataclass(frozen=True)
class FabricSettings(RailSettings):
    """The fabric of one repetition of a training run: its rails and how they switch."""

    mode: Mode
    """How circuits are asked for (the modes of Opus, arXiv 2602.12521).

    ``electrical``: packet switches join every pair of GPUs, nothing waits and no
    controller runs. ``on_demand``: when the first operation that needs them is about to
    start. ``provisioned``: when the last operation before it has ended, from a recorded
    schedule."""
    reconfiguration_latency_ms: Annotated[float, Between(0, DAY_MS)]
    """Milliseconds from a switch command to light. 0 where mode is electrical."""

    def __post_init__(self) -> None:
        if self.host.startswith("unix:") and self.port != 0:
            raise SettingsError(
                "port", f"got {self.port}; allowed: 0 where host is {self.host!r}, a socket file"
            )
        if self.mode == "electrical" and self.reconfiguration_latency_ms != 0:
            raise SettingsError(
                "reconfiguration_latency_ms",
                f"got {self.reconfiguration_latency_ms}; allowed: 0 where mode is electrical"
                " (packet switches do not reconfigure)",
            )
        switch_ms = getattr(self.switch, "switching_ms", None)
        if self.mode != "electrical" and switch_ms not in (None, self.reconfiguration_latency_ms):
            raise SettingsError(
                "reconfiguration_latency_ms",
                f"got {self.reconfiguration_latency_ms}; allowed: {switch_ms}, which the switch has"
                " (switch.switching_ms)",
            )
