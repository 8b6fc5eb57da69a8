"""Courtesies in ``phrasebook``: greetings, well-being, names, thanks and farewells.

A greeting may address somebody ("Bom dia, minha amiga"), and may open a question or an
introduction. The person addressed and the person asked about agree: "como vai você" for one, "como
vão vocês" for several.
"""

from transformer_jax.data.corpora import lexicon
from transformer_jax.data.corpora.grammar import Grammar
from transformer_jax.data.corpora.morphology import portuguese_forms
from transformer_jax.data.corpora.phrases import AGREEMENT, ARTICLES, GENDERS
from transformer_jax.data.corpora.spelling import expand

__all__ = ["add_greetings"]

# portuguese | english | weight
HELLO = """
olá | hello | 3
oi | hi | 2
bom dia | good morning | 2
boa tarde | good afternoon | 2
boa noite | good evening | 2
"""
GOODBYE = """
tchau | bye | 1
adeus | goodbye | 1
boa viagem | have a good trip | 1
bom trabalho | have a good day at work | 0.5
"""
THANKS = """
obrigado | thank you | 1
obrigada | thank you | 1
muito obrigado | thank you very much | 1
muito obrigada | thank you very much | 1
"""
# People to greet besides names and "my friend", by number.
TITLES = {
    "s": "professor:teacher professora:teacher doutor:doctor doutora:doctor senhor:sir "
    "senhora:madam",
    "p": "senhores:gentlemen senhoras:ladies crianças:children",
}
# Well-being: portuguese | english | weight
STATES = """
bem | well | 3
muito bem | very well | 2
mal | unwell | 0.7
melhor | better | 1
"""
MY = {"ms": "meu", "fs": "minha", "mp": "meus", "fp": "minhas"}
YOUR = {"ms": "seu", "fs": "sua", "mp": "seus", "fp": "suas"}
THIS = {"ms": "este é", "fs": "esta é", "mp": "estes são", "fp": "estas são"}


def _table(g: Grammar, symbol: str, table: str) -> None:
    for line in table.strip().splitlines():
        portuguese, english, weight = (cell.strip() for cell in line.split("|"))
        g.rule(symbol, portuguese, english, float(weight))


def _people(g: Grammar) -> None:
    """Adds people to address and to ask about, one or several."""
    for number, titles in TITLES.items():
        for entry in titles.split():
            portuguese, english = entry.split(":")
            g.rule(f"Voc.{number}", portuguese, english, 0.4)
    g.copy("Voc.s", {"Name": 6.0})
    g.rule("Voc.p", "<Name.f> e <Name.m>", "<Name.f> and <Name.m>", 2.0)
    for gn in GENDERS:
        kin = f"<N.person.{gn}>"
        g.rule(f"Voc.{gn[1]}", f"{MY[gn]} {kin}", f"my {kin}", 1.0)
        g.rule(f"Kin.{gn[1]}", f"{ARTICLES[gn]} {YOUR[gn]} {kin}", f"your {kin}", 1.5)
        g.copy(f"Kin.{gn[1]}", {f"ND.person.{gn}": 1.0, f"ND.trade.{gn}": 0.5})
    for portuguese, english, number in (("ele", "he", "s"), ("ela", "she", "s")):
        g.rule(f"Kin.{number}", portuguese, english, 1.0)
    for portuguese in ("eles", "elas"):
        g.rule("Kin.p", portuguese, "they", 1.0)
    g.copy("Kin.s", {"Name": 3.0})
    g.rule("Kin.p", "<Name.m> e <Name.f>", "<Name.m> and <Name.f>", 1.0)
    g.copy("Voc", {"Voc.s": 2.0, "Voc.p": 1.0})


def _how(g: Grammar) -> None:
    """Adds questions about the well-being of the people addressed, and of third persons."""
    go, be = portuguese_forms("ir"), portuguese_forms("estar")
    for number, you, person, now, then in (
        ("s", "você", "3s", "is", "was"),
        ("p", "vocês", "3p", "are", "were"),
    ):
        g.rule(f"HowYou.{number}", f"como {go[f'pres.{person}']} {you}", "how are you", 3.0)
        g.rule(f"HowYou.{number}", f"como {you} {be[f'pres.{person}']}", "how are you", 1.0)
        g.rule(f"HowYou.{number}", f"como {you} {be[f'past.{person}']}", "how were you", 0.3)
        others = f"<Kin.{number}>"
        for verb, english, weight in (
            (go[f"pres.{person}"], now, 3.0),
            (be[f"pres.{person}"], now, 1.5),
            (be[f"past.{person}"], then, 0.7),
        ):
            g.rule("HowOthers", f"como {verb} {others}", f"how {english} {others}", weight)
    g.copy("How", {"HowYou.s": 2.0, "HowYou.p": 1.0, "HowOthers": 4.0})


def _telling(g: Grammar) -> None:
    """Adds statements of well-being, names and identities."""
    _table(g, "State", STATES)
    _table(g, "GoodState", "\n".join(STATES.strip().splitlines()[:2]))
    go, be = portuguese_forms("ir"), portuguese_forms("estar")
    for agreement, (person, now, then, weight) in AGREEMENT.items():
        who = f"<S.h.{agreement}>"
        for verb, english, often in (
            (go[f"pres.{person}"], now, 1.5),
            (be[f"pres.{person}"], now, 1.0),
            (be[f"past.{person}"], then, 0.5),
        ):
            told = f"{who} {verb} <State>", f"{who} {english} <State>"
            g.rule("Well", *told, weight * often)
            if agreement[0] == "1" and english == now:  # who is well gives thanks for the question
                fine = f"{who} {verb} <GoodState>", f"{who} {english} <GoodState>"
                g.rule("Fine", *fine, weight * often)
    for owner, english, name in (
        ("meu nome", "my", "Name"),
        ("o nome de ela", "her", "Name.f"),
        ("o nome de ele", "his", "Name.m"),
    ):
        g.rule("Intro", f"{owner} é <{name}>", f"{english} name is <{name}>", 2.0)
        asked, whose = ("o seu nome", "your") if english == "my" else (owner, english)
        g.rule("AskName", f"qual é {asked}", f"what is {whose} name", 2.0)
    g.rule("Intro", "eu sou <Name>", "I am <Name>", 2.0)
    for gn in GENDERS:
        kin, one = f"<N.person.{gn}>", gn[1] == "s"
        english = "this is" if one else "these are"
        for owner, whose in ((MY[gn], "my"), (YOUR[gn], "your")):
            g.rule("Intro", f"{THIS[gn]} {owner} {kin}", f"{english} {whose} {kin}", 0.7)
        if one:
            g.rule("Intro", f"{THIS[gn]} <Name.{gn[0]}>", f"this is <Name.{gn[0]}>", 1.0)


def _until(g: Grammar) -> None:
    """Adds farewells until a time: "até amanhã", "até a próxima semana", "até Maio"."""
    for line in lexicon.ADVERBS.strip().splitlines():
        tense, portuguese, english = (cell.strip() for cell in line.split("|"))
        if tense.endswith("fut"):
            source = " ".join(expand(portuguese.split())).removeprefix("em ")
            g.rule("Until", f"até {source}", f"see you {english}")
    g.rule("Until", "até logo", "see you later", 2.0)
    g.rule("Until", "até <Month>", "see you in <Month>", 2.0)
    g.rule("Until", "até <Weekday>", "see you on <Weekday>", 2.0)
    g.rule("Until", "até as <Hour> horas", "see you at <Hour> o'clock", 1.0)


def add_greetings(g: Grammar) -> None:
    """Adds what people say when they meet and part.

    Example:
        >>> from transformer_jax.data.corpora.phrasebook import translate
        >>> translate("Boa tarde, meus amigos, como vão vocês?")
        'Good afternoon, my friends, how are you?'
        >>> translate("Boa tarde, meus amigos, como vai você?") is None
        True
    """
    for symbol, table in (("Hello", HELLO), ("Goodbye", GOODBYE), ("Thanks", THANKS)):
        _table(g, symbol, table)
    _people(g)
    _how(g)
    _telling(g)
    _until(g)
    g.copy("Goodbye", {"Until": 6.0})

    def say(text: str, weight: float, target: str = "") -> None:
        g.rule("S", text, target or text, weight)

    for symbol, weight in (("Hello", 4.0), ("Goodbye", 8.0), ("Thanks", 3.0)):
        for point, share in ((".", 2.0), ("!", 1.0)):
            say(f"<{symbol}> {point}", share)
            say(f"<{symbol}> , <Voc> {point}", weight * share)
    say("<How> ?", 20.0)
    say("<Hello> , <How> ?", 25.0)
    for number, weight in (("s", 12.0), ("p", 6.0)):
        say(f"<Hello> , <Voc.{number}> , <HowYou.{number}> ?", weight)
        say(f"<Hello> , <Voc.{number}> , <HowOthers> ?", weight)
    say("<Well> .", 15.0)
    say("<Fine> , <Thanks> .", 12.0)
    say("<Fine> , <Thanks> , e você ?", 8.0, "<Fine> , <Thanks> , and you ?")
    say("<Intro> .", 8.0)
    say("<AskName> ?", 2.0)
    say("<Hello> , <AskName> ?", 3.0)
    say("<Hello> , <Intro> .", 12.0)
    say("<Hello> , <Voc> , <Intro> .", 8.0)
