"""Fast forms of the variants' formulas, with backward passes of their own.

A variant's file stays the definition: its formula, differentiable by torch, on any device. A kernel
here computes the same on plain CPU tensors, from large operations only, and keeps no more than
inputs, outputs and log-sum-exps for its backward. `flash.hand_written` says when a kernel may run;
wherever it may not (a traced program, a function transform, another device), the formula does.
"""
