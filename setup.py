"""Package metadata; tool settings live in pyproject.toml."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
(VERSION,) = re.findall(
    r'^__version__ = "(.+)"$', (ROOT / "mixorder" / "__init__.py").read_text(), re.MULTILINE
)
DEVELOPMENT = [
    "pytest",
    "pytest-xdist",
    "expecttest",
    "hypothesis",
    "numpy",
    "ruff",
    "mypy",
    "setuptools",
    "wheel",
]

setup(
    name="mixorder",
    version=VERSION,
    description="One-pass norm backward (and every pair like it) for torch.compile",
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="BSD-3-Clause",
    classifiers=["Typing :: Typed", "Programming Language :: Python :: 3"],
    python_requires=">=3.10",
    packages=find_packages(include=["mixorder", "mixorder.*"]),
    package_data={"mixorder": ["py.typed", "schedule/fitted.json"]},
    # No requirements: pip must neither replace the torch that is there nor put another triton over the one
    # that it was built with. `python -m mixorder doctor` says what is missing.
    install_requires=[],
    extras_require={
        "torch": ["torch>=2.11", "triton; platform_system == 'Linux'"],
        "test": DEVELOPMENT,
        "plot": ["matplotlib"],
        "progress": ["tqdm"],
        "peers": ["liger-kernel", "quack-kernels"],
    },
    # `import torch` calls every entry point of this group, so the option exists without
    # `import mixorder` in the user's code.
    entry_points={"torch.backends": ["mixorder = mixorder._autoload:register"]},
)
