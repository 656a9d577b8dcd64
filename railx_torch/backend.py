"""A torch.distributed backend named ``railx``.

Every collective and send requests its circuits from the fabric before it starts. Any
torch program can use it: where this package is installed, ``import torch`` registers
the name (:mod:`railx_torch`), and environment variables configure the backend
(:mod:`railx_torch.environment`). Importing this module registers the name too. Notable:

* A process group (:mod:`railx_torch.process_group`) wraps an inner one. Operations are
  issued without waiting. Where an operation needs no circuits, or its group still holds
  them, it begins in the thread that issues it. Otherwise it joins its lane
  (:mod:`railx_torch.lanes`; one for the collectives of a group, one for each source,
  destination and tag of messages), requests its circuits when its turn comes, and
  releases them when it has ended, on the device too. A lane is a thread; a synchronous
  collective on an idle lane runs in the calling thread. Operations of a channel begin
  in the order of issue on every path.
* Channel and number identify an operation, equally on all members: (group, n-th
  collective), or (group, source, destination, tag, n-th message).
* Groups inside one server, and all groups in electrical mode, request no circuits.
* Gloo works on host memory: CUDA tensors are copied through pinned buffers, before the
  circuits are requested and after they are released.
* NCCL works on the device: an operation is launched on a separate stream, behind a gate
  (:mod:`railx_torch.gate`) where its circuits must come first, so that the program runs
  ahead. The lane waits until the device has reached the operation, requests the
  circuits, opens the gate, and releases the circuits when an event behind the operation
  has passed. No thread spins: host waits block on events.
* NCCL's messages between two ranks have a communicator for each direction, because both
  directions may be under way at once. The first message of either direction sets up
  both in a fixed order (:class:`railx_torch.lanes.Pair`), so that ranks which begin
  with different directions do not deadlock. CPU tensors of such a group go over gloo.
* As with NCCL itself, operations on the device must be issued in an order that lets all
  of them run: communicators share the device's processors, and a kernel waits there for
  its peers.
* In provisioned mode, the end of the last operation under way announces the circuits of
  the next one to the controller.
"""

from __future__ import annotations

import atexit
import os
from typing import Any

from railx.fabric import CircuitSchedule
from railx_torch import environment as _environment
from railx_torch import register
from railx_torch.lanes import end_with_program
from railx_torch.process_group import RailxProcessGroup
from railx_torch.session import BackendOptions, Session, Statistics
from railx_torch.trace import Recorder

__all__ = [
    "BackendOptions",
    "RailxProcessGroup",
    "Statistics",
    "begin_iteration",
    "configure",
    "create_group",
    "end_iteration",
    "recorded_schedule",
    "reset_statistics",
    "statistics",
    "use_schedule",
]

_session: Session | None = None
#: The environment of the session, where no program configured it.
_session_environment: _environment.Environment | None = None


def configure(options: BackendOptions, recorder: Recorder) -> None:
    """Connect this process (global rank ``recorder.rank``) to the fabric.

    Call it before ``init_process_group(backend="railx")``. It may be called again for
    the next setting once the groups of the last one are destroyed (RuntimeError
    otherwise). Raises :class:`railx.fabric.FabricError` where the controller does not
    answer or refuses.
    """
    global _session
    if _session is not None:
        _session.close()
    _leave()
    _session = Session(options, recorder)


def begin_iteration(i: int) -> None:
    """Operations issued from now on belong to iteration ``i`` of trace and schedule."""
    _current().begin_iteration(i)


def end_iteration() -> int:
    """End the current iteration and return its duration in ns."""
    return _current().recorder.end_iteration()


def recorded_schedule() -> CircuitSchedule:
    """Circuits of this rank's operations so far, per iteration, none in a server."""
    return _current().recorded_schedule()


def use_schedule(schedule: CircuitSchedule | None) -> None:
    """Announce circuits by this schedule (provisioned); None: by the found cycle."""
    _current().schedule = schedule


def statistics() -> Statistics:
    """The counts since the last reset."""
    return _current().statistics


def reset_statistics() -> None:
    """Count from zero again."""
    _current().reset_statistics()


def _current() -> Session:
    if _session is None:
        raise RuntimeError("railx: call railx_torch.backend.configure before this")
    return _session


def create_group(options: Any, pg_options: Any = None) -> RailxProcessGroup:
    """A process group of the current session; torch calls it for each new group.

    ``pg_options`` are those of the inner backend, or None; UserError for others.
    Without a call of ``configure``, environment variables configure the session
    whenever no group is open.
    """
    global _session
    if _session is None or (_session_environment is not None and not _session.open_groups):
        ranks = options.global_ranks_in_group or range(options.group_size)
        _follow_environment(list(ranks)[options.group_rank])
    assert _session is not None
    return RailxProcessGroup(options, _session, pg_options)


def _follow_environment(rank: int) -> None:
    global _session, _session_environment
    environment = _environment.read(os.environ)
    same = environment == _session_environment
    if _session is not None and same and rank == _session.recorder.rank:
        return
    _leave()
    _session = Session(environment.options, environment.recorder(rank))
    _session_environment = environment


def _leave() -> None:
    """End the session, if any, and write the files of the environment."""
    global _session, _session_environment
    session, environment = _session, _session_environment
    _session = _session_environment = None
    if session is not None:
        if environment is not None:
            environment.close(session)
        session.disconnect()


def _end() -> None:
    """Leave at the end of a program that may not have destroyed its groups."""
    session = _session
    _leave()
    for group in list(session.open_groups if session is not None else ()):
        group.shutdown()
    end_with_program()


atexit.register(_end)
register()
