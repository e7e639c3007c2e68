"""The release of the package, in a module that every layer may import: ``__init__`` refers to all layers."""

__version__ = "0.1.0"
