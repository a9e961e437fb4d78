"""The event-atomic simulator: one trace, one policy, one capacity; or many of each.

from pyanalysis import costs, simulate, sweep, traces
result = simulate("log", "lru", "25%", "h200", per_layer=True)
result = simulate(traces.read_trace("log"), "lru", "25%", costs.load("h200"), per_layer=True)  # the same
"""

from pyanalysis.simulation.result import EventLog, LayerResult, Mode, SimulationResult, Timing, results_to_arrow
from pyanalysis.simulation.run import Replay, simulate, simulate_capacities, sweep
from pyanalysis.simulation.session import Session, SessionCounts, SessionState
from pyanalysis.simulation.stream import EventStream
from pyanalysis.simulation.targets import TargetCapacity, capacity_for, reached

__all__ = [
    "EventLog",
    "EventStream",
    "LayerResult",
    "Mode",
    "Replay",
    "Session",
    "SessionCounts",
    "SessionState",
    "SimulationResult",
    "TargetCapacity",
    "Timing",
    "capacity_for",
    "reached",
    "results_to_arrow",
    "simulate",
    "simulate_capacities",
    "sweep",
]
