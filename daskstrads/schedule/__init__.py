"""Policies that say which variables to update next, and the dependency check."""

from .dependency import independent
from .descent import Descent
from .policy import (
    Certified,
    DynamicPriority,
    Plan,
    Policy,
    Report,
    Rotation,
    RoundRobin,
    StaticPartition,
    Turn,
)
from .priority import Recency, strongest

__all__ = [
    "Certified",
    "Descent",
    "DynamicPriority",
    "Plan",
    "Policy",
    "Recency",
    "Report",
    "Rotation",
    "RoundRobin",
    "StaticPartition",
    "Turn",
    "independent",
    "strongest",
]
