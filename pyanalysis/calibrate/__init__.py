"""`moecache calibrate`: what this machine takes for one model's experts, as a cost model of the simulator."""
