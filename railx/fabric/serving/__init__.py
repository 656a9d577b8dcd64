"""The server's parts, each on top of those before:

* ``words``: the core's answers as frames;
* ``state``: what the server remembers, with the switch, the journal and the core;
* ``turns``: what is decided in one turn of the loop, and how it goes out; who is
  refused, and who is gone;
* ``light``: what the switch's driver tells, from its own thread;
* ``door``: who comes in, and who has not said who it is;
* ``ranks``: the requests of ranks, their lives and their signs of life;
* ``observers``: the questions and orders of people.
"""
