"""The controller's server.

* ``base``: connections, answers of a turn, refusals, events of the switch, admission;
* ``server``: the requests of ranks and observers, heartbeats and recovery, receives
  from any source; ``metrics``: counters for Prometheus.
"""
