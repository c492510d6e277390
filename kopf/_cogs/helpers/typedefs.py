"""
Types of what handlers get from the standard library.
"""
import logging
from typing import Any

Logger = logging.Logger | logging.LoggerAdapter[Any]
"""The type of the kwarg ``logger``."""
