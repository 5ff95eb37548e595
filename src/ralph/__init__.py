"""ralph runs a coding agent in a loop until the work is verifiably done."""

__version__ = "0.1.0"
