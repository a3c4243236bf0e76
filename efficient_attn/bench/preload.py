"""Imported once by the server that workers are forked from, so that each starts ready.

The profiler takes over a second to start for the first time in a process. Started and stopped
here, before there are threads or tensors, it starts at once in every worker forked later.
"""

import os

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read once, when the profiler's library loads

from torch.profiler import ProfilerActivity, profile

from efficient_attn.bench import cost, fidelity, swap, trial

__all__ = ["cost", "fidelity", "swap", "trial"]

with profile(activities=[ProfilerActivity.CPU], profile_memory=True):
    pass
