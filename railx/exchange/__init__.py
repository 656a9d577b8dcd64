"""Files of other tools: networks and traces written for them, traces read from them.

A module for each format; :mod:`railx.exchange.formats` lists those of networks,
docs/exchange.md says what each carries and what is lost.
"""
