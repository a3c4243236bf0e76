"""Run a sweep from a checkout: ``python benchmarks/sweep.py +experiment=smoke``."""

import sys

if __name__ == "__main__":  # before the import: every worker loads this file too
    from efficient_attn.commands.sweep import main

    sys.exit(main(sys.argv[1:]))
