"""
Types of Python's own things.
"""
import logging
from typing import Any

Logger = logging.Logger | logging.LoggerAdapter[Any]
"""The type of the kwarg ``logger``."""
