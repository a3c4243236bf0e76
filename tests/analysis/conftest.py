"""Puts the folder of `synthetic.py` on the path, however pytest was started."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
