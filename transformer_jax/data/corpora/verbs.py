"""The verb phrases of ``phrasebook``.

``VP.h.past.3s.base`` is a verb phrase of a human subject: in Portuguese the third person singular
of the past, in English the bare verb that follows *did*.
"""

from transformer_jax.data.corpora import words
from transformer_jax.data.corpora.grammar import Grammar
from transformer_jax.data.corpora.morphology import PERSONS, english_forms, portuguese_forms
from transformer_jax.data.corpora.phrases import GENDERS, two_meanings

__all__ = ["VERB_FORMS", "add_verbs"]

# The two forms of a verb that a clause chooses from: Portuguese form, English form.
FINITE = [("pres.3s", "s"), ("pres.3s", "base")]
FINITE += [(f"pres.{person}", "base") for person in ("1s", "1p", "3p")]
FINITE += [(f"past.{person}", form) for person in PERSONS for form in ("past", "base")]
VERB_FORMS = [*FINITE, ("inf", "base"), ("ger", "ing")]

PEOPLE = ("someone", "person", "trade")
WANTING = "querer|want to,gostar de|like to,precisar|need to,ter que|have to,começar a|start to"


def _verbs(g: Grammar) -> None:
    for line in words.VERBS.strip().splitlines():
        portuguese, english, who, what = (cell.strip() for cell in line.split("|"))
        marks = what[: len(what) - len(what.lstrip("=*!~"))]
        links, _, classes = what.lstrip("=*!~").rpartition(":")
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
    """One line of the table of verbs, in all its forms."""
    ours, theirs = portuguese_forms(portuguese), english_forms(english)
    before, after = links
    for form, other in VERB_FORMS:
        verb, translated = ours[form], theirs[other]
        if "=" in marks and form == "ger":
            continue
        for subject in who:
            if subject not in "hs" and form[-2:] in ("1s", "1p"):
                continue
            key = f"{subject}.{form}.{other}"
            alone = before == "com " or "=" in marks or portuguese == "dormir"
            symbols = [f"VF.{key}"] if alone else [f"VC.{key}"]
            if portuguese == "ir" and form == "inf":  # never "irá ir"
                symbols = []
            if form == "inf" and subject in "hs" and portuguese != "gostar" and "!" not in marks:
                symbols.append("Wish")
            if classes == ["-"]:
                for symbol in symbols:
                    g.rule(symbol, verb, translated, 0.7)
            for name in classes if classes != ["-"] else []:
                phrase = f"NPP.{name}" if before else f"NP.{name}"
                if phrase not in g.rules:
                    raise ValueError(f"{portuguese}: no class {name}")
                nouns = sum(len(g.rules.get(f"N.{name}.{gn}", ())) for gn in GENDERS) / 2
                meant = 5 if two_meanings(name) else 3
                weight = max(nouns, meant) / sum([8] * len(classes)) if not before else 0.6
                for symbol in symbols:
                    source = f"{verb} {before}<{phrase}>"
                    target = f"{translated} {after}<{phrase}>"
                    g.rule(symbol, source, target, weight, tag=tag, join="vn")
                if not before and tag and name not in PEOPLE and subject == "h":
                    g.rule(f"VT.{name}.{form}.{other}", verb, translated, tag=tag)
        if not before and tag and classes != ["-"] and set(classes) - {*PEOPLE}:
            g.rule(f"VT.{form}.{other}", verb, translated)
        if portuguese == "fazer":  # "made a cake", but "what did she do?"
            g.rule(f"VT.{form}.{other}", verb, english_forms("do")[other], 2.0)


def _verb_phrases(g: Grammar) -> None:
    kin = {f"ND.{c}.{gn}": 1.0 for c in ("person", "trade") for gn in ("ms", "fs")}
    g.copy("Company", {**kin, "Name": 4.0})
    for subject in "hsatvb":
        for form, other in VERB_FORMS:
            key = f"{subject}.{form}.{other}"
            own = sum((rule.weight for rule in g.rules.get(f"VC.{key}", ())), 0.0)
            g.copy(f"VF.{key}", {f"VC.{key}": own})
            g.copy(f"VP.{key}", {f"VF.{key}": 45.0})
            if subject == "h":  # in company
                source, target = f"<VC.{key}> com <Company>", f"<VC.{key}> with <Company>"
                g.rule(f"VP.{key}", source, target, 5.0)


def _going(g: Grammar) -> None:
    """What follows the future of "ir", which is its own auxiliary: "irá ao museu"."""
    for name in ("building", "place"):
        going = f"<NPP.{name}>"
        g.rule("Going", f"a {going}", f"go to {going}", tag="v:ir", join="vn")


def add_verbs(g: Grammar) -> None:
    """Adds verbs with their objects, companions and complements."""
    _verbs(g)
    _verb_phrases(g)
    _going(g)
