import sys
from pathlib import Path

# The programme imports as its scripts do.
sys.path.append(str(Path(__file__).parents[2] / "stress"))
