"""Other people's attention as contestants: what each claims, refuses and is found to do."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from synthetic import cost

import efficient_attn as ea
from efficient_attn.analysis.pick import Request, pick
from efficient_attn.attention import AttentionMask, make_core, resolve_options, variant_class
from efficient_attn.bench import environment
from efficient_attn.bench.passes import build
from efficient_attn.bench.plan import make_plan
from efficient_attn.bench.workload import Workload

CONF = Path(__file__).parents[2] / "conf" / "attention"
ENTRIES = {path.stem: yaml.safe_load(path.read_text()) for path in CONF.glob("peer_*.yaml")}
HEADS, WIDTH, N = 2, 16, 256

MODULES = {
    "torch_fused": "torch",
    "transformers_attention": "transformers",
    "fast_transformers": "fast_transformers",
}
"""Module that an adapter's file imports, where it is not called like the file."""


def path_of(entry: str) -> str:
    path: str = ENTRIES[entry]["variant"]
    file = path.rpartition(":")[0].rpartition(".")[2]
    pytest.importorskip(MODULES.get(file, file), exc_type=ImportError)
    return path


def core_of(path: str, **options: Any) -> Any:
    resolved = resolve_options(path, options, max_len=N)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make_core(path, HEADS, WIDTH, **resolved).eval()


def is_module(entry: str) -> bool:
    return hasattr(variant_class(ENTRIES[entry]["variant"]), "whole_module")


@pytest.fixture
def conform() -> Any:
    from efficient_attn.peers import conform

    return conform


@pytest.mark.parametrize("entry", sorted(ENTRIES))
def test_an_entry_names_a_peer_and_its_defaults(entry: str) -> None:
    values = dict(ENTRIES[entry])
    cls: Any = variant_class(values.pop("variant"))
    assert values.pop("name") == cls.name
    assert cls.name == "peer:" + entry.removeprefix("peer_").replace("_", "-")
    assert len(cls.differs) > 5
    assert cls.counterpart is None or cls.counterpart in ea.list_variants()
    assert {**values, "version": None} == dict(cls.spec.options)


@pytest.mark.parametrize("entry", sorted(ENTRIES))
def test_output_is_the_dense_formula(entry: str) -> None:
    if entry == "peer_flex_attention":
        pytest.skip("compiling takes too long for a test; the probes of a sweep hold it")
    core = core_of(path_of(entry))
    if entry == "peer_transformers_bigbird":
        pytest.skip("more than twelve blocks, and no formula")
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, HEADS, N, WIDTH) for _ in range(3))
    x = torch.randn(2, N, HEADS * WIDTH)
    claims = 0
    for causal in (False, True):
        if causal and not core.capabilities.causal_self:
            continue
        with torch.no_grad():
            if is_module(entry):
                out, expected = core.whole(x, causal=causal, padding=None), core.token_formula
                expected = expected(x, causal=causal)
            else:
                out = core(q, k, v, AttentionMask(causal))
                expected = core.formula(q, k, v, causal=causal)
        if expected is None:
            continue
        claims += 1
        if (entry, causal) == ("peer_performer_pytorch", True):
            assert (out - expected).abs().max() > 1e-3, "its 1e-6 no longer spoils early tokens"
        else:
            torch.testing.assert_close(out.double(), expected, atol=2e-5, rtol=1e-4)
    assert claims or core.counterpart is None


@pytest.mark.parametrize("entry", sorted(ENTRIES))
def test_what_a_peer_cannot_do_is_refused(entry: str) -> None:
    path = path_of(entry)
    core = core_of(path)
    x = torch.randn(1, N, HEADS * WIDTH)
    if is_module(entry):
        module = core.whole_module()
        heads = torch.randn(1, HEADS, N, WIDTH)
        with pytest.raises(ea.UnsupportedAttention, match="scope=module"):
            core(heads, heads, heads, AttentionMask())
    else:
        module = ea.MultiHeadAttention(HEADS * WIDTH, HEADS, path)
    with pytest.raises(ea.UnsupportedAttention):
        module(x, torch.randn(1, N, HEADS * WIDTH))
    if not core.capabilities.causal_self:
        with pytest.raises(ea.UnsupportedAttention):
            module(x, is_causal=True)
    if not core.capabilities.key_padding:
        with pytest.raises(ea.UnsupportedAttention):
            module(x, key_padding_mask=torch.zeros(1, N, dtype=torch.bool))


@pytest.mark.parametrize(
    ("entry", "scope"),
    [
        ("peer_sdpa_band", "core"),
        ("peer_linformer_core", "core"),
        ("peer_local_attention", "module"),
        ("peer_linformer", "module"),
        ("peer_torch_multihead_attention", "module"),
        ("peer_swin_transformer_pytorch", "module"),
    ],
)
def test_a_peer_goes_through_a_pass_with_gradients(entry: str, scope: Any) -> None:
    work = Workload(heads=HEADS, head_dim=WIDTH, length=N, scope=scope, pass_="forward_backward")
    call = build(path_of(entry), {}, work)
    assert call().isfinite().all()
    assert all(x.grad is not None for x in call.subject.leaves if x.requires_grad)
    assert call.subject.core.options.version


def test_a_package_that_is_missing_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    cls: Any = variant_class(ENTRIES["peer_local_attention"]["variant"])

    def absent(module: str) -> None:
        raise ImportError(f"No module named {module!r}")

    monkeypatch.setattr("efficient_attn.peers.base.import_module", absent)
    with pytest.raises(ea.UnsupportedAttention, match="efficient-attn\\[peers\\]"):
        cls(HEADS, WIDTH, cls.Options())


def test_another_version_of_the_package_is_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    path = ENTRIES["peer_local_attention"]["variant"]
    hashes = set()
    for version in ("1.0", "1.1"):
        monkeypatch.setattr(environment, "package_version", lambda name, v=version: v)
        hashes.add(environment.code_hash.__wrapped__("cost", path))
    assert len(hashes) == 2


@pytest.mark.parametrize("experiment", ["peers", "peers_long", "peers_others"])
def test_experiments_plan_peers_beside_ours(experiment: str, tmp_path: Path) -> None:
    cells = make_plan([f"+experiment={experiment}", f"results={tmp_path}"]).cells
    for cell in cells:
        names = [one.name for one in cell.contestants]
        assert "full" in names
        assert any(name.startswith("peer:") for name in names)
        for one in cell.contestants:
            if one.name == "shifted_window":
                rows, columns = one.options["grid"]
                assert rows * columns == cell.request["length"]


def test_verdicts_tell_right_from_wrong(conform: Any) -> None:
    right = conform.conformance(ENTRIES["peer_sdpa_band"]["variant"])
    assert not right.fails
    assert not right.incorrect
    assert set(right.errors) == {"noncausal_self", "causal_self"}


def test_a_causal_leak_disqualifies(conform: Any) -> None:
    """performer-pytorch's stabiliser is a maximum over later keys too."""
    leaks = conform.conformance(path_of("peer_performer_pytorch"))
    assert "causal_self" in leaks.fails
    assert leaks.incorrect == ["causal_self"]


def test_neighbours_in_the_batch_disqualify(conform: Any) -> None:
    couples = conform.conformance(path_of("peer_nystrom_attention"))
    assert "batch independence" in couples.fails
    assert couples.incorrect == ["noncausal_self"]


def test_a_wrong_formula_disqualifies(conform: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ENTRIES["peer_sdpa"]["variant"]
    monkeypatch.setattr(
        variant_class(path), "forward", lambda self, q, k, v, mask, dropout_p=0.0: v.clone()
    )
    verdict = conform.conformance(path)
    assert set(verdict.incorrect) == {"noncausal_self", "causal_self"}
    assert any(name.startswith("formula") for name in verdict.fails)


AHEAD = Path(__file__).parents[2] / "benchmarks" / "ahead.py"


def test_the_fastest_correct_peer_is_picked_by_pattern(conform: Any) -> None:
    compare = runpy.run_path(str(AHEAD))["compare"]
    times = {
        "performer": 10.0,
        "peer:performer-pytorch": 12.0,
        "peer:fast-transformers-favor": 30.0,
    }
    records = []
    for pattern in ("noncausal_self", "causal_self"):
        for name, median in times.items():
            made = cost(name, 512, median=median, pattern=pattern)
            entry = "peer_" + name.removeprefix("peer:").replace("-", "_")
            path = ENTRIES[entry]["variant"] if entry in ENTRIES else name
            records.append(replace(made, variant=path))
    sound = conform.Verdict("1", {}, {}, [])
    leaky = conform.Verdict("1", {"causal_self": "leaks"}, {}, ["causal_self"])
    verdicts = {"peer:performer-pytorch": leaky, "peer:fast-transformers-favor": sound}
    rows = list(compare(records, verdicts))
    picked = {row.pattern: row for row in rows if row.fastest}
    assert picked["noncausal_self"].peer.contestant == "peer:performer-pytorch"
    assert picked["causal_self"].peer.contestant == "peer:fast-transformers-favor"
    assert picked["causal_self"].ratio.value == pytest.approx(3.0, rel=0.1)
    assert picked["causal_self"].ratio.paired
    none = list(compare(records, {}))
    assert [row.peer for row in none if row.fastest or row.peer is None] == [None, None]
    marked = {record.contestant for record in conform.marked(records, verdicts)}
    assert marked == {"performer", "peer:performer-pytorch †", "peer:fast-transformers-favor"}


def test_verdicts_are_kept_and_renewed_for_another_version(
    conform: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probed = []

    def conformance(path: str) -> Any:
        probed.append(path)
        return conform.Verdict("2", {}, {}, [])

    monkeypatch.setattr(conform, "conformance", conformance)
    path = ENTRIES["peer_sdpa"]["variant"]
    made = replace(cost("peer:sdpa", 512, options={"version": "2"}), variant=path)
    for _ in range(2):
        assert conform.verdicts(tmp_path, [made])["peer:sdpa"].version == "2"
    assert len(probed) == 1
    conform.verdicts(tmp_path, [replace(made, options={"version": "3"})])
    assert len(probed) == 2


def test_the_readme_says_what_each_peer_does_differently() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    for entry in ENTRIES.values():
        cls: Any = variant_class(entry["variant"])
        said = cls.differs.removeprefix("no variant of ours computes it; ")
        assert any(f"`{cls.name}`" in line and said in line for line in readme.splitlines())


def test_a_pick_is_made_among_ours() -> None:
    records = [cost("full", 512), cost("peer:sdpa", 512, median=0.001)]
    ranking = pick(records, Request(length=512))
    assert [choice.contestant for choice in ranking.choices] == ["full"]
