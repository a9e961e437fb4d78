"""The event-atomic simulator: one trace, one policy, one capacity; or many of each.

from pyanalysis import simulate, sweep, traces
result = simulate(traces.read_trace("log"), "lru", "25%", per_layer=True)
"""

from pyanalysis.simulation.result import EventLog, LayerResult, Mode, SimulationResult, Timing, results_to_arrow
from pyanalysis.simulation.run import simulate, sweep

__all__ = [
    "EventLog",
    "LayerResult",
    "Mode",
    "SimulationResult",
    "Timing",
    "results_to_arrow",
    "simulate",
    "sweep",
]
