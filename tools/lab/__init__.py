"""What the scripts in `tools/` share, beside `tests/support`: processes, timing, how results are printed."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # the mixorder of this checkout, installed or not
sys.path.append(str(ROOT / "tests"))  # `support`
