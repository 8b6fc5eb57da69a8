"""The noun phrases, subjects, times and verb phrases of ``phrasebook``.

Symbols are named by their agreement: ``NP.fruit.fs`` is a noun phrase about fruit, feminine
singular.

``VP.h.past.3s.base`` is a verb phrase with a human subject: in Portuguese the third person singular
of the past, in English the bare verb after *did*. A verb phrase is either a journey to a place
(``VJ``) or anything else (``VE``), because the future expresses the two differently.
"""

from functools import cache

from transformer_jax.data.corpora import lexicon, nouns
from transformer_jax.data.corpora.grammar import Grammar
from transformer_jax.data.corpora.morphology import (
    PERSONS,
    english_forms,
    english_plural,
    portuguese_adjective,
    portuguese_forms,
    portuguese_plural,
)
from transformer_jax.data.corpora.spelling import expand

__all__ = [
    "AGREEMENT",
    "ARTICLES",
    "GENDERS",
    "VERB_FORMS",
    "add_adjectives",
    "add_noun_phrases",
    "add_phrases",
    "add_verbs",
    "two_meanings",
]

# Subjects: Portuguese person, English "to be" in present and past, weight. "você" is a second
# person with third-person verb forms.
AGREEMENT = {
    "1s": ("1s", "am", "was", 1.5),
    "2s": ("3s", "are", "were", 1.0),
    "3s": ("3s", "is", "was", 6.0),
    "1p": ("1p", "are", "were", 1.0),
    "2p": ("3p", "are", "were", 0.6),
    "3p": ("3p", "are", "were", 2.5),
}
GENDERS = ("ms", "fs", "mp", "fp")
ARTICLES = {"ms": "o", "fs": "a", "mp": "os", "fp": "as"}
MASS = ("food", "drink", "remedy")  # with "the" or without an article, never counted
UNOWNED = ("someone", "place", "building", "transport", "bank", "cape", "leaf", "tree", "show")
POSSESSIVES = ("my", "our", "your")
BARE = ("sport", "subject", "drums")  # never with an article
# Never with "very".
ABSOLUTE = (
    "delicioso vermelho azul verde amarelo preto branco "
    "quebrado rasgado aceso marcado descarregado internacional "
    "elétrico público triangular"
)


def _entries(table: str, comma: str = ",") -> list[list[str]]:
    """Parses ``a:b:c, d:e:f`` into lists."""
    return [entry.strip().split(":") for entry in table.split(comma) if entry.strip()]


@cache
def _ambiguous() -> set[str]:
    """Nouns in two classes."""
    every = [entry[0] for table in nouns.NOUNS.values() for entry in _entries(table)]
    return {noun for noun in every if every.count(noun) > 1}


def two_meanings(name: str) -> bool:
    """Returns whether nouns of a class mean something else in another class.

    Example:
        >>> two_meanings("mango"), two_meanings("fruit")
        (True, False)
    """
    return all(entry[0] in _ambiguous() for entry in _entries(nouns.NOUNS.get(name, "-")))


@cache
def _adjectives() -> dict[str, tuple[str, str]]:
    """Adjectives with their verb of being and their English."""
    return {
        portuguese: (kind, english)
        for kind, table in nouns.ADJECTIVES.items()
        for portuguese, english in _entries(table)
    }


def add_adjectives(g: Grammar, name: str, adjectives: str) -> None:
    """Adds the adjectives of a class, next to the noun and after "to be"."""
    for adjective in adjectives.split():
        kind, english = _adjectives()[adjective]
        for agreement, form in portuguese_adjective(adjective).items():
            for symbol in (f"A.{name}.{agreement}", f"A.{name}.{agreement}.{kind}"):
                g.rule(symbol, form, english, tag=f"a:{adjective}")
            if adjective.endswith("o"):  # a form that shows the gender of the speaker of "eu"
                g.rule(f"V.{name}.{agreement}.{kind}.shown", form, english)
            very = f"V.{name}.{agreement}.{kind}"
            g.rule(very, form, english, tag=f"a:{adjective}")
            if adjective not in ABSOLUTE.split():
                g.rule(very, f"muito {form}", f"very {english}", 0.3, tag=f"a:{adjective}")


def _nouns(g: Grammar) -> None:
    for name, table in nouns.NOUNS.items():
        for portuguese, gender, english in _entries(table):
            tag = "" if portuguese in _ambiguous() else f"n:{portuguese}"
            g.rule(f"N.{name}.{gender}s", portuguese, english, tag=tag)
            if name not in MASS + BARE:
                plural = portuguese_plural(portuguese)
                g.rule(f"N.{name}.{gender}p", plural, english_plural(english), tag=tag)
        add_adjectives(g, name, nouns.CLASS_ADJECTIVES.get(name, ""))


def _determiners(g: Grammar) -> None:
    for line in lexicon.DETERMINERS.strip().splitlines():
        portuguese, english, weight = (cell.strip() for cell in line.split("|"))
        singular, plural = english.split()
        for agreement, form in zip(GENDERS, portuguese.split(), strict=True):
            if form == "-":
                continue
            target = singular if agreement[1] == "s" else plural
            g.rule(f"D.{agreement}", form, target, float(weight))
            if target not in POSSESSIVES:
                g.rule(f"DU.{agreement}", form, target, float(weight))
            # After a preposition, a possessive keeps its article: "no meu quarto".
            owned = f"{ARTICLES[agreement]} {form}" if target in POSSESSIVES else form
            g.rule(f"DP.{agreement}", owned, target, float(weight))
    for i, (portuguese, english) in enumerate(_entries(lexicon.NUMBERS, " ")):
        feminine = portuguese.replace("dois", "duas")
        g.rule("Number.m", portuguese, english, 1.0 if i < 9 else 0.2)
        g.rule("Number.f", feminine, english, 1.0 if i < 9 else 0.2)
        g.rule("Price", portuguese, english)
        g.rule("Age", portuguese, english)
        if i < 11:
            g.rule("Hour", feminine, english)
            g.rule("Few", portuguese, english)
    numbers = _entries(lexicon.NUMBERS, " ")
    for tens, tens_english in numbers[-8:]:
        for one, one_english in [["um", "one"], *numbers[:8]]:
            g.rule("Age", f"{tens} e {one}", f"{tens_english}-{one_english}", 0.7)


def add_noun_phrases(g: Grammar, name: str) -> None:
    """Adds phrases about the nouns of a class: ``NP.name``, and ``NPP.name`` after prepositions."""
    for agreement in GENDERS:
        noun, adjective = f"N.{name}.{agreement}", f"A.{name}.{agreement}"
        if noun not in g.rules:
            continue
        size = len(g.rules[noun]) * (1.0 if agreement[1] == "s" else 0.5)
        core = f"NB.{name}.{agreement}"
        g.copy(core, {noun: 2.0})
        if adjective in g.rules:
            g.rule(core, f"<{noun}> <{adjective}>", f"<{adjective}> <{noun}>", join="na")
        article = ARTICLES[agreement]
        if name in BARE:
            g.copy(f"NP.{name}", {noun: 1.0})
            g.copy(f"NPP.{name}", {noun: 1.0})
            continue
        full = f"NP.{name}.{agreement}"
        if name in MASS:
            g.copy(f"NP.{name}", {core: 2 * size})
            for symbol in (full, f"ND.{name}.{agreement}"):
                inner = core if symbol == full else noun
                g.rule(symbol, f"{article} <{inner}>", f"the <{inner}>")
        else:
            _counted(g, name, agreement, core, article)
        g.copy(f"NP.{name}", {full: size})
        g.copy(f"NPP.{name}", {f"NPP.{name}.{agreement}": size})


def _counted(g: Grammar, name: str, agreement: str, core: str, article: str) -> None:
    """Adds phrases about countable things."""
    noun, full = f"N.{name}.{agreement}", f"NP.{name}.{agreement}"
    size = len(g.rules[noun])
    after = f"NPP.{name}.{agreement}"
    unowned = name in UNOWNED
    for symbol, kind in ((full, "DU" if unowned else "D"), (after, "DU" if unowned else "DP")):
        text = f"<{kind}.{agreement}> <{core}>"
        g.rule(symbol, text, text, 6.0)
    owners = (("ele", "his"), ("ela", "her"), ("eles", "their"))
    for owner, english in () if unowned else owners:
        for symbol in (full, after):
            g.rule(symbol, f"{article} <{core}> de {owner}", f"{english} <{core}>", 0.35)
    # Subjects of "to be" are definite.
    g.rule(f"ND.{name}.{agreement}", f"{article} <{noun}>", f"the <{noun}>", 3.0)
    for owner, english in () if unowned else owners[:2]:
        source = f"{article} <{noun}> de {owner}"
        g.rule(f"ND.{name}.{agreement}", source, f"{english} <{noun}>", 0.4)
    # New things, for "there is" and "have".
    if agreement[1] == "s":
        one = {"ms": "um", "fs": "uma"}[agreement]
        g.rule(f"NI.{name}.s", f"{one} <{core}>", f"a <{core}>", float(size))
        g.rule(f"NI.{name}", f"{one} <{core}>", f"a <{core}>", float(size))
    else:
        number = f"Number.{agreement[0]}"
        for symbol in (f"NI.{name}.p", f"NI.{name}"):
            g.rule(symbol, f"<{number}> <{core}>", f"<{number}> <{core}>", float(size))
        g.rule(full, f"<{number}> <{core}>", f"<{number}> <{core}>", 3.0)
        g.rule(after, f"<{number}> <{core}>", f"<{number}> <{core}>", 1.0)


def _towns(g: Grammar) -> None:
    for symbol, table in (("town", lexicon.TOWNS), ("country", lexicon.COUNTRIES)):
        for portuguese, english in _entries(table):
            tag = f"n:{portuguese.split()[-1]}"
            for name in (f"NPP.{symbol}", f"NP.{symbol}"):
                g.rule(name, portuguese, english, tag=tag)


def _adverbs(g: Grammar) -> None:
    for portuguese, english in _entries(lexicon.MONTHS):
        g.rule("Month", portuguese, english)
    for portuguese, english in _entries(lexicon.WEEKDAYS):
        g.rule("Weekday", portuguese, english)
    rows = [
        [cell.strip() for cell in line.split("|")] for line in lexicon.ADVERBS.split("\n") if line
    ]
    for tense in ("pres", "past", "fut"):
        g.rule(f"ADV.{tense}", "em <Month>", "in <Month>", 4.0)
        g.rule(f"ADV.{tense}", "a as <Hour> horas", "at <Hour> o'clock", 1.5)
        if tense != "pres":
            g.rule(f"ADV.{tense}", "em <Weekday>", "on <Weekday>", 3.0)
    g.rule("ADVS.past", "há <Few> dias", "<Few> days ago")
    for tense, portuguese, english in rows:
        source = " ".join(expand(portuguese.split()))
        tense, long = tense.removeprefix("long "), tense.startswith("long ")
        if long:
            g.rule(f"ADVL.{tense}", source, english)
        if tense == "all":
            for each in ("pres", "past", "fut"):
                g.rule(f"ADV.{each}", source, english)
        else:
            g.rule(f"ADVS.{tense}", source, english)
    for tense in ("pres", "past", "fut", "prog"):
        g.copy(f"ADV.{tense}", {f"ADVS.{tense}": 4.0})
    for tense in ("past", "fut"):
        g.rule(f"ADVM.{tense}", "em <Month>", "in <Month>")
        g.copy(f"ADVM.{tense}", {f"ADVL.{tense}": 1.0})


def _subjects(g: Grammar) -> None:
    for gender, names in lexicon.NAMES.items():
        for name in names.split():
            g.rule(f"Name.{gender}", name, name)
    g.copy("Name", {"Name.m": 1.0, "Name.f": 1.0})
    pronouns = "1s eu I mf,2s você you mf,3s ele he m,3s ela she f,1p nós we mf,2p vocês you mf"
    for entry in (pronouns + ",3p eles they m,3p elas they f").split(","):
        person, portuguese, english, genders = entry.split()
        g.rule(f"S.h.{person}", portuguese, english, 2.0)
        for gender in genders:
            g.rule(f"SG.{person}.{gender}", portuguese, english, 2.0)
    g.copy("S.h.3s", {"Name": 4.0})
    g.rule("S.h.1p", "<Name> e eu", "<Name> and I", 1.0)
    for first, second in (("m", "f"), ("f", "m")):
        both = f"<Name.{first}> e <Name.{second}>"
        for symbol in ("S.h.3p", "SG.3p.m"):
            g.rule(symbol, both, both.replace(" e ", " and "))
    for gender in "mf":
        g.copy(f"SG.3s.{gender}", {f"Name.{gender}": 4.0})
    for subject, classes in {
        "h": ("someone", "person", "trade"),
        "a": ("animal",),
        "t": ("thing",),
        "v": ("transport",),
        "b": ("building",),
    }.items():
        for agreement in GENDERS:
            phrases = {f"NP.{name}.{agreement}": 1.0 for name in classes}
            g.copy(f"S.{subject}.3{agreement[1]}", phrases)


def add_phrases(g: Grammar) -> None:
    """Adds nouns and everything built from them."""
    _nouns(g)
    _determiners(g)
    for name in nouns.NOUNS:
        add_noun_phrases(g, name)
    _towns(g)
    _adverbs(g)
    _subjects(g)


# The forms of a verb that a clause chooses from: Portuguese form, English form.
FINITE = [("pres.3s", "s"), ("pres.3s", "base")]
FINITE += [(f"pres.{person}", "base") for person in ("1s", "1p", "3p")]
FINITE += [(f"past.{person}", form) for person in PERSONS for form in ("past", "base")]
VERB_FORMS = [*FINITE, ("inf", "base"), ("ger", "ing")]
# Only journeys: "irá viajar a Roma amanhã", "is travelling to Rome tomorrow".
PLANNED = ("inf", "ing")

PEOPLE = ("someone", "person", "trade")
MARKS = "=*!~+@"  # documented at lexicon.VERBS
WANTING = "querer|want to,gostar de|like to,precisar|need to,ter que|have to,começar a|start to"


def _verbs(g: Grammar) -> None:
    for line in lexicon.VERBS.strip().splitlines():
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
