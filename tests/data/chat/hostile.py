"""Chat templates that would compute for hours, take all memory, or reach what they may not."""


def grown(how, start="(1,)", turns=40):
    """Makes ``n.s`` and ``n.t`` ever larger."""
    return (
        f"{{% set n = namespace(s={start}, t={start}) %}}{{% for i in range({turns}) %}}"
        f"{{% set n.s = {how.format('n.s')} %}}{{% set n.t = {how.format('n.t')} %}}"
        f"{{% endfor %}}"
    )


TUPLES = grown("({0}, {0})")
NESTED = grown("[{0}, {0}]", "[1]", 60)
LONG = "{% set long = 'Ab ' * 30000 %}"

# Refused by their texts, by the length of what they write or by the sandbox.
REFUSED = {
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "recursive loop": "{% for x in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "replaced": "{{ 'ab' | replace('', 'x' * 90000) }}",
    "translated": "{{ 'b'.translate({98: 'c' * 9000}) }}",
    "written": "{% for i in range(9999) %}" + "x" * 50_000 + "{% endfor %}",
    "deep": "{{ " + "(" * 3000 + " }}",
    "class": "{{ ''.__class__ }}",
    "class by filter": "{{ messages | attr('__class__') }}",
    "class by format": "{{ '{0.__class__}'.format(1) }}",
    "class by map": "{{ [1] | map(attribute='__class__') | list }}",
    "globals": "{{ cycler.__init__.__globals__ }}",
    "context": "{{ self._TemplateReference__context }}",
    "namespace": "{{ namespace(__class__=1) }}",
    "append": "{{ messages.append(1) }}",
}

# Refused by the limits of the process.
LIMITED = {
    "loops": "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
    "skips": "{% for i in range(9999) %}{% for j in range(9999) if 0 %}{% endfor %}{% endfor %}",
    "sliced": "{% set a = range(99999) | list %}{% for i in range(99999) %}{% set b = a[1:] %}"
    "{% endfor %}",
    "compared": "{% set a = range(99999) | list %}{% for i in range(99999) %}"
    "{% set b = a == a[0:] %}"
    "{% endfor %}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "range": "{{ range(10**9) | list }}",
    "product": "{{ 'a' * 10**9 }}",
    "filter": "{{ 'a' | center(10**9) }}",
    "method": "{{ 'a'.ljust(10**9) }}",
    "doubled": grown("{0} ~ {0}", "'ab'", 60),
    "added": grown("{0} + {0}", "'ab'", 60),
    "block": "{% set n = namespace(x='ab') %}{% for i in range(60) %}"
    "{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}",
    "joined": "{{ range(9999) | map('string') | join('b' * 9999) }}",
    "indented": "{{ ('a\n' * 40000) | indent(9000) }}",
    "indented JSON": "{{ ([0] * 40000) | tojson(indent=9000) }}",
    "separated JSON": "{{ range(9999) | list | tojson(separators=('x' * 50000, ':')) }}",
    "printf": "{{ '%999999999d' % 1 }}",
    "printf by name": "{{ ('%(a)s' * 20000) % {'a': 'x' * 90000} }}",
    "format": "{{ '{:999999999}'.format(1) }}",
    "format by place": "{{ ('{0}' * 20000).format('x' * 90000) }}",
    "format by map": "{{ ('{a}' * 20000).format_map({'a': 'x' * 90000}) }}",
    "computed width": "{{ '{:{w}}'.format(1, w=10**9) }}",
    "wrapped": "{{ ('a' * 20000) | wordwrap(1, wrapstring='x' * 90000) }}",
    "list": "{{ ([1] * 10**9) | length }}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "squares": grown("{0} * {0}", "7", 60),
    "tower": grown("{0} * {0} * {0}", "9", 40),
    "nested, printed": NESTED + "{{ n.s }}",
    "nested, as JSON": NESTED + "{{ n.s | tojson }}",
    "nested, compared": NESTED + "{{ n.s == n.t }}",
    "nested, printed by filter": NESTED + "{{ n.s | pprint }}",
    "hashed": TUPLES + "{{ {n.s: 1} | length }}",
    "looked up": TUPLES + "{{ {}.get(n.s) }}",
    "counted": TUPLES + "{{ [n.s].count(n.t) }}",
    "found": TUPLES + "{{ [n.s].index(n.t) }}",
    "in": TUPLES + "{{ n.s in [n.t] }}",
    "unique": TUPLES + "{{ [n.s, n.t] | unique | list | length }}",
    "sorted": TUPLES + "{{ [n.s, n.t] | sort | length }}",
    "printed tuple": TUPLES + "{{ '%s' % n.s }}",
    "printed tuples": TUPLES + "{{ '%s' % (n.s,) }}",
    "undefined of it": TUPLES + "{{ messages[n.s].x }}",
    "undefined in it": TUPLES + "{{ {}[n.s].x }}",
    "summed": TUPLES + "{{ [n.s, n.t] | map('string') | list | length }}",
    "tests": LONG + "{% for i in range(9000) %}{% if long is lower or long is upper %}{% endif %}"
    "{% if long | upper is upper %}{% endif %}{% endfor %}",
    "words": LONG + "{% for i in range(9000) %}{% set x = long | wordcount %}{% endfor %}",
    "titles": LONG + "{% for i in range(9000) %}{% set x = long | title %}{% endfor %}",
}
HOSTILE = REFUSED | LIMITED
