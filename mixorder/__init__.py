"""mixorder: `torch.compile(model, options={"mixorder": True})` trains norms in one memory pass.

Importing this package registers the options and the pass with torch, and nothing else. It runs at
the end of every `import torch`, so it must not import torch internals, triton or sympy.
"""

from mixorder._autoload import register as _register

__version__ = "0.1.0"

_register()
