"""Records in, knowledge out: intervals, scaling fits, crossovers, the pick. Loads no tensors."""
