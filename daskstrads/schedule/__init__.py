"""Policies that say which variables to update next, and the dependency check."""

from .dependency import independent
from .descent import Descent
from .policy import Certified, DynamicPriority, Plan, Policy, Report, RoundRobin, StaticPartition
from .priority import Recency, strongest
from .rotation import Rotation, Turn

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
