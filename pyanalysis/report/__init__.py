"""The report of a sweep: one HTML page that needs nothing beside it, and the tables behind its plots as CSV."""

from pyanalysis.report.curves import Reached, Sensitivity, capacities_reaching
from pyanalysis.report.write import write_report

__all__ = ["Reached", "Sensitivity", "capacities_reaching", "write_report"]
