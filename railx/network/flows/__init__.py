"""The flow model: max-min fair rates and completion times of fluids on paths."""
