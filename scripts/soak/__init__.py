"""The control plane under load and faults, watched from outside."""
