"""The table of doors is complete: what the package offers, a door has, and each law knows it."""

import pytest

from tests.doors import enumerated, laws, table, uses
from tests.doors.readers import Form

HANDLES = sorted(enumerated.handles())


def test_every_handle_of_the_package_opens_a_door_or_has_a_reason():
    unknown = [handle for handle in HANDLES if not table.named(handle)]
    assert not unknown, f"add these to a door of tests/doors/table.py, or to INSIDE: {unknown}"


def test_no_handle_is_both_a_door_and_inside():
    reasons = set(table.INSIDE)
    both = [
        h
        for h in HANDLES
        if any(door.has(h) for door in table.DOORS) and reasons & set(table.named(h))
    ]
    assert not both


def test_the_table_names_nothing_that_is_not_there():
    patterns = {name for door in table.DOORS for name in door.handles}
    patterns |= {name for names in table.INSIDE.values() for name in names}
    one = lambda pattern: table.Door("", "use", (pattern,))
    unused = [name for name in sorted(patterns) if not any(map(one(name).has, HANDLES))]
    assert not unused, f"nothing in the package has these names: {unused}"


def test_there_is_one_module_for_each_law():
    assert [law.LAW for law in laws.find_laws()] == list(laws.NUMBERS)


def test_names_of_doors_are_distinct():
    names = [door.name for door in table.DOORS]
    assert len(names) == len(set(names))


def test_small_models_are_those_of_doors():
    assert uses.USES.keys() <= {door.name for door in table.of_kind("use")}


@pytest.mark.parametrize("door", [d for d in table.DOORS if d.write], ids=lambda door: door.name)
def test_readers_return_what_was_written(door, tmp_path):
    texts = [f"word{i}" for i in range(6)]
    assert door.read(door.write(tmp_path, texts, Form())) == texts


@pytest.mark.parametrize("law", laws.find_laws(), ids=lambda law: f"law {law.LAW}")
def test_every_law_is_about_every_door_of_its_kinds(law):
    names = {door.name for door in table.of_kind(*law.KINDS)}
    cases, exempt = set(law.CASES), set(law.EXEMPT)
    assert cases | exempt == names, (
        f"missing: {names - cases - exempt}; odd: {(cases | exempt) - names}"
    )
    assert not cases & exempt
    assert all(isinstance(why, str) and len(why) > 10 for why in law.EXEMPT.values())
