"""The controller's server.

* ``connections``: bytes to checked requests, and frames back;
* ``frames``: the core's answers as frames of the protocol;
* ``base``: state, answers of a turn, refusals, events of the switch;
* ``admission``: new connections, tokens and evictions;
* ``server``: the requests of ranks and observers, heartbeats and recovery;
* ``metrics``: the counters as Prometheus metrics.
"""
