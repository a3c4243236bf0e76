"""The faults of public implementations, written into ours one at a time.

A suite that lets one pass lacks a test; `mutations.py` runs them. The kinds:

 1 a row that sees nothing            8 a window off by one
 2 a mask accepted and dropped        9 lengths that no window, block or axis divides
 3 padding changes what is computed  10 axes swapped, checkpoints of another size
 4 the future leaks                  11 randomness out of hand, history
 5 samples are coupled               12 parameters without gradient, sizes baked in
 6 a normaliser wrong when small     13 a measurement of something else
 7 half precision: sums saturate     14 a sweep that loses, repeats or misreports
"""

from attention.mutants.base import Mutation
from attention.mutants.computing import COMPUTING
from attention.mutants.lasting import LASTING
from attention.mutants.measuring import MEASURING
from attention.mutants.seeing import SEEING

__all__ = ["MUTATIONS", "Mutation"]

MUTATIONS = [*SEEING, *COMPUTING, *LASTING, *MEASURING]
