"""Files of other tools: networks and traces written for them, traces read from them.

:mod:`railx.exchange.formats` lists the formats of networks; docs/exchange.md describes
the contents and losses of each.
"""
