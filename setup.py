"""Package metadata; tool settings live in pyproject.toml."""

from setuptools import find_packages, setup

setup(
    name="mixorder",
    version="0.1.0",
    description="One-pass norm backward (and every pair like it) for torch.compile",
    license="BSD-3-Clause",
    python_requires=">=3.10",
    packages=find_packages(include=["mixorder", "mixorder.*"]),
    package_data={"mixorder": ["py.typed", "schedule/fitted.json"]},
    install_requires=["torch>=2.11", "triton; platform_system == 'Linux'", "sympy"],
    extras_require={
        "test": ["pytest", "expecttest", "hypothesis", "numpy", "ruff"],
        "plot": ["matplotlib"],
        "peers": ["liger-kernel", "quack-kernels"],
    },
    # `import torch` calls every entry point of this group, so the option exists without
    # `import mixorder` in the user's code.
    entry_points={"torch.backends": ["mixorder = mixorder._autoload:register"]},
)
