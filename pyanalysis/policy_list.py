"""`moecache simulate --list-policies`: the engine's table of policies as text."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ggml_moecache import _native

_SHARED = 5  # a parameter of so many policies is printed once


def policies_as_text() -> str:
    """Every policy of the engine's table with its parameters, their units, defaults and ranges."""

    def described(one: Any) -> str:  # noqa: ANN401 - a parameter of the table
        return (
            f"    {one.name}  {one.summary} ({one.values}; {f'default {one.default}' if one.default else 'required'})"
        )

    policies = _native.policies()
    named = Counter(one.name for policy in policies for one in policy.parameters)
    shared = {
        one.name: described(one) for policy in policies for one in policy.parameters if named[one.name] >= _SHARED
    }
    lines = []
    for policy in policies:
        filters = " (+)" if shared.keys() <= {one.name for one in policy.parameters} else ""
        lines.append(f"{policy.name}{filters}  {policy.summary}")
        lines += [described(one) for one in policy.parameters if one.name not in shared]
    return "\n".join([*lines, "", "options of every policy with (+):", *shared.values()])
