"""A torch.distributed backend named ``railx``.

Every collective and send asks the fabric for its circuits before it may start. Any
torch program can use it: where this package is installed, ``import torch`` makes the
name known (:mod:`railx_torch`), and the environment says the rest
(:mod:`training.environment`). Importing this module registers the name too. What is
notable:

* One process group (:mod:`training.process_group`) stands in front of an inner one. An
  operation is issued without waiting. Where it needs no circuits, or its group still
  holds them, it begins in the thread that issues it. Otherwise it joins its lane
  (:mod:`training.lanes`; one for the collectives of a group, one for each source,
  destination and tag of messages), asks for its circuits when its turn comes, and gives
  them back when it has ended, on the device too. A lane is a thread; a synchronous
  collective on an idle lane runs in place. Operations of one channel begin in the order
  of issue, whichever way they go.
* An operation is known by channel and number, which all its members count alike:
  (group, n-th collective), or (group, source, destination, tag, n-th message).
* Groups inside one server, and everything in electrical mode, never ask.
* Gloo works on host memory: CUDA tensors go through pinned buffers, filled before the
  circuits are asked for and emptied after they are given back.
* NCCL works on the device: the lane waits until the device has reached the operation,
  asks, launches it on a stream of its own, and gives the circuits back when an event
  behind it has passed. No thread spins: the events that the host waits for block.
* NCCL's messages between two ranks have a communicator for each direction, because both
  may be under way at once. The first message, of whichever direction, brings up both in
  one order (:class:`training.lanes.Pair`), so that ranks which begin with different
  directions do not wait for each other for ever. CPU tensors of such a group go over
  gloo.
* As with NCCL itself, operations on the device must be issued in an order that lets all
  of them run: communicators share the device's processors, and a kernel waits there for
  its peers.
* In provisioned mode, whenever the last operation under way ends, the controller is
  told what the next one will need.
"""

from __future__ import annotations

import atexit
import os
from typing import Any

from railx.fabric import CircuitSchedule
from railx_torch import register
from training import environment as _environment
from training.process_group import RailxProcessGroup
from training.session import BackendOptions, Session, Statistics
from training.trace import Recorder

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
#: What the environment said, where the session is by it.
_place: _environment.Environment | None = None


def configure(options: BackendOptions, recorder: Recorder) -> None:
    """Connect this process (global rank ``recorder.rank``) to the fabric.

    Call it before ``init_process_group(backend="railx")``. It may be called again for
    the next setting once the groups of the last one are destroyed (RuntimeError
    otherwise). Raises :class:`railx.fabric.FabricError` where no controller answers, or
    where it refuses.
    """
    global _session
    if _session is not None:
        _session.close()
    _leave()
    _session = Session(options, recorder)


def begin_iteration(i: int) -> None:
    """Operations issued from now on belong to iteration ``i``.

    For the recorder and for the schedule.
    """
    _current().begin_iteration(i)


def end_iteration() -> int:
    """The iteration that began last is over; returns how long it took in ns."""
    return _current().recorder.end_iteration()


def recorded_schedule() -> CircuitSchedule:
    """What this rank's operations needed so far, in the order of issue, per iteration.

    Operations inside a server are left out.
    """
    return _current().recorded_schedule()


def use_schedule(schedule: CircuitSchedule | None) -> None:
    """Announce operations ahead by this schedule (mode provisioned).

    None: by the cycle that this rank's own operations show (railx.fabric.cycle).
    """
    _current().schedule = schedule


def statistics() -> Statistics:
    """The counts since the last reset."""
    return _current().statistics


def reset_statistics() -> None:
    """Count from zero again."""
    _current().reset_statistics()


def _current() -> Session:
    if _session is None:
        raise RuntimeError("railx: call training.backend.configure before this")
    return _session


def create_group(options: Any) -> RailxProcessGroup:
    """A process group under the present setting; torch calls it for each new group.

    Where the program configured nothing, the environment does, whenever no group is
    open.
    """
    global _session
    if _session is None or (_place is not None and not _session.open_groups):
        ranks = options.global_ranks_in_group or range(options.group_size)
        _follow_environment(list(ranks)[options.group_rank])
    assert _session is not None
    return RailxProcessGroup(options, _session)


def _follow_environment(rank: int) -> None:
    global _session, _place
    place = _environment.read(os.environ)
    if _session is not None and (place, rank) == (_place, _session.recorder.rank):
        return
    _leave()
    _session, _place = Session(place.options, place.recorder(rank)), place


def _leave() -> None:
    """End the session, if any, and write what the environment asked for."""
    global _session, _place
    session, place = _session, _place
    _session = _place = None
    if session is not None:
        if place is not None:
            place.close(session)
        session.disconnect()


atexit.register(_leave)
register()
