"""docs/sharding.md walks through prefetch, offload and updates, each in a few files; docs/architecture.md draws the objects."""

import os
import re
from pathlib import Path

import pytest

SOURCE = Path(os.environ.get("CAPSTAN_SOURCE", Path(__file__).parents[2]))
WALKS = ("Prefetch, from the hook to the memory", "Offload, from a choice to a copy", "Updates that do not wait for the step")
MOST_FILES = 6  # a newcomer holds no more in mind


def section(document, title):
    text = (SOURCE / "docs" / document).read_text()
    return re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.M | re.S).group(1)


def headers_named(text):
    """Each once, from the root of the sources; those of the page's own folder are named without it."""
    names = set(re.findall(r"\b(?:[a-z_]+/)*[a-z_]+\.h\b", text))
    return {name if "/" in name else f"shard/{name}" for name in names}


@pytest.mark.parametrize("title", WALKS)
def test_a_walk_has_a_picture_and_names_at_most_six_files(title):
    text = section("sharding.md", title)
    named = headers_named(text)
    assert text.count("```") >= 2 and 3 <= len(named) <= MOST_FILES, sorted(named)
    assert not [name for name in named if not (SOURCE / "capstan" / name).is_file()]


def test_every_object_that_is_drawn_exists():
    picture = section("architecture.md", "The objects of an engine").split("```")[1]
    drawn = set(re.findall(r"\b[A-Z][a-z]+(?:[A-Z][a-z]+)*\b", picture))
    headers = "".join(path.read_text() for path in (SOURCE / "capstan").rglob("*.h"))
    assert {"Engine", "ShardedModel", "Gatherer", "UpdateQueue"} <= drawn
    assert not [name for name in drawn if not re.search(rf"\b(?:class|struct) {name}\b(?!;)", headers)]


def test_a_name_is_found_with_and_without_its_folder():
    assert headers_named("`gather.h`, store/home.h and x.cpp; gather.h") == {"shard/gather.h", "store/home.h"}
