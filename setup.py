"""Package metadata; tool settings live in pyproject.toml."""

import re
from pathlib import Path

from setuptools import Distribution, find_packages, setup

ROOT = Path(__file__).parent
(VERSION,) = re.findall(
    r'^__version__ = "(.+)"$', (ROOT / "mixorder" / "__init__.py").read_text(), re.MULTILINE
)
URL = ""  # of the public repository; links of the package index follow from it
BOUNDS = dict(re.findall(r"^([\w-]+)(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
TEST = ["pytest", "pytest-xdist", "expecttest", "hypothesis", "numpy", "sympy"]
TEST += ["ruff", "mypy", "setuptools", "wheel"]


def outside_of_the_repository(text: str) -> str:
    """The README without images, and with the names of files in place of links to them: there is no public
    address that they could lead to. Links within the page are plain text: not every index has its anchors."""
    text = re.sub(r"^!\[.*\n\n?", "", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]+)\]\(#[^)]+\)", r"\1", text)
    text = re.sub(r"\[([^\]]+)\]\(\1\)", r"`\1`", text)
    return re.sub(r"\[([^\]]+)\]\((?!https?:)([^)]+)\)", r"\1 (`\2`)", text)


class WithDataFiles(Distribution):
    """Data files are part of an editable wheel, too, for which setuptools asks for `has_data`."""

    has_data = Distribution.has_data_files


setup(
    name="mixorder",
    distclass=WithDataFiles,
    version=VERSION,
    description="A plugin for torch.compile that makes the backward of norms faster",
    long_description=outside_of_the_repository((ROOT / "README.md").read_text()),
    long_description_content_type="text/markdown",
    author="mixorder contributors",
    project_urls={"Source": URL, "Changelog": f"{URL}/blob/main/CHANGELOG.md"} if URL else {},
    license="BSD-3-Clause",
    license_files=["LICENSE"],
    keywords=["torch", "torch.compile", "inductor", "triton", "layernorm", "rmsnorm", "kernel fusion"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: GPU :: NVIDIA CUDA",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 14)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Software Development :: Code Generators",
        "Typing :: Typed",
    ],
    python_requires=">=3.10",
    packages=find_packages(include=["mixorder", "mixorder.*"]),
    # With it setuptools makes an editable installation an entry of the path. By default it makes an import
    # hook, which comes after the path: in the clone's parent folder, the clone would be an empty package.
    package_dir={"": "."},
    package_data={"mixorder": ["py.typed", "schedule/operators.json", "schedule/times.json"]},
    # No requirements: pip must neither replace the torch that is there nor put another triton over the one
    # that it was built with. `python -m mixorder doctor` says what is missing.
    install_requires=[],
    extras_require={
        "torch": ["torch>=2.11"],  # no triton: which one belongs to a torch, `doctor` says
        "test": [name + BOUNDS[name] for name in TEST],
        "plot": ["matplotlib"],
        "peers": ["liger-kernel", "quack-kernels"],
    },
    # `import torch` calls every entry point of this group, so the option exists without `import mixorder` in
    # the user's code; an error in one is an error of `import torch`. Every wheel, an editable one too, puts
    # the module into site-packages itself: it is there when a clone has gone.
    entry_points={"torch.backends": ["mixorder = _mixorder_plugin:register"]},
    data_files=[("../purelib", ["_mixorder_plugin.py"])],
)
