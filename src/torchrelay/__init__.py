"""torchrelay: one declarative recipe trains a PyTorch model anywhere, and survives failures.

Import the module that holds the idea (`torchrelay.recipe.load`, `torchrelay.data.order.order`, ...);
this package itself exports only its version, so that `import torchrelay` costs nothing.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
