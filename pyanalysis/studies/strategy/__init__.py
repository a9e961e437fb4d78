"""Predictive strategies: what a predictor or a ranking hands to the C++ replay. `table.py` names them."""
