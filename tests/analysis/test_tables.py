"""The table of records: every column documented and of one type, whatever the records hold."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from pathlib import Path

import pandas as pd
import pytest
from synthetic import accuracy, cost, fidelity, swap

from efficient_attn.analysis.tables import COLUMNS, frame, meaning
from efficient_attn.bench import environment
from efficient_attn.bench.accuracy_cell import Training
from efficient_attn.bench.cost_cell import CostSettings
from efficient_attn.bench.record import RESULTS, Record
from efficient_attn.bench.store import Store
from efficient_attn.bench.worker import Limits
from efficient_attn.bench.workload import Workload
from efficient_attn.tasks import ModelConfig, make_task

REFERENCE = Path(__file__).parents[2] / "results" / "demo-cpu"
CIRCUMSTANCES = {
    **environment.machine(),
    "malloc": {"MALLOC_ARENA_MAX": "1"},
    "device_name": "Example CPU",
    "settings": {**asdict(CostSettings()), **asdict(Limits())},
    "threads": 1,
    "load_before": 0.5,
    "load_after": 0.5,
    "machine_peak": {"flops_per_s": 2e11, "bytes_per_s": 1e10},
    "cell_seconds": {"total": 3.0, "timed": 2.0},
}


def fresh() -> list[Record]:
    """One record of each measure with every field that this version writes."""
    timed = cost(compile=True, key_length=7, pattern="noncausal_cross", environment=CIRCUMSTANCES)
    known = {"flops": 2**60 + 1, "flops_method": "formula", "traffic_bytes": 10**9}
    timed = replace(timed, result={**timed.result, **known})
    task = make_task("mqar")
    trained = accuracy()
    asked = {
        "task": {**task.to_dict(), "pattern": task.pattern, "provenance": task.provenance()},
        "model": asdict(ModelConfig()),
        "training": asdict(Training()),
        "seed": 0,
        "device": "cpu",
    }
    return [
        timed,
        replace(trained, request=asked, environment=CIRCUMSTANCES),
        replace(fidelity(), environment=CIRCUMSTANCES),
        replace(swap(), environment=CIRCUMSTANCES),
    ]


def test_every_column_of_old_and_new_records_is_documented() -> None:
    for records in (Store(REFERENCE).read(), fresh()):
        assert records
        undocumented = [name for name in frame(records) if meaning(name) is None]
        assert undocumented == []


def test_every_field_of_a_record_has_its_column() -> None:
    for kind in (Record, *RESULTS.values()):
        names = {item.name for item in fields(kind)} - {"request", "result", "environment"}
        assert names <= set(COLUMNS)
    assert set(Workload().to_dict()) <= set(COLUMNS)
    assert all(text and not text.endswith(".") for text in COLUMNS.values())


def test_columns_come_in_the_documented_order() -> None:
    table = frame(fresh())
    exact = [name for name in table if name in COLUMNS]
    assert exact == [name for name in COLUMNS if name in set(exact)]


def test_whole_numbers_beyond_the_reach_of_floats_stay_exact() -> None:
    table = frame(fresh())
    assert table.flops.tolist()[0] == 2**60 + 1
    assert table.flops.isna().tolist() == [False, True, True, True]


def test_types_do_not_depend_on_what_the_records_hold() -> None:
    full = frame(fresh()).dtypes
    empty = replace(cost(), result=dict.fromkeys(fresh()[0].result))
    for records in ([empty], *([record] for record in fresh()), Store(REFERENCE).read()):
        for name, dtype in frame(records).dtypes.items():
            if name in COLUMNS and name in full:
                assert dtype == full[name], name
    assert frame([]).dtypes.to_dict() == {name: full[name] for name in frame([])}


def test_the_distance_from_the_limit_is_a_column_where_it_is_known() -> None:
    timed = frame(fresh()).iloc[0]
    limit = (2**60 + 1) / 2e11 * 1e3
    assert timed["roofline.limit_ms"] == pytest.approx(limit)
    assert timed["roofline.share"] == pytest.approx(limit / timed.median_ms)
    assert timed["roofline.bound"] == "compute"
    assert not any(name.startswith("roofline") for name in frame([cost()]))


def test_a_peak_that_could_not_be_measured_is_no_column() -> None:
    failed = cost(environment={**CIRCUMSTANCES, "machine_peak": None, "cell_seconds": None})
    assert not any(
        name.startswith(("environment.machine_peak", "environment.cell_seconds"))
        for name in frame([failed])
    )


def test_a_value_that_fits_no_column_is_named() -> None:
    with pytest.raises(ValueError, match=r"column environment\.cores .* integer"):
        frame([cost(environment={"cores": "many"})])


def test_undocumented_columns_take_the_type_of_their_values() -> None:
    def task(**values: object) -> Record:
        record = accuracy()
        return replace(record, request={"task": {"name": "own", **values}})

    table = frame([task(a=1, b=1, c=True, d=1, e=None), task(a=2, b=0.5, c=False, d="x", e=None)])
    found = {name: str(table[f"task.{name}"].dtype) for name in "abcde"}
    assert found == {"a": "Int64", "b": "float64", "c": "boolean", "d": "string", "e": "string"}
    assert isinstance(table, pd.DataFrame)
