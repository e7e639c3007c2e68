"""The release of the package. In a module of its own: the package's names for users lead everywhere."""

__version__ = "0.1.0"
