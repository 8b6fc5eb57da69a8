"""Inflection of Portuguese and English words: just enough for the built-in corpus, but correct."""

__all__ = [
    "english_forms",
    "english_plural",
    "portuguese_adjective",
    "portuguese_forms",
    "portuguese_plural",
]

PERSONS = ("1s", "3s", "1p", "3p")

_PORTUGUESE_PLURALS = {"pão": "pães", "irmão": "irmãos", "avô": "avôs", "metrô": "metrôs"}

_ENGLISH_PLURALS = {
    "child": "children",
    "father": "parents",  # "os pais" are both of them
    "man": "men",
    "woman": "women",
    "knife": "knives",
    "shelf": "shelves",
    "leaf": "leaves",
    "sheep": "sheep",
    "fish": "fish",
    "tomato": "tomatoes",
    "potato": "potatoes",
    "mango": "mangoes",
    "piano": "pianos",
    "radio": "radios",
    "sheet of paper": "sheets of paper",
}

# 1s 3s 1p 3p of the present, then of the past, then the gerund; the regular endings complete a
# short row.
_PORTUGUESE_VERBS = {
    "ir": "vou vai vamos vão fui foi fomos foram indo",
    "fazer": "faço faz fazemos fazem fiz fez fizemos fizeram fazendo",
    "ver": "vejo vê vemos veem vi viu vimos viram vendo",
    "ler": "leio lê lemos leem li leu lemos leram lendo",
    "ter": "tenho tem temos têm tinha tinha tínhamos tinham tendo",
    "dar": "dou dá damos dão dei deu demos deram dando",
    "trazer": "trago traz trazemos trazem trouxe trouxe trouxemos trouxeram trazendo",
    "cair": "caio cai caímos caem caí caiu caímos caíram caindo",
    "distribuir": (
        "distribuo distribui distribuímos distribuem distribuí distribuiu distribuímos "
        "distribuíram distribuindo"
    ),
    "sair": "saio sai saímos saem saí saiu saímos saíram saindo",
    "poder": "posso pode podemos podem podia podia podíamos podiam podendo",
    "ser": "sou é somos são era era éramos eram sendo",
    "estar": "estou está estamos estão estava estava estávamos estavam estando",
    "querer": "quero quer queremos querem queria queria queríamos queriam querendo",
    "perder": "perco perde",
    "pedir": "peço pede",
    "ouvir": "ouço ouve",
    "dormir": "durmo dorme",
    "servir": "sirvo serve",
    "vestir": "visto veste",
    "seguir": "sigo segue",
}

# Verbs of wanting: their everyday past is the imperfect.
_IMPERFECT = {
    "gostar": "gostava gostava gostávamos gostavam",
    "precisar": "precisava precisava precisávamos precisavam",
}

_ENDINGS = {
    "ar": "o a amos am ei ou amos aram ando",
    "er": "o e emos em i eu emos eram endo",
    "ir": "o e imos em i iu imos iram indo",
}

_ENGLISH_VERBS = {
    "be": "is was being",
    "begin": "begins began beginning",
    "blow": "blows blew blowing",
    "break": "breaks broke breaking",
    "bring": "brings brought bringing",
    "buy": "buys bought buying",
    "cast": "casts cast casting",
    "come": "comes came coming",
    "cost": "costs cost costing",
    "cut": "cuts cut cutting",
    "deal": "deals dealt dealing",
    "do": "does did doing",
    "draw": "draws drew drawing",
    "drink": "drinks drank drinking",
    "drive": "drives drove driving",
    "eat": "eats ate eating",
    "fall": "falls fell falling",
    "feed": "feeds fed feeding",
    "find": "finds found finding",
    "forget": "forgets forgot forgetting",
    "get": "gets got getting",
    "give": "gives gave giving",
    "go": "goes went going",
    "hang": "hangs hung hanging",
    "have": "has had having",
    "hear": "hears heard hearing",
    "hide": "hides hid hiding",
    "keep": "keeps kept keeping",
    "leave": "leaves left leaving",
    "lend": "lends lent lending",
    "lie": "lies lay lying",
    "light": "lights lit lighting",
    "lose": "loses lost losing",
    "make": "makes made making",
    "read": "reads read reading",
    "pay": "pays paid paying",
    "put": "puts put putting",
    "ride": "rides rode riding",
    "rob": "robs robbed robbing",
    "run": "runs ran running",
    "see": "sees saw seeing",
    "sell": "sells sold selling",
    "send": "sends sent sending",
    "shut": "shuts shut shutting",
    "sing": "sings sang singing",
    "sew": "sews sewed sewing",
    "sit": "sits sat sitting",
    "sleep": "sleeps slept sleeping",
    "steal": "steals stole stealing",
    "stop": "stops stopped stopping",
    "sweep": "sweeps swept sweeping",
    "swim": "swims swam swimming",
    "take": "takes took taking",
    "teach": "teaches taught teaching",
    "tear": "tears tore tearing",
    "tell": "tells told telling",
    "throw": "throws threw throwing",
    "travel": "travels travelled travelling",
    "understand": "understands understood understanding",
    "wear": "wears wore wearing",
    "write": "writes wrote writing",
}


def portuguese_plural(noun: str) -> str:
    """Returns the plural of a noun or an adjective.

    Example:
        >>> [portuguese_plural(w) for w in ["casa", "avião", "jornal", "jardim", "azul", "fácil"]]
        ['casas', 'aviões', 'jornais', 'jardins', 'azuis', 'fáceis']
    """
    if noun in _PORTUGUESE_PLURALS:
        return _PORTUGUESE_PLURALS[noun]
    if noun.endswith(("us", "is", "es")):
        return noun
    for ending, plural in (
        ("ão", "ões"),
        ("ável", "áveis"),
        ("tel", "téis"),
        ("nel", "néis"),
        ("ês", "eses"),
        ("ol", "óis"),
    ):
        if noun.endswith(ending):
            return noun.removesuffix(ending) + plural
    if noun.endswith("il"):
        return noun[:-2] + ("is" if noun.endswith("til") and "ú" not in noun else "eis")
    if noun.endswith("l"):
        return noun[:-1] + "is"
    if noun.endswith("m"):
        return noun[:-1] + "ns"
    return noun + ("es" if noun[-1] in "rz" else "s")


def portuguese_adjective(adjective: str) -> dict[str, str]:
    """Returns an adjective's four forms: masculine and feminine, singular and plural.

    Example:
        >>> portuguese_adjective("novo")
        {'ms': 'novo', 'fs': 'nova', 'mp': 'novos', 'fp': 'novas'}
    """
    feminine = {"bom": "boa"}.get(adjective) or (
        adjective[:-1] + "a" if adjective.endswith("o") else adjective
    )
    return {
        "ms": adjective,
        "fs": feminine,
        "mp": portuguese_plural(adjective),
        "fp": portuguese_plural(feminine),
    }


def _spelled(stem: str, ending: str, kind: str) -> str:
    """Joins stem and ending, changing the spelling to keep the sound."""
    if kind == "ar" and ending[0] == "e":
        for letter, written in (("ç", "c"), ("c", "qu"), ("g", "gu")):
            if stem.endswith(letter):
                return stem[: -len(letter)] + written + ending
    if kind != "ar" and ending[0] == "o":
        for letter, written in (("c", "ç"), ("g", "j")):
            if stem.endswith(letter):
                return stem[:-1] + written + ending
    return stem + ending


def portuguese_forms(verb: str) -> dict[str, str]:
    """Returns a verb's forms by name: ``pres.1s`` ... ``past.3p``, ``inf`` and ``ger``.

    Example:
        >>> forms = portuguese_forms("tocar")
        >>> forms["pres.3p"], forms["past.1s"], forms["ger"]
        ('tocam', 'toquei', 'tocando')
    """
    stem, kind = verb[:-2], verb[-2:]
    written = _PORTUGUESE_VERBS.get(verb, "").split()
    if len(written) < 9:
        regular = [_spelled(stem, ending, kind) for ending in _ENDINGS[kind].split()]
        if verb.endswith("ear"):  # passeio, passeia, but passeamos
            regular[0], regular[1], regular[3] = stem + "io", stem + "ia", stem + "iam"
        if verb.endswith("uzir"):
            regular[1] = stem
        if written and written[0][:-1] != stem:
            regular[3] = written[1] + "m"
        written += regular[len(written) :]
    if verb in _IMPERFECT:
        written[4:8] = _IMPERFECT[verb].split()
    names = [f"{tense}.{person}" for tense in ("pres", "past") for person in PERSONS]
    return dict(zip([*names, "ger", "inf"], [*written, verb], strict=True))


def english_plural(noun: str) -> str:
    """Returns the plural of a noun.

    Example:
        >>> [english_plural(w) for w in ["book", "box", "city", "boy", "knife"]]
        ['books', 'boxes', 'cities', 'boys', 'knives']
    """
    if noun in _ENGLISH_PLURALS:
        return _ENGLISH_PLURALS[noun]
    return _with_s(noun)


def _with_s(word: str) -> str:
    if word.endswith(("s", "x", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def english_forms(verb: str) -> dict[str, str]:
    """Returns a verb's forms by name: ``base``, ``s``, ``past`` and ``ing``; particles are kept.

    Example:
        >>> english_forms("take off")["past"], english_forms("carry")["s"]
        ('took off', 'carries')
        >>> english_forms("live")["ing"]
        'living'
    """
    head, space, particle = verb.partition(" ")
    if head in _ENGLISH_VERBS:
        forms = _ENGLISH_VERBS[head].split()
    elif head.endswith("e"):
        forms = [head + "s", head + "d", head[:-1] + "ing"]
    elif head.endswith("y") and head[-2] not in "aeiou":
        forms = [head[:-1] + "ies", head[:-1] + "ied", head + "ing"]
    else:
        forms = [_with_s(head), head + "ed", head + "ing"]
    names = ("base", "s", "past", "ing")
    return {n: f + space + particle for n, f in zip(names, [head, *forms], strict=True)}
