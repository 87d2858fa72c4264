"""What the scripts in `tools/` share: cases, programs, timing, and how results are compared and printed."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # the mixorder of this checkout, installed or not
