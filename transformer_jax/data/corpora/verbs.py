"""The verb phrases of ``phrasebook``.

``VP.h.past.3s.base`` is a verb phrase with a human subject: in Portuguese the third person singular
of the past, in English the bare verb after *did*. A verb phrase is either a journey to a place
(``VJ``) or anything else (``VE``), because the future expresses the two differently.
"""

from transformer_jax.data.corpora import words
from transformer_jax.data.corpora.grammar import Grammar
from transformer_jax.data.corpora.morphology import PERSONS, english_forms, portuguese_forms
from transformer_jax.data.corpora.phrases import GENDERS, two_meanings

__all__ = ["VERB_FORMS", "add_verbs"]

# The forms of a verb that a clause chooses from: Portuguese form, English form.
FINITE = [("pres.3s", "s"), ("pres.3s", "base")]
FINITE += [(f"pres.{person}", "base") for person in ("1s", "1p", "3p")]
FINITE += [(f"past.{person}", form) for person in PERSONS for form in ("past", "base")]
VERB_FORMS = [*FINITE, ("inf", "base"), ("ger", "ing")]
# Only journeys: "irá viajar a Roma amanhã", "is travelling to Rome tomorrow".
PLANNED = ("inf", "ing")

PEOPLE = ("someone", "person", "trade")
MARKS = "=*!~+@"  # documented at words.VERBS
WANTING = "querer|want to,gostar de|like to,precisar|need to,ter que|have to,começar a|start to"


def _verbs(g: Grammar) -> None:
    for line in words.VERBS.strip().splitlines():
        portuguese, english, who, what = (cell.strip() for cell in line.split("|"))
        marks = what[: len(what) - len(what.lstrip(MARKS))]
        links, _, classes = what.lstrip(MARKS).rpartition(":")
        preposition, _, particle = links.partition("/")
        before = f"{preposition} " if preposition else ""
        after = f"{particle} " if particle else ""
        who = "s" if "~" in marks else who
        tag = "" if "*" in marks else f"v:{portuguese}"
        _verb(g, portuguese, english, who, classes.split(), (before, after), tag, marks)
    for entry in WANTING.split(","):
        portuguese, english = entry.split("|")
        verb, _, link = portuguese.partition(" ")
        ours, theirs = portuguese_forms(verb), english_forms(english)
        for form, other in FINITE:
            source = " ".join(f"{ours[form]} {link} <Wish>".split())
            g.rule(f"VP.h.{form}.{other}", source, f"{theirs[other]} <Wish>", 3.0)
    ours, theirs = portuguese_forms("ter"), english_forms("have")
    for form, other in VERB_FORMS[:-1]:
        for name in ("animal", "vehicle", "instrument", "text"):
            source, target = f"{ours[form]} <NI.{name}>", f"{theirs[other]} <NI.{name}>"
            g.rule(f"VF.s.{form}.{other}", source, target, 0.4, tag="v:ter", join="vn")


def _verb(
    g: Grammar,
    portuguese: str,
    english: str,
    who: str,
    classes: list[str],
    links: tuple[str, str],
    tag: str,
    marks: str,
) -> None:
    """Adds one line of the table of verbs, in all its forms."""
    ours, theirs = portuguese_forms(portuguese), english_forms(english)
    before, after = links
    journey, place = "+" in marks, ""
    if "@" in marks:
        place = "REL" if classes == ["-"] else "LOC"
    for form, other in [*VERB_FORMS, *([PLANNED] if journey else [])]:
        verb, translated = ours[form], theirs[other]
        if "=" in marks and form == "ger":
            continue
        for subject in who:
            if subject not in "hs" and form[-2:] in ("1s", "1p"):
                continue
            key = f"{subject}.{form}.{other}"
            alone = before == "com " or place or "=" in marks or portuguese == "dormir"
            symbols = [f"{'VF' if alone else 'VG' if journey else 'VC'}.{key}"]
            if portuguese == "ir" and form == "inf":  # never "irá ir"
                symbols = []
            bare = (form, other) == ("inf", "base") and subject in "hs"
            if bare and portuguese != "gostar" and "!" not in marks:
                symbols.append("Wish")
            # The place where somebody is, or where a thing is then.
            where = f" <{place}.{subject if place == 'REL' else 't'}>" if place else ""
            if classes == ["-"]:
                for symbol in symbols:
                    source, target = f"{verb}{where}", f"{translated}{where}"
                    g.rule(symbol, source, target, 0.7, tag=tag, join="vn")
            for name in classes if classes != ["-"] else []:
                phrase = f"NPP.{name}" if before else f"NP.{name}"
                if phrase not in g.rules:
                    raise ValueError(f"{portuguese}: no class {name}")
                nouns = sum(len(g.rules.get(f"N.{name}.{gn}", ())) for gn in GENDERS) / 2
                meant = 5 if two_meanings(name) else 3
                weight = max(nouns, meant) / sum([8] * len(classes)) if not before else 0.6
                for symbol in symbols:
                    source = f"{verb} {before}<{phrase}>{where}"
                    target = f"{translated} {after}<{phrase}>{where}"
                    g.rule(symbol, source, target, weight, tag=tag, join="vn")
                if not before and not place and tag and name not in PEOPLE and subject == "h":
                    g.rule(f"VT.{name}.{form}.{other}", verb, translated, tag=tag)
        if not before and not place and tag and set(classes) - {"-", *PEOPLE}:
            g.rule(f"VT.{form}.{other}", verb, translated)
        if portuguese == "fazer":  # "made a cake", but "what did she do?"
            g.rule(f"VT.{form}.{other}", verb, english_forms("do")[other], 2.0)


def _weight(g: Grammar, symbol: str) -> float:
    return sum((rule.weight for rule in g.rules.get(symbol, ())), 0.0)


def _verb_phrases(g: Grammar) -> None:
    """Adds verb phrases alone, and with company."""
    kin = {f"ND.{c}.{gn}": 1.0 for c in ("person", "trade") for gn in ("ms", "fs")}
    g.copy("Company", {**kin, "Name": 4.0})
    for subject in "hsatvb":
        for form, other in [*VERB_FORMS, PLANNED]:
            key = f"{subject}.{form}.{other}"
            g.copy(f"VF.{key}", {f"VC.{key}": _weight(g, f"VC.{key}")})
            for whole, social, single in (("VE", "VC", "VF"), ("VJ", "VG", "VG")):
                g.copy(f"{whole}.{key}", {f"{single}.{key}": 45.0})
                if subject == "h" and f"{social}.{key}" in g.rules:
                    source, target = f"<{social}.{key}> com <Company>", "with <Company>"
                    g.rule(f"{whole}.{key}", source, f"<{social}.{key}> {target}", 5.0)
            if (form, other) != PLANNED:
                often = {"VE": _weight(g, f"VF.{key}"), "VJ": _weight(g, f"VG.{key}")}
                g.copy(f"VP.{key}", {f"{kind}.{key}": w for kind, w in often.items()})


def _going(g: Grammar) -> None:
    """Adds complements of the future of "ir", which is its own auxiliary: "irá ao museu"."""
    for name in ("building", "place"):
        source = f"a <NPP.{name}>"
        for form, go in english_forms("go").items():
            if form in ("base", "ing"):
                g.rule(f"Going.{form}", source, f"{go} to <NPP.{name}>", tag="v:ir", join="vn")


def add_verbs(g: Grammar) -> None:
    """Adds verbs with their objects, companions and complements."""
    _verbs(g)
    _verb_phrases(g)
    _going(g)
