"""The long campaigns start: they are run by hand, and nothing else would notice."""

from importlib import import_module

import pytest

from tests.campaigns import CAMPAIGNS, Campaign


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_a_campaign_is_there(name: str) -> None:
    module, _, class_name = CAMPAIGNS[name].partition(":")
    assert issubclass(getattr(import_module(module), class_name), Campaign)
