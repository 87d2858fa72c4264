"""Python runs this first in each process that a test starts: conftest.py puts this folder on their path.

Imports, of torch above all, take a fifth less time where garbage is collected as rarely as in the tests.
"""

import gc

gc.set_threshold(20_000)
