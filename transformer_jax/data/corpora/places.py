"""The places of ``phrasebook``: what is on, under, next to or inside what.

A relation is a preposition, or several words that end in one, and takes any noun phrase of suitable
kinds of places: the article contracts with it by the rules of spelling ("em cima da mesa", "ao lado
desta porta", "dentro das minhas caixas"), and English follows word by word.
"""

from transformer_jax.data.corpora import nouns
from transformer_jax.data.corpora.grammar import Grammar
from transformer_jax.data.corpora.morphology import (
    english_plural,
    portuguese_forms,
    portuguese_plural,
)
from transformer_jax.data.corpora.phrases import (
    AGREEMENT,
    GENDERS,
    add_adjectives,
    add_noun_phrases,
)
from transformer_jax.data.corpora.spelling import expand

__all__ = ["add_location_clauses", "add_places"]

# Nouns of other classes that serve as places, by kind, with the class whose adjectives they take.
KINDS = {
    "surface": ("furniture", "mesa cadeira cama sofá prateleira tapete"),
    "container": ("thing", "caixa bolsa mochila mala armário gaveta"),
    "landmark": ("furniture", "porta janela espelho lâmpada carro"),
}

# portuguese | english | who may be there | kinds of places | weight. Who: t a thing, a an animal or
# something as large, h a person. A plain "em" is "on", "in" or "at" depending on the place; the
# other relations are explicit.
RELATIONS = """
em | on | ta | surface bench | 2
em | in | t | container | 1.5
em | in | tah | room | 1.5
em | at | h | building | 1.5
em cima de | on | ta | surface bench | 3
embaixo de | under | ta | surface bench | 1.5
embaixo de | under | ah | tree | 0.5
dentro de | inside | t | container | 1.5
ao lado de | next to | tah | surface landmark | 1.5
ao lado de | next to | h | Name | 0.5
atrás de | behind | tah | surface landmark | 1
atrás de | behind | ah | building tree | 0.5
em frente a | in front of | tah | surface landmark | 1
em frente a | in front of | h | building | 0.5
perto de | near | tah | surface landmark | 1
perto de | near | ah | building place | 0.5
longe de | far from | ah | building place | 0.5
"""


def _kinds(g: Grammar) -> None:
    """Adds noun phrases about each kind of place, and about named people."""
    entries = [
        entry.strip().split(":") for table in nouns.NOUNS.values() for entry in table.split(",")
    ]
    known = {portuguese: (gender, english) for portuguese, gender, english in entries}
    for kind, (like, members) in KINDS.items():
        for portuguese in members.split():
            gender, english = known[portuguese]
            tag = f"n:{portuguese}"
            g.rule(f"N.{kind}.{gender}s", portuguese, english, tag=tag)
            plural = portuguese_plural(portuguese), english_plural(english)
            g.rule(f"N.{kind}.{gender}p", *plural, tag=tag)
        add_adjectives(g, kind, nouns.CLASS_ADJECTIVES[like])
        add_noun_phrases(g, kind)
    g.copy("NPP.Name", {"Name": 1.0})


def add_places(g: Grammar) -> None:
    """Adds locations: ``LOC.t`` for a thing, and ``REL.t`` without a plain "em".

    Example:
        >>> from transformer_jax.data.corpora.phrasebook import grammar
        >>> words = "em cima de a mesa de ela".split()
        >>> [" ".join(d.target) for d in grammar().parse("LOC.t", tuple(words))]
        ['on her table']
    """
    _kinds(g)
    for line in RELATIONS.strip().splitlines():
        portuguese, english, who, kinds, weight = (cell.strip() for cell in line.split("|"))
        symbol = "IN" if portuguese == "em" else "REL"
        portuguese = " ".join(expand(portuguese.split()))
        for subject in who:
            for kind in kinds.split():
                size = 0.3 if kind == "bench" else 1.0
                source, target = f"{portuguese} <NPP.{kind}>", f"{english} <NPP.{kind}>"
                g.rule(f"{symbol}.{subject}", source, target, float(weight) * size)
    for subject in "tah":
        shares = {f"{kind}.{subject}": 1.0 for kind in ("IN", "REL")}
        weights = {symbol: sum(rule.weight for rule in g.rules[symbol]) for symbol in shares}
        g.copy(f"LOC.{subject}", weights)


def _subjects(g: Grammar) -> list[tuple[str, str, str, float]]:
    """Subjects of locations: symbol, agreement, kind of place, weight."""
    found = []
    for names, kind, often in (
        ("thing clothes text fruit toss", "t", 1.0),
        ("device", "a", 1.0),  # too large for a box, like animals
        ("animal", "a", 1.5),
    ):
        for name in names.split():
            found += [(f"ND.{name}.{gn}", f"3{gn[1]}", kind, often) for gn in GENDERS]
    found += [(f"S.h.{a}", a, "h", row[3] * 0.6) for a, row in AGREEMENT.items()]
    return [row for row in found if row[0] in g.rules]


def add_location_clauses(g: Grammar) -> None:
    """Adds where something is, what is somewhere, and what exists."""
    forms = portuguese_forms("estar")
    for subject, agreement, kind, w in _subjects(g):
        person, *being, _ = AGREEMENT[agreement]
        who, where = f"<{subject}>", f"<LOC.{kind}>"
        for tense, be, share in zip(("pres", "past"), being, (1.0, 0.6), strict=True):
            est = forms[f"{tense}.{person}"]
            g.rule("S", f"{who} {est} {where} .", f"{who} {be} {where} .", 3 * w * share)
            g.rule("S", f"{who} não {est} {where} .", f"{who} {be} not {where} .", w * share)
            g.rule("S", f"{who} {est} {where} ?", f"{be} {who} {where} ?", w * share)
            asked = f"{who} {est}" if kind == "h" else f"{est} {who}"  # the order for pronouns
            g.rule("S", f"onde {asked} ?", f"where {be} {who} ?", 0.7 * w * share)
    for ask, english, kind in (("o que", "what", "t"), ("quem", "who", "h")):
        where = f"<LOC.{kind}>"
        for tense, be in (("pres", "is"), ("past", "was")):
            source = f"{ask} {forms[f'{tense}.3s']} {where} ?"
            g.rule("S", source, f"{english} {be} {where} ?", 3.0)
    for name in ("thing", "clothes", "text", "fruit", "toss", "animal"):
        where = "<LOC.a>" if name == "animal" else "<LOC.t>"
        for number, *being in (("s", "is", "was"), ("p", "are", "were")):
            new = f"<NI.{name}.{number}>"
            for verb, be in zip(("há", "havia"), being, strict=True):
                g.rule("S", f"{verb} {new} {where} .", f"there {be} {new} {where} .", 2.0)
                g.rule("S", f"{verb} {new} {where} ?", f"{be} there {new} {where} ?", 0.7)
