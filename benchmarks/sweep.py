"""Run a sweep from a checkout: ``python benchmarks/sweep.py +experiment=smoke``."""

import sys

from efficient_attn.commands.sweep import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
