"""The clauses of ``phrasebook``: tense, negation, questions, and the position of time phrases."""

from transformer_jax.data.corpora.grammar import Grammar
from transformer_jax.data.corpora.morphology import english_forms, portuguese_forms
from transformer_jax.data.corpora.phrases import AGREEMENT, GENDERS

__all__ = ["add_clauses"]

FEELINGS = "fome:hungry sede:thirsty razão:right sono:sleepy medo:afraid pressa:in_a_hurry"

# tense: Portuguese auxiliary in its four persons, form after it, English auxiliary, English form,
# adverbs, weight.
AUXILIARIES = {
    "fut": ("irei irá iremos irão", "inf", "will", "base", "fut", 4.0),
    "prog": ("estou está estamos estão", "ger", "be", "ing", "prog", 1.5),
    "wasing": ("estava estava estávamos estavam", "ger", "were", "ing", "past", 0.8),
    "can": ("posso pode podemos podem", "inf", "can", "base", "fut", 0.9),
    "could": ("podia podia podíamos podiam", "inf", "could", "base", "past", 0.5),
    "should": ("devo deve devemos devem", "inf", "should", "base", "fut", 0.7),
}
SIMPLE = {"pres": 3.0, "past": 4.0}
# Subjects: a person doing, a person in a state, an animal, a thing, transport, a building.
PEOPLE = {"h": 1.0, "s": 0.15, "a": 0.1, "t": 0.05, "v": 0.04, "b": 0.04}
ADJECTIVAL = "fruit dish food drink clothes furniture text device thing vehicle transport building"
ADJECTIVAL += " place room show instrument flower tree idea toss photo mango sleeve bank bench"
ADJECTIVAL += " candle sail cable cape letter card battery plant floorplan plate meal animal"
ADJECTIVAL += " someone person trade"


def _auxiliary(tense: str, agreement: str) -> tuple[str, str]:
    """The auxiliary in both languages."""
    forms, _, english, _, _, _ = AUXILIARIES[tense]
    person, now, then, _ = AGREEMENT[agreement]
    spoken = dict(zip(("1s", "3s", "1p", "3p"), forms.split(), strict=True))[person]
    return spoken, {"be": now, "were": then}.get(english, english)


def _say(
    g: Grammar, source: str, target: str, question: str, times: tuple[str, ...], w: float
) -> None:
    """A clause as a statement and as a question, each without a time, with it last, or first."""
    for text, point, share in ((target, ".", 4.0), (question, "?", 1.0)):
        if not text:
            continue
        for time in times:
            if not time:
                g.rule("S", f"{source} {point}", f"{text} {point}", w * share * 1.5)
                continue
            last = f"{text} <{time}> {point}"
            g.rule("S", f"{source} <{time}> {point}", last, w * share * 1.3)
            g.rule("S", f"<{time}> , {source} {point}", last, w * share * 0.8)


def _plain(g: Grammar) -> None:
    """Adds clauses in which someone does something, or does not."""
    for people, share in PEOPLE.items():
        for agreement, (person, _, _, weight) in AGREEMENT.items():
            who = f"<S.{people}.{agreement}>".replace("S.s", "S.h")
            if who[1:-1] not in g.rules:
                continue
            w = share * weight
            for tense, often in SIMPLE.items():
                if (people, tense) == ("t", "pres"):
                    continue
                times: tuple[str, ...] = ("", f"ADV.{tense}")
                if person == "1p":  # "compramos" is present or past: only the time phrase tells
                    times = (f"ADVS.{tense}",) if tense == "past" else ("", f"ADVS.{tense}")
                if people == "s":
                    kind = "ADVL" if person == "1p" else "ADVM"
                    times = ("",) if tense == "pres" else ("", f"{kind}.{tense}")[person == "1p" :]
                form = f"VP.{people}.{tense}.{person}"
                do = {"past": "did"}.get(tense, "does" if agreement == "3s" else "do")
                told = "past" if tense == "past" else "s" if agreement == "3s" else "base"
                fine, base = f"<{form}.{told}>", f"<{form}.base>"
                _say(g, f"{who} {fine}", f"{who} {fine}", "", times, w * often)
                question = f"{do} {who} {base}"
                for no, yes in (("não ", ""), ("", question)):
                    negative = f"{who} {do} not {base}" if no else ""
                    _say(g, f"{who} {no}{base}", negative, yes, times, w * often * 0.3)
            for tense, (_, form, _, told, times_of, often) in AUXILIARIES.items():
                if tense == "fut":
                    _future(g, people, agreement, w * often)
                    continue
                ours, theirs = _auxiliary(tense, agreement)
                act = f"<VP.{people}.{form}.{told}>"
                lifeless = people in "tvb" and tense in ("can", "could", "should")
                if lifeless or act[1:-1] not in g.rules:
                    continue
                times = ("", f"{'ADVM' if people == 's' else 'ADV'}.{times_of}")
                yes, ask = f"{who} {theirs} {act}", f"{theirs} {who} {act}"
                _say(g, f"{who} {ours} {act}", yes, ask, times, w * often)
                refuse = f"{who} cannot {act}" if theirs == "can" else f"{who} {theirs} not {act}"
                _say(g, f"{who} não {ours} {act}", refuse, "", times, w * often * 0.3)


def _future(g: Grammar, people: str, agreement: str, w: float) -> None:
    """Adds sentences about future acts, planned or not.

    "Irá" with a verb is "will do", but a journey to a place at a stated time is planned, and uses
    the present progressive: "irá viajar ao Rio em Dezembro", "is travelling to Rio in December".
    Without the time ("will travel to Rio") or the destination ("will travel in December"), after
    "quando", and for everything but journeys, it is "will".
    """
    who = f"<S.{people}.{agreement}>".replace("S.s", "S.h")
    ours, will = _auxiliary("fut", agreement)
    now = AGREEMENT[agreement][1]
    timed = (f"{'ADVM' if people == 's' else 'ADV'}.fut",)
    rows = [
        (f"VP.{people}.inf.base", will, ("",), 1.0),
        (f"VE.{people}.inf.base", will, timed, 0.85),
        (f"VJ.{people}.inf.ing", now, timed, 0.15),
    ]
    if people in "ha":
        rows += [("Going.base", will, ("",), 0.04), ("Going.ing", now, timed, 0.05)]
    for act, english, times, often in rows:
        if act not in g.rules:
            continue
        yes, ask = f"{who} {english} <{act}>", f"{english} {who} <{act}>"
        _say(g, f"{who} {ours} <{act}>", yes, ask, times, w * often)
        no = f"{who} {english} not <{act}>"
        _say(g, f"{who} não {ours} <{act}>", no, "", times, w * often * 0.3)


def _questions(g: Grammar) -> None:
    """Adds questions with who, what, where, when, why and how many."""
    for agreement, (person, _, _, weight) in AGREEMENT.items():
        who, w = f"<S.h.{agreement}>", weight * 0.5
        tenses = {"fut": ("irei irá iremos irão", "will")}
        do = "does" if agreement == "3s" else "do"
        for tense, aux in (("pres", do), ("past", "did"), *((t, a[1]) for t, a in tenses.items())):
            if person == "1p" and tense != "fut":
                continue
            spoken = _auxiliary("fut", agreement)[0] + " " if tense == "fut" else ""
            form = "inf.base" if tense == "fut" else f"{tense}.{person}.base"
            for ask, english, kind in (
                ("quando", "when", "VP.h"),
                ("por que", "why", "VP.h"),
                ("por que", "why", "VP.s"),
                ("onde", "where", "VL"),
                ("o que", "what", "VT"),
            ):
                act = f"<{kind}.{form}>"
                source = f"{ask} {who} {spoken}{act} ?"
                g.rule("S", source, f"{english} {aux} {who} {act} ?", w)
            for name in ("fruit", "clothes", "text", "thing", "animal"):
                for gender, many in (("mp", "quantos"), ("fp", "quantas")):
                    noun, act = f"<N.{name}.{gender}>", f"<VT.{name}.{form}>"
                    source = f"{many} {noun} {who} {spoken}{act} ?"
                    target = f"how many {noun} {aux} {who} {act} ?"
                    g.rule("S", source, target, w * 0.15, join="vn")
    for form, ours, theirs in (
        ("pres.3s.s", "", ""),
        ("past.3s.past", "", ""),
        ("inf.base", "irá ", "will "),
    ):
        for kind, weight in (("h", 3.5), ("s", 0.5)):
            act = f"<VP.{kind}.{form}>"
            g.rule("S", f"quem {ours}{act} ?", f"who {theirs}{act} ?", weight)


def _being(g: Grammar) -> None:
    """Adds sentences about states of people and things, in three tenses."""
    people = [(f"SG.{a}.{x}", a, x + a[1], "person") for a in AGREEMENT for x in "mf"]
    things = [(f"ND.{c}.{gn}", f"3{gn[1]}", gn, c) for c in ADJECTIVAL.split() for gn in GENDERS]
    for subject, agreement, gn, name in people + things:
        if subject not in g.rules:
            continue
        person = AGREEMENT[agreement][0]
        size = 2.0 if name == "person" else 0.35
        for verb in ("ser", "estar"):
            shown = ".shown" if gn[0] == "f" and agreement in ("1s", "2s", "1p", "2p") else ""
            adjective = f"<V.{name}.{gn}.{verb}{shown}>"
            if adjective[1:-1] not in g.rules:
                continue
            forms = portuguese_forms(verb)
            for tense, weight in (("pres", 3.0), ("past", 1.5), ("fut", 0.5)):
                if (verb, tense) == ("ser", "fut"):
                    continue
                ours, theirs = _be(forms, tense, agreement, person)
                who, no = f"<{subject}>", "will not be" if tense == "fut" else f"{theirs} not"
                ask = f"will {who} be" if tense == "fut" else f"{theirs} {who}"
                time = "" if verb == "ser" or tense == "pres" else f" <ADVS.{tense}>"
                for no_word, english, point, share in (
                    ("", f"{who} {theirs} {adjective}", ".", 3.0),
                    ("não ", f"{who} {no} {adjective}", ".", 1.0),
                    ("", f"{ask} {adjective}", "?", 1.0),
                ):
                    source = f"{who} {no_word}{ours} {adjective}"
                    w = size * weight * share * 0.3
                    g.rule("S", f"{source} {point}", f"{english} {point}", w, join="na")
                    if time:
                        target = f"{english}{time} {point}"
                        g.rule("S", f"{source}{time} {point}", target, w, join="na")


def _be(forms: dict[str, str], tense: str, agreement: str, person: str) -> tuple[str, str]:
    """Adds a verb of being and "to be", in three tenses."""
    _, now, then, _ = AGREEMENT[agreement]
    if tense == "fut":
        return f"{_auxiliary('fut', agreement)[0]} {forms['inf']}", "will be"
    return forms[f"{tense}.{person}"], now if tense == "pres" else then


def _states(g: Grammar) -> None:
    """Adds ages, hunger, trades and origins."""
    have, be = portuguese_forms("ter"), portuguese_forms("ser")
    for gender in ("m", "f"):
        for number in "sp":
            for rule in list(g.rules[f"N.trade.{gender}{number}"]):
                source, target = " ".join(map(str, rule.source)), " ".join(map(str, rule.target))
                g.rule(f"Trade.{gender}{number}", source, ("a " if number == "s" else "") + target)
    for entry in FEELINGS.split():
        portuguese, english = entry.split(":")
        g.rule("Feeling", portuguese, english.replace("_", " "))
    g.copy("From", {"NPP.town": 1.0, "NPP.country": 1.0})
    for agreement, (person, _, _, weight) in AGREEMENT.items():
        for tense, share in (("pres", 1.0), ("past", 0.5)):
            has, theirs = _be(have, tense, agreement, person)
            is_, _ = _be(be, tense, agreement, person)
            rows = [
                (f"S.h.{agreement}", f"{has} <Age> anos", "<Age> years old", 1.0),
                (f"S.h.{agreement}", f"{has} <Feeling>", "<Feeling>", 0.8),
                (f"S.h.{agreement}", f"{is_} de <From>", "from <From>", 1.0),
            ]
            for x in "mf":
                trade = f"<Trade.{x}{agreement[1]}>"
                rows.append((f"SG.{agreement}.{x}", f"{is_} {trade}", trade, 0.4))
            for subject, said, english, often in rows:
                if subject not in g.rules:
                    continue
                who, w = f"<{subject}>", weight * share * often * 0.7
                g.rule("S", f"{who} {said} .", f"{who} {theirs} {english} .", 3 * w)
                g.rule("S", f"{who} não {said} .", f"{who} {theirs} not {english} .", w)
                g.rule("S", f"{who} {said} ?", f"{theirs} {who} {english} ?", w)


def _things(g: Grammar) -> None:
    """Adds sentences about prices."""
    for name in ("clothes", "text", "device", "thing", "furniture", "dish"):
        for gn in GENDERS:
            old, (ours, do) = f"<ND.{name}.{gn}>", ("custa", "does")
            if old[1:-1] not in g.rules:
                continue
            ours, do, theirs = ("custam", "do", "cost") if gn[1] == "p" else (ours, do, "costs")
            price, said = "<Price> euros", f"{old} {ours} <Price> euros ."
            g.rule("S", said, f"{old} {theirs} {price} .", 0.8)
            g.rule("S", f"quanto {ours} {old} ?", f"how much {do} {old} cost ?", 0.4)


def add_clauses(g: Grammar) -> None:
    """Adds every kind of sentence as an expansion of ``<S>``."""
    _where(g)
    _plain(g)
    _questions(g)
    _being(g)
    _states(g)
    _things(g)


def _where(g: Grammar) -> None:
    """Adds questions about where one lives, or does something to a thing."""
    for form in [n.removeprefix("VP.h.") for n in list(g.rules) if n.startswith("VP.h.")]:
        if form.startswith("ger"):
            continue
        for verb, english in (("morar", "live"), ("trabalhar", "work"), ("dormir", "sleep")):
            person, _, told = form.rpartition(".")
            g.rule(f"VL.{form}", portuguese_forms(verb)[person], english_forms(english)[told], 4.0)
        for name in ("fruit", "clothes", "text", "thing"):
            source = f"<VT.{name}.{form}>"
            obj = f"<NP.{name}>"
            g.rule(f"VL.{form}", f"{source} {obj}", f"{source} {obj}", 2.0, join="vn")
