"""Predictors of the experts of a token, one file each; `table.py` names them. `base.py` has the contract."""
