"""The event-atomic simulator: one trace, one policy, one capacity; or many of each.

from pyanalysis import simulate, sweep, traces
result = simulate(traces.read_trace("log"), "lru", "25%", per_layer=True)
"""

from pyanalysis.simulation.result import EventLog, LayerResult, Mode, SimulationResult, Timing, results_to_arrow
from pyanalysis.simulation.run import Replay, simulate, simulate_capacities, sweep
from pyanalysis.simulation.stream import EventStream

__all__ = [
    "EventLog",
    "EventStream",
    "LayerResult",
    "Mode",
    "Replay",
    "SimulationResult",
    "Timing",
    "results_to_arrow",
    "simulate",
    "simulate_capacities",
    "sweep",
]
