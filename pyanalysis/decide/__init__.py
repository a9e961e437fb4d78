"""The decision between static and adaptive caching: `moecache decide`.

parts      what is selected on and what is held out; the units of the bootstrap
replays    one policy at one capacity over a trace, summed by unit
intervals  bootstrap confidence intervals
evidence   every policy, capacity and cost model over one trace
cells      from evidence to the numbers that decide
verdict    from those numbers to the decision; knows no traces
tables, report   what people read
"""
