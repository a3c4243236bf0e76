"""The fault campaign: everything that goes wrong in sweeps, brought about on purpose.

    python benchmarks/faults.py                 # some minutes
    python benchmarks/faults.py --kills 3 --json

First a contestant misbehaves, in one way after the other, beside full attention in real sweeps;
then the disk and the folder of results do; then the sweep itself is killed at random moments. The
table tells what was reported, what became of the contestant beside it, and what was lost. Exit
code 0 when every verdict is "ok".
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # Workers import this file again: what it needs is imported where they do not come by.
    from fault_campaign.command import main

    sys.exit(main(sys.argv[1:], __doc__))
