"""Run by Python as each process that a test starts begins (conftest.py puts this folder on its path): its imports,
of torch above all, take a fifth less time where garbage is collected as rarely as in the tests."""

import gc

gc.set_threshold(20_000)
