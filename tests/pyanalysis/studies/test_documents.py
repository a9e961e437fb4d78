"""What STUDIES.md, LITERATURE.md and the README of core/strategies name is what there is."""

import re
from pathlib import Path

from pyanalysis.studies import registry
from pyanalysis.studies.predictors.table import PREDICTORS
from pyanalysis.studies.strategy.prefetching import WHEN
from pyanalysis.studies.strategy.table import ORDERS, RANKINGS, STRATEGIES, parse

ROOT = Path(__file__).parents[3]
STUDIES = (ROOT / "pyanalysis" / "studies" / "STUDIES.md").read_text()
LITERATURE = (ROOT / "pyanalysis" / "LITERATURE.md").read_text()
RULES = (ROOT / "ggml_moecache" / "core" / "strategies" / "README.md").read_text()


def first_column(text: str, header: str) -> list[str]:
    """Names in the first column of the table with this first header."""
    rows = text.split(f"| {header} |", 1)[1].split("\n\n", maxsplit=1)[0].splitlines()[2:]
    return [re.match(r"\| `([^`]+)`", row).group(1) for row in rows]


def test_studies_and_predictors():
    assert first_column(STUDIES, "study") == [one.name for one in registry.STUDIES]
    assert first_column(STUDIES, "predictor") == list(PREDICTORS)


def test_orders_rankings_and_combinations():
    assert first_column(RULES, "order") == list(ORDERS)
    for name in (*WHEN, *ORDERS, *RANKINGS):
        assert name in STUDIES
    for order in ORDERS:
        assert parse(f"prefetch:predictor=popularity:order={order}").name.endswith(order)


def test_the_table_of_literature():
    rows = LITERATURE.split("|---|---|---|---|---|\n")[1].split("\n\n")[0]
    works = [row.split("|")[1] for row in rows.splitlines()]
    asked = (
        "Mixtral offloading, MoE-Infinity, Fiddler, SiDA, Pre-gated MoE, ExFlow, ProMoE, HOBBIT, Klotski, HybriMoE, "
        "KTransformers, FreeToken, SeqMoE, WiSP, OLED-MoE, TIDE, ReMoE, Routide, Edge0, MawForge, "
        "measurement study, llama.cpp"
    )
    for name in asked.split(", "):
        assert sum(name in work for work in works) == 1, name
    assert all(row.count("|") - row.count("\\|") == 6 for row in rows.splitlines())
    named = set(re.findall(r"--strategies ([a-z0-9,-]+)`", LITERATURE))
    known = {one.name for one in STRATEGIES}
    assert set(",".join(named).split(",")) <= known
    studies = {one.name for one in registry.STUDIES}
    assert set(re.findall(r"`study ([a-z-]+)", LITERATURE)) <= studies


def test_the_share_of_predicting_that_decisions_names_is_the_tables():
    """Of eight steps of the reservoir (seqmoe), h200-calibrated, by held-out part."""
    table = (ROOT / "traces" / "strategies" / "README.md").read_text()
    rows = re.findall(r"^\| (\S+), held-out (\w+)[^|]* \| h200-calibrated \| seqmoe \|(.*)\|$", table, re.MULTILINE)
    share = {(trace.split("-", 1)[0], "256" in trace, part): float(cells.split("|")[3]) for trace, part, cells in rows}
    known = {key: value for key, value in share.items() if not key[1] and key[0] != "kimi"}
    text = " ".join((ROOT / "DECISIONS.md").read_text().split())
    assert f"take {min(known.values()):.0f} to {max(known.values()):.0f} % of a token" in text
    large = share["tiny", True, "requests"], share["tiny", True, "tokens"]
    assert (
        "with 256 experts in a layer {:.0f} % on held-out requests and {:.0f} on held-out tokens".format(*large) in text
    )
    assert f"Kimi-Linear's 26 layers of them {share['kimi', False, 'tokens']:.0f} %" in text
