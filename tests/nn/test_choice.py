"""Which variant with which options stands at which depth."""

import pytest

from efficient_attn.attention import OptionError
from efficient_attn.nn.choice import variant_at

CYCLE = ["local_window", "full"]


def test_one_variant_everywhere() -> None:
    assert variant_at("full", None, 3) == ("full", {})
    assert variant_at("performer", {"num_features": 8}, 2) == ("performer", {"num_features": 8})


def test_shared_options_go_to_those_that_know_them() -> None:
    assert variant_at(CYCLE, {"window": 4}, 2) == ("local_window", {"window": 4})
    assert variant_at(CYCLE, {"window": 4}, 3) == ("full", {})


def test_options_by_name_and_by_place() -> None:
    by_name = {"full": {"implementation": "naive"}}
    assert variant_at(CYCLE, by_name, 0) == ("local_window", {})
    assert variant_at(CYCLE, by_name, 1) == ("full", {"implementation": "naive"})
    assert variant_at(CYCLE, [{"window": 2}, {}], 4) == ("local_window", {"window": 2})


def test_option_that_no_variant_knows_is_refused() -> None:
    with pytest.raises(OptionError, match=r"windw.*local_window: .*window"):
        variant_at(CYCLE, {"windw": 4}, 0)


@pytest.mark.parametrize(("variant", "options"), [(CYCLE, [{}]), ("full", [{}])])
def test_list_of_options_needs_a_list_of_variants(variant, options) -> None:
    with pytest.raises(ValueError, match="variant_options is a list"):
        variant_at(variant, options, 0)


@pytest.mark.parametrize("variant", [[], [1], ["full", None]])
def test_what_is_no_list_of_names_is_refused(variant) -> None:
    with pytest.raises(ValueError, match="repeated over depth"):
        variant_at(variant, None, 0)
