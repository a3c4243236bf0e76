"""The cost model: known costs with noise are found again, ranges cover, and JSON keeps it all."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from synthetic import cells

from efficient_attn.analysis.cost_fit import Point, fit_rivals
from efficient_attn.analysis.predict import LONGEST, CostModel, Size
from efficient_attn.analysis.rivals import Rivals, grounds

NOISE = 0.03
LENGTHS = [2**power for power in range(7, 15)]


def quadratic(x: Size) -> float:
    work = x.batch * x.heads * x.length * x.keys * x.head_dim
    return 0.05 + 2e-9 * work * small_heads(x)


def windowed(x: Size) -> float:
    tokens = x.batch * x.heads * (x.length + x.keys)
    return 0.3 + tokens * x.head_dim * (3e-9 * x.knob * small_heads(x) + 2e-8) * cache(x)


def projected(x: Size) -> float:
    return 0.2 + x.batch * x.heads * (x.length + x.keys) * x.head_dim * (2e-9 * x.knob + 1e-8)


def small_heads(x: Size) -> float:
    """Narrow heads use the machine badly: nothing that a product of sizes can tell."""
    return 1 + 0.4 * math.exp(-((math.log2(x.head_dim) - 5) ** 2))


def cache(x: Size) -> float:
    """Beyond some size everything takes half as long again."""
    volume = math.log2(x.batch * x.heads * x.length * x.head_dim)
    return 1 + 0.5 / (1 + math.exp(-2 * (volume - 21)))


TRUTHS = {"full": quadratic, "local_window": windowed, "linformer": projected}


def sizes(rng: np.random.Generator, count: int) -> list[Size]:
    found = []
    for _ in range(count):
        length = int(2 ** rng.uniform(8, 12))
        found.append(
            Size(
                length,
                length,
                int(rng.choice([1, 2, 4, 8])),
                int(rng.choice([4, 8, 12, 16])),
                int(rng.choice([32, 64, 96, 128])),
                float(int(2 ** rng.uniform(5, 9))),
            )
        )
    return found


def own(name: str, size: Size) -> Size:
    return replace(size, knob=1.0) if name == "full" else size


def measured(seed: int) -> tuple[dict[str, CostModel], np.random.Generator]:
    """A curve over lengths and 24 scattered sizes for each of three contestants."""
    rng = np.random.default_rng(seed)
    rivals = {}
    for name, truth in TRUTHS.items():
        asked = [Size(n, n, 1, 8, 64, 128.0) for n in LENGTHS] + sizes(rng, 24)
        asked = [own(name, size) for size in asked]
        values = [truth(size) * math.exp(NOISE * rng.normal()) for size in asked]
        rivals[name] = [Point(size, value, 0.01) for size, value in zip(asked, values, strict=True)]
    return fit_rivals(rivals), rng


def test_sizes_that_were_held_out_are_predicted_within_twice_the_noise_and_covered() -> None:
    errors, covered = [], []
    for seed in range(6):
        models, rng = measured(seed)
        for name, truth in TRUTHS.items():
            for size in sizes(rng, 40):
                there = models[name].at(own(name, size))
                if there.kind == "interpolated":
                    errors.append(math.log(there.value / truth(own(name, size))))
                    again = truth(own(name, size)) * math.exp(NOISE * rng.normal())
                    covered.append(there.low <= again <= there.high)
    assert len(errors) > 500
    assert math.sqrt(np.mean(np.square(errors))) < 2 * NOISE
    assert 0.90 <= np.mean(covered) <= 0.99


def drifting(rng: np.random.Generator) -> dict[str, CostModel]:
    """As `measured`, with drift of 20 % between cells and noise of 2 % within them."""
    asked = [Size(n, n, 1, 8, 64, 128.0) for n in LENGTHS] + sizes(rng, 24)
    drift = np.exp(rng.normal(0, 0.2, len(asked)))
    rivals = {}
    for name, truth in TRUTHS.items():
        noise = np.exp(0.02 * rng.normal(size=len(asked)))
        values = [truth(own(name, x)) for x in asked] * drift * noise
        rivals[name] = [
            Point(own(name, x), value, 0.02, str(cell))
            for cell, (x, value) in enumerate(zip(asked, values, strict=True))
        ]
    return fit_rivals(rivals)


def test_what_slows_a_whole_cell_leaves_ratios_sure() -> None:
    errors, covered, widths = [], [], []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        models = drifting(rng)
        for size in sizes(rng, 40):
            one, other = (models[n].at(own(n, size)) for n in ("full", "linformer"))
            if one.kind == other.kind == "interpolated":
                truth = TRUTHS["full"](own("full", size)) / TRUTHS["linformer"](size)
                error = math.log(one.value / other.value / truth)
                reach = math.hypot(one.pair_width, other.pair_width)
                errors.append(error)
                covered.append(abs(error) <= reach)
                widths.append(reach / math.log(one.high / one.value))
    assert np.mean(covered) > 0.9
    assert np.median(widths) < 0.5
    assert math.sqrt(np.mean(np.square(errors))) < 0.1


def test_times_under_drift_are_covered_by_their_ranges() -> None:
    covered = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        models = drifting(rng)
        for name, truth in TRUTHS.items():
            for size in sizes(rng, 40):
                there = models[name].at(own(name, size))
                if there.kind == "interpolated":
                    again = truth(own(name, size)) * math.exp(rng.normal(0, 0.2))
                    covered.append(there.low <= again <= there.high)
    assert 0.88 <= np.mean(covered) <= 0.99


def test_the_model_and_the_formula_of_its_docstring_agree_after_json() -> None:
    """Written out a second time, as a page would, from nothing but the plain data."""
    models, rng = measured(0)
    for name, model in models.items():
        plain = json.loads(json.dumps(model.to_dict(), allow_nan=False))
        assert CostModel.from_dict(plain) == model
        for size in [*sizes(rng, 5), Size(60000, 1000, 9, 3, 64, 700.0, 0.2)]:
            there = model.at(own(name, size))
            value, low, high = by_hand(plain, own(name, size))
            assert there.value == pytest.approx(value, rel=1e-9)
            assert (there.low, there.high) == pytest.approx((low, high), rel=1e-9)


def by_hand(m: dict, x: Size) -> tuple[float, float, float]:
    N, M, B, H, d, K = x.length, x.keys, x.batch, x.heads, x.head_dim, x.knob
    G, S = B * H, N + M
    terms = {
        "1": 1,
        "GSKd": G * S * K * d,
        "GSd": G * S * d,
        "GSK": G * S * K,
        "GS": G * S,
        "G": G,
        "BSE2": B * S * (H * d) ** 2,
        "GNMd": G * N * M * d,
        "GNM": G * N * M,
    }
    log = math.log2
    u = [log(G), log(N), log(M / N), log(d), log(K), 4 * x.padding]
    value = sum(weight * terms[name] for name, weight in m["weights"].items())
    variance = 0.0
    for part, at in ((m["own"], u), (m["common"], u[:4] + u[5:])):
        correction, near = 0.0, 0.0
        for point, alpha in zip(part["points"], part["alphas"], strict=True):
            distances = [(a - b) / part["scale"] for a, b in zip(at, point, strict=True)]
            g = [math.exp(-0.5 * distance**2) for distance in distances]
            correction += alpha * (0.5 * sum(g) / len(g) + 0.5 * math.prod(g))
            near = max(near, math.prod(g))
        value *= math.exp(correction)
        if part["points"]:
            variance += part["noise"] ** 2 + part["spread"] ** 2 * (1 - near)
    octaves = sum(
        max(0.0, low - a, a - high) for a, low, high in zip(u, m["low"], m["high"], strict=True)
    )
    h = m["quantile"] * math.sqrt(variance) * (1 + octaves / 2)
    return value, value * math.exp(-h), value * math.exp(h)


def test_outside_the_measured_range_is_wider_and_says_where() -> None:
    models, _ = measured(1)
    model = models["local_window"]
    inside = model.at(Size(1000, 1000, 2, 8, 64, 128.0))
    assert inside.kind == "interpolated"
    assert inside.outside == ()
    beyond = model.at(Size(2**19, 2**19, 2, 8, 64, 128.0))
    assert beyond.kind == "extrapolated"
    assert beyond.outside == ("length",)
    assert beyond.width > 2 * inside.width
    assert model.at(Size(1000, 1000, 64, 8, 64, 4096.0)).outside == ("batch × heads", "knob")
    assert model.at(Size(1000, 500, 2, 8, 64, 128.0)).outside == ("keys per query",)
    assert model.at(Size(1000, 1000, 2, 8, 64, 128.0, 0.5)).outside == ("padding",)


def test_beyond_a_million_tokens_nothing_is_said() -> None:
    models, _ = measured(1)
    assert models["full"].at(Size(LONGEST, LONGEST, 1, 8, 64)).value > 0
    with pytest.raises(ValueError, match="measure it"):
        models["full"].at(Size(LONGEST + 1, LONGEST + 1, 1, 8, 64))


@pytest.mark.parametrize("name", ["local_window", "linformer"])
def test_what_is_linear_stays_linear_at_a_million_tokens(name: str) -> None:
    for seed in range(4):
        models, _ = measured(seed)
        size = Size(LONGEST, LONGEST, 1, 8, 64, 128.0)
        assert models[name].at(size).value == pytest.approx(TRUTHS[name](size), rel=0.25)
        assert not {"GNM", "GNMd"} & set(models[name].weights)


def test_the_quadratic_stays_quadratic() -> None:
    models, _ = measured(2)
    size = Size(LONGEST, LONGEST, 1, 8, 64)
    assert models["full"].at(size).value == pytest.approx(quadratic(size), rel=0.25)


def test_exact_values_are_found_exactly() -> None:
    points = [Point(Size(n, n, 1, 8, 64), 4.0 * 8 * n * 64) for n in LENGTHS]
    model = fit_rivals({"full": points})["full"]
    assert model.at(Size(3000, 3000, 1, 8, 64)).value == pytest.approx(4 * 8 * 3000 * 64, rel=1e-3)


def test_a_few_percent_of_bend_in_exact_bytes_are_no_square() -> None:
    bent = {64: 149_760, 128: 291_072, 256: 614_912}  # of fused attention, 8 heads of 64
    points = [Point(Size(n, n, 1, 8, 64), value) for n, value in bent.items()]
    predicted = fit_rivals({"full": points})["full"].at(Size(4096, 4096, 1, 8, 64)).value
    assert predicted == pytest.approx(4096 * bent[256] / 256, rel=0.15)


def test_a_noisy_point_weighs_little() -> None:
    points = [Point(Size(n, n, 1, 8, 64), 1e-3 * n, 0.01) for n in LENGTHS]
    spoiled = [
        replace(one, value=5 * one.value, noise=1.0) if i == 4 else one
        for i, one in enumerate(points)
    ]
    model = fit_rivals({"full": spoiled})["full"]
    assert model.at(Size(3000, 3000, 1, 8, 64)).value == pytest.approx(3.0, rel=0.1)


def test_two_lengths_give_no_model_and_values_must_be_positive() -> None:
    points = [Point(Size(n, n, b, 8, 64), 1.0) for n in (256, 512) for b in (1, 2, 4)]
    assert fit_rivals({"full": points}) == {}
    with pytest.raises(ValueError, match="positive"):
        fit_rivals({"full": [Point(Size(n, n, 1, 8, 64), 0.0) for n in LENGTHS]})


def test_more_points_than_are_kept_still_predict() -> None:
    rng = np.random.default_rng(0)
    points = [Point(size, projected(size), 0.01) for size in sizes(rng, 1000)]
    model = fit_rivals({"linformer": points})["linformer"]
    assert len(model.own.points) == 256
    size = Size(777, 777, 2, 8, 64, 99.0)
    assert model.at(size).value == pytest.approx(projected(size), rel=0.02)


def test_models_of_stored_records_are_plain_data_and_find_the_truth() -> None:
    records = cells((128, 256, 512, 1024, 2048, 4096))
    for ground, members in grounds(records).items():
        rivals = Rivals(ground, members)
        plain = json.loads(json.dumps(rivals.to_dict(), allow_nan=False))
        names = [one["contestant"] for one in plain["entrants"]]
        assert names[0] == "full"
        assert len(names) == len(set(names)) == 6
        full = CostModel.from_dict(plain["entrants"][0]["time"])
        factor = 3 if ground.pass_ == "forward_backward" else 1
        truth = factor * (0.05 + 4e-6 * 3000**2)
        assert full.at(Size(3000, 3000, 1, 8, 64)).value == pytest.approx(truth, rel=0.1)
        memory = CostModel.from_dict(plain["entrants"][0]["memory"])
        assert memory.at(Size(3000, 3000, 1, 8, 64)).value == pytest.approx(2048 * 3000, rel=1e-2)


def test_projections_are_a_term_of_modules_alone() -> None:
    rng = np.random.default_rng(0)
    asked = [replace(size, knob=1.0) for size in sizes(rng, 40)]
    points = [Point(x, 1e-9 * x.batch * 2 * x.length * (x.heads * x.head_dim) ** 2) for x in asked]
    module = fit_rivals({"full": points}, projections=True)["full"]
    assert set(module.weights) == {"BSE2"}
    assert "BSE2" not in fit_rivals({"full": points})["full"].weights
    (ground,) = grounds(cells((256, 512, 1024), ("full",), PATTERN, PASS, scope="module"))
    records = cells((256, 512, 1024), ("full",), PATTERN, PASS, scope="module")
    assert 0 in Rivals(ground, records).times


PATTERN, PASS = ("noncausal_self",), ("forward",)
