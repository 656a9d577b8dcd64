"""Which network for which job at what price: networks and plans searched together."""
