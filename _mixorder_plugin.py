"""The entry point that `import torch` calls. It lies beside the package, not in it, so that an installation
from a folder that has gone, or does not load, says so and leaves torch usable."""

import warnings


def register() -> None:
    """Register mixorder with torch; a warning where its package cannot be loaded."""
    try:
        from mixorder._autoload import register
    except Exception as error:
        warnings.warn(
            f"mixorder is installed, but cannot be loaded ({error!r}); it stays off. Was the folder that it "
            "was installed from moved or deleted? `pip uninstall mixorder`, or install it again.",
            stacklevel=2,
        )
    else:
        register()
