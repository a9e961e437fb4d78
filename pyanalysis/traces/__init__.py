"""Routing traces: read, check, summarize, convert, cut, merge, shuffle. The format is described in traces/FORMAT.md.

from pyanalysis import traces
trace = traces.read_trace("log-dir")     # numpy columns, checked
for event in traces.read_events("log-dir"): ...
"""

from pyanalysis.traces.check import check_layers_of_run, check_trace
from pyanalysis.traces.errors import Problem, TraceError
from pyanalysis.traces.event import PHASES, Event
from pyanalysis.traces.formats import FORMATS, load_trace, logs_in, open_reader, open_writer, read_events, read_trace
from pyanalysis.traces.trace import Tokens, Trace

__all__ = [
    "FORMATS",
    "PHASES",
    "Event",
    "Problem",
    "Tokens",
    "Trace",
    "TraceError",
    "check_layers_of_run",
    "check_trace",
    "load_trace",
    "logs_in",
    "open_reader",
    "open_writer",
    "read_events",
    "read_trace",
]
