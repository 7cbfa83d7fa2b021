#!/usr/bin/env python3
"""Renders small templates, one for each corner of the language, by Python's jinja2 (3.1) and writes what it makes of them to
tests/golden/jinja_language.json; tests/jinja_test.cpp reads that file.

usage: python3 tools/goldens/jinja_language.py            (from the root of the repository; needs `pip install jinja2==3.1.6`)
"""

import json

import chat_templates

VARIABLES = {
    "s": "Hello, World",
    "padded": "  \t two words \n",
    "uni": "Zürich 日本 🙂",
    "n": 7,
    "f": 2.5,
    "yes": True,
    "no": None,
    "l": [3, 1, 2],
    "names": ["bob", "Alice", "carol"],
    "d": {"b": 1, "a": "x", "items": [1], "k y": None},
    "people": [{"name": "Ann", "age": 30, "city": {"zip": "8001"}}, {"name": "bob", "age": 4}, {"name": "Cid"}],
    "deep": {"a": {"b": [1, {"c": "é\"'\\\n\u0001"}]}},
    "html": "<a href='x'>&</a>",
}

CASES = r"""
{{ 1 }} {{ 1.0 }} {{ -2.5 }} {{ 1e3 }} {{ 1e16 }} {{ 1.5e-7 }} {{ 123456789012345678 }} {{ 0x1f }} {{ 0b101 }} {{ 0o17 }} {{ 1_000 }}
{{ true }} {{ False }} {{ none }} {{ None }} {{ missing }} {{ [true, none, 'a', missing] }}
{{ 'a\n\t\\\'\"\x41\u00e9\U0001f642\101\q' }}
{{ "a" 'b' "c" }}
{{ [1, 'two', 3.0, [], {}] }} {{ (1,) }} {{ () }} {{ (1, 2) }} {{ {'a': 1, 2: [3], none: true} }}
{{ 1, 2 }}
{{ 7 + 2 }} {{ 7 - 2 }} {{ 7 * 2 }} {{ 7 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 2 ** 3 ** 2 }}
{{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 1 + 0.5 }} {{ 3 * 'ab' }} {{ [1] * 3 }} {{ [1] + [2] }} {{ 'a' + 'b' }} {{ 'a' * 0 }} {{ true + true }}
{{ -n }} {{ +n }} {{ - 3 | abs }} {{ -f|abs }} {{ 0.0 }} {{ -0.0 }}
{{ 1 ~ 2 ~ none ~ true ~ missing ~ 'x' ~ [1] }}
{{ 2 * 3 ~ 4 }} {{ '1' + 2 ~ 3 }} {{ not true == false }} {{ 1 + 1 == 2 and 3 > 2 }}
{{ 1 == 1.0 }} {{ 1 == true }} {{ 'a' == 'a' }} {{ [1, 2] == [1, 2] }} {{ {'a': 1} == {'a': 1.0} }} {{ (1,) == [1] }} {{ none == false }} {{ missing == missing2 }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 2 >= 2.0 }} {{ 1 != 2 }}
{{ 'ell' in s }} {{ 'x' not in s }} {{ 1 in l }} {{ 'b' in d }} {{ 1 in d }} {{ 2 in (1, 2) }} {{ '' in 'a' }} {{ 'x' in missing }}
{{ 0 or 'b' }} {{ 'a' and 'b' }} {{ '' and 1 }} {{ none or false or [] or 'last' }} {{ not '' }} {{ not(1) }}
{{ 'y' if yes else 'n' }} {{ 'y' if no }} {{ 1 if false else 2 if false else 3 }} {{ ('a' if n > 3 else 'b') ~ 'c' }}
{{ s[0] }} {{ s[-1] }} {{ l[-1] }} {{ l[5] is defined }} {{ d['b'] }} {{ d.b }} {{ d['zz'] is defined }} {{ d.zz is defined }} {{ deep.a.b.1.c }} {{ deep['a']['b'][0] }}
{{ s[1:4] }} {{ s[:-7] }} {{ s[::-1] }} {{ s[::2] }} {{ s[-5:] }} {{ s[5:2] }} {{ s[100:] }} {{ l[1:] }} {{ l[::-1] }} {{ l[2:0:-1] }} {{ (1,2,3)[1:] }} {{ l[:none] }}
{{ uni[0:8] }} {{ uni[-1] }} {{ uni[::-1] }} {{ uni|length }} {{ uni[1] }}
{{ d.items is defined }} {{ d['items'] }} {{ d.items()|list }} {{ d.keys()|list }} {{ d.values()|list }} {{ d.get('b') }} {{ d.get('q') }} {{ d.get('q', 5) }}
{{ none.x is defined }} {{ 1 .x is defined }} {{ 's'.x is undefined }}
{{ missing.x }}
{{ missing + 1 }}
{{ missing() }}
{{ none + 1 }}
{{ 'a' + 1 }}
{{ l.nope() }}
{{ 1 / 0 }}
{{ [] < 1 }}
{{ 'x' in none }}
{% for x in none %}{% endfor %}
{{ s|nofilter }}
{% if s is notest %}{% endif %}
{% if yes %}a{% elif no %}b{% else %}c{% endif %}{% if no %}a{% elif yes %}b{% endif %}{% if no %}a{% else %}{% endif %}
{% if [] or {} or '' or 0 or 0.0 or none or missing %}true{% else %}false{% endif %}
{% for x in l %}{{ x }}{% if not loop.last %}, {% endif %}{% endfor %}
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.cycle('o', 'e') }};{% endfor %}
{% for x in l %}[{{ loop.previtem }}<{{ x }}<{{ loop.nextitem }}]{% endfor %}
{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }} {% endfor %}
{% for x in [] %}a{% else %}empty{% endfor %}{% for x in l if x > 5 %}a{% else %}none{% endfor %}
{% for x in l if x > 1 %}{{ loop.index }}:{{ x }} {% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }},{% endfor %}{% for k, v in d|items %}{{ k }}{% endfor %}
{% for a, b in [(1, 2), (3, 4)] %}{{ a + b }} {% endfor %}{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for c in 'añ日' %}{{ c }}|{% endfor %}
{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for x in l %}{% for y in l %}{{ loop.index }}{% if y == 1 %}{% break %}{% endif %}{% endfor %}{{ loop.index }} {% endfor %}
{% for p in [{'n': 1, 'c': [{'n': 2, 'c': [{'n': 3}]}]}] recursive %}{{ p.n }}@{{ loop.depth }}{% if p.c %}({{ loop(p.c) }}){% endif %}{% endfor %}
{% for x in l %}{% set y = x %}{% endfor %}{{ y is defined }}
{% set x = 1 %}{% for i in l %}{{ x }}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}
{% set ns = namespace(total=0, items=[]) %}{% for i in l %}{% set ns.total = ns.total + i %}{% endfor %}{{ ns.total }}{{ ns.nope is defined }}
{% set x = 1 %}{% if yes %}{% set x = 2 %}{% endif %}{{ x }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set t = (1, 2) %}{{ t }}
{% set block %}in {{ n }}{% set inner = 1 %}{% endset %}[{{ block }}]{{ inner is defined }}
{% set up | upper | replace('A', '-') %}banana{% endset %}{{ up }}
{% filter upper %}a{{ n }}b{% endfilter %}{% filter replace('a', 'b')|trim %} aaa {% endfilter %}
{% with a = 1, b = n %}{{ a }}{{ b }}{% set c = 3 %}{% endwith %}{{ a is defined }}{{ c is defined }}
{% macro m(a, b=2, c=a) %}{{ a }}-{{ b }}-{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=5, a=4) }}{{ m() }}{{ m(1, 2, 3) }}
{% macro outer(x) %}{{ inner(x) ~ n }}{% endmacro %}{% macro inner(x) %}<{{ x }}>{% endmacro %}{{ outer(1) }}
{% macro fact(k) %}{{ 1 if k < 2 else k * (fact(k - 1)|int) }}{% endmacro %}{{ fact(10) }}
{% macro va(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ va(1, 2, 3, k=4) }}
{% macro box(t) %}[{{ t }}:{{ caller() }}]{% endmacro %}{% call box('x') %}in{{ n }}{% endcall %}
{% macro each(xs) %}{% for x in xs %}{{ caller(x, loop.index) }}{% endfor %}{% endmacro %}{% call(v, i) each(l) %}{{ i }}={{ v }} {% endcall %}
{% set x = 'outer' %}{% macro m() %}{{ x }}{% set x = 'inner' %}{{ x }}{% endmacro %}{{ m() }}{{ x }}
{% macro m() %}{{ late }}{% endmacro %}{% set late = 'bound' %}{{ m() }}
{% raw %}{{ n }} {% if %} {# #}{% endraw %}{{ n }}
{# comment {{ n }} #}a{#- b -#} c
{% generation %}{% set z = 1 %}{{ n }}{% endgeneration %}{{ z is defined }}
{{ {'a': {'b': 1}}['a']['b'] }}{{ {'a': {}} }}{{ {} }}
{{ s.upper() }}{{ s.lower() }}{{ s.title() }}{{ 'aB cd'.capitalize() }}{{ "it's o'neil x1y".title() }}
[{{ padded.strip() }}][{{ padded.lstrip() }}][{{ padded.rstrip() }}][{{ 'xxaxx'.strip('x') }}][{{ 'abcba'.lstrip('ba') }}][{{ 'abcba'.rstrip('ab') }}][{{ ' a '.strip(none) }}]
{{ 'a,b,,c'.split(',') }}{{ 'a,b,c'.split(',', 1) }}{{ 'a,b,c'.rsplit(',', 1) }}{{ padded.split() }}{{ ' a  b c '.split(none, 1) }}{{ ' a  b c '.rsplit(none, 1) }}{{ ''.split() }}{{ ''.split(',') }}{{ 'abab'.split('ab') }}
{{ 'a\nb\r\nc\n'.splitlines() }}{{ 'a\nb\n'.splitlines(true) }}
{{ s.startswith('Hell') }}{{ s.endswith('ld') }}{{ s.startswith(('x', 'H')) }}{{ s.endswith('') }}
{{ s.replace('l', 'L') }}{{ s.replace('l', 'L', 2) }}{{ 'abc'.replace('', '-') }}{{ 'aaa'.replace('aa', 'b') }}
{{ s.find('o') }}{{ s.rfind('o') }}{{ s.find('zz') }}{{ uni.find('日') }}{{ s.count('l') }}{{ 'aaa'.count('aa') }}{{ 'abc'.count('') }}
{{ ','.join(['a', 'b']) }}{{ 'x'.join('abc') }}
{{ '12'.isdigit() }}{{ 'a1'.isdigit() }}{{ 'aé'.isalpha() }}{{ ' \t'.isspace() }}{{ 'aB'.islower() }}{{ 'AB1'.isupper() }}{{ ''.isdigit() }}
{{ 'prefix'.removeprefix('pre') }}{{ 'prefix'.removesuffix('fix') }}{{ 'a'.removeprefix('b') }}
{% set q = [1] %}{% set _ = q.append(2) %}{{ q }}{{ q.pop() }}{{ q.pop(0) }}{{ q }}{{ [1, 2, 1].count(1) }}{{ [5, 6].index(6) }}
{{ s|upper }}{{ s|lower }}{{ 'hello wORLD'|title }}{{ 'hello WORLD'|capitalize }}{{ "they're bill's (x) a-b"|title }}{{ 12|upper }}
[{{ padded|trim }}][{{ 'xax'|trim('x') }}][{{ 5|trim }}]
{{ l|length }}{{ s|count }}{{ d|length }}{{ ''|length }}{{ missing|length }}
{{ l|first }}{{ l|last }}{{ s|first }}{{ s|last }}{{ d|first }}{{ []|first is defined }}
{{ l|join }}{{ l|join(', ') }}{{ people|join('-', attribute='name') }}{{ 'abc'|join('.') }}{{ [1, none, true]|join(' ') }}{{ missing|join }}
{{ l|sort }}{{ l|sort(reverse=true) }}{{ names|sort }}{{ names|sort(case_sensitive=true) }}{{ people|sort(attribute='name')|map(attribute='name')|list }}{{ 'cab'|sort }}
{{ l|reverse|list }}{{ 'abc'|reverse }}{{ l|list }}{{ 'ab'|list }}{{ d|list }}{{ l|max }}{{ l|min }}{{ names|max }}{{ l|sum }}{{ people[:2]|sum(attribute='age') }}{{ [0.1, 0.2]|sum }}
{{ [1, 1, 2, 'a', 'A']|unique|list }}{{ names|unique(case_sensitive=true)|list }}
{{ d|dictsort }}{{ {'B': 1, 'a': 2}|dictsort }}{{ {'B': 1, 'a': 2}|dictsort(true) }}{{ {'b': 1, 'a': 2}|dictsort(false, 'value') }}{{ {'b': 1, 'a': 2}|dictsort(reverse=true) }}
{{ d|items|list }}{{ missing|items|list }}
{{ missing|default('x') }}{{ ''|default('x') }}{{ ''|default('x', true) }}{{ none|d('x') }}{{ missing|default }}{{ false|default(default_value=1, boolean=true) }}
{{ l|map('string')|list }}{{ names|map('upper')|join(',') }}{{ people|map(attribute='age')|list }}{{ people|map(attribute='age', default=0)|list }}{{ people|map(attribute='city.zip', default='-')|list }}{{ ['a-b']|map('replace', '-', '+')|list }}
{{ l|select('gt', 1)|list }}{{ l|select('odd')|list }}{{ [0, 1, '']|select|list }}{{ l|reject('equalto', 1)|list }}{{ [0, 1, '']|reject|list }}
{{ people|selectattr('age')|map(attribute='name')|list }}{{ people|selectattr('age', 'defined')|list|length }}{{ people|selectattr('name', 'equalto', 'bob')|list }}{{ people|rejectattr('age', 'undefined')|list|length }}{{ people|selectattr('name', 'in', ['Ann', 'Cid'])|map(attribute='name')|join }}{{ people|selectattr('age', '>', 10)|list|length if false }}
{{ '42'|int }}{{ ' 42 '|int }}{{ '4.7'|int }}{{ 'x'|int }}{{ 'x'|int(-1) }}{{ '1f'|int(base=16) }}{{ 3.9|int }}{{ none|int }}{{ true|int }}{{ '1_000'|int }}
{{ '4.5'|float }}{{ 'x'|float }}{{ 'x'|float(1.5) }}{{ 3|float }}{{ '1e3'|float }}
{{ 2.5|round }}{{ 3.5|round }}{{ 2.675|round(2) }}{{ 5|round }}{{ 1.25|round(1) }}{{ 1.2|round(0, 'ceil') }}{{ 1.29|round(1, 'floor') }}{{ -3|abs }}{{ -2.5|abs }}
{{ 'a\nb\n\nc'|indent }}|{{ 'a\nb'|indent(2) }}|{{ 'a\nb'|indent(2, true) }}|{{ 'a\n\nb\n'|indent(2, blank=true) }}|{{ 'a\nb'|indent('> ') }}
{{ html|escape }}{{ html|e|e }}{{ html|safe }}{{ html|safe + html }}{{ 'x<' + html|safe }}{{ html|safe ~ '<' }}{{ (html|safe).upper() }}
{{ 5|string + 'x' }}{{ true|string }}{{ none|string }}{{ 1.0|string }}{{ [1, 'a']|string }}{{ {'a': 'b'}|string }}
{{ 'it\'s' }}{{ ['it\'s', 'a"b', '\'"', '\n\t\\', 'é', '\x01', '\x7f', '\u200b', '🙂'] }}
{{ l|tojson }}{{ d|tojson }}{{ deep|tojson }}{{ none|tojson }}{{ true|tojson }}{{ 1.0|tojson }}{{ 1e100|tojson }}{{ s|tojson }}{{ html|tojson }}{{ uni|tojson }}{{ (1, 2)|tojson }}{{ {1: 2, none: 3, true: 4, 1.5: 5}|tojson }}
{{ deep|tojson(indent=2) }}{{ []|tojson(indent=2) }}{{ {}|tojson(indent=4) }}{{ [[], {}]|tojson(indent=1) }}{{ [1, 2]|tojson(indent=0) }}
{{ deep|tojson(ensure_ascii=true) }}{{ uni|tojson(ensure_ascii=true) }}{{ uni|tojson(true) }}{{ {'b': 1, 'a': 2}|tojson(sort_keys=true) }}{{ d|tojson(separators=(',', ':')) }}{{ d|tojson(none, 2) }}{{ '\x7f\u2028'|tojson }}
{{ missing|tojson }}
{{ '{"a": [1, 2.0, null, true, "é"]}'|from_json }}
{{ 'not json'|from_json }}
{{ missing is defined }}{{ missing is undefined }}{{ n is defined }}{{ missing is none }}{{ no is none }}{{ no is not none }}{{ missing is iterable }}{{ missing is sequence }}{{ missing is mapping }}{{ missing is string }}
{{ n is number }}{{ n is integer }}{{ f is integer }}{{ f is float }}{{ yes is boolean }}{{ yes is number }}{{ yes is integer }}{{ 1 is true }}{{ yes is true }}{{ false is false }}{{ 0 is false }}
{{ s is string }}{{ s is iterable }}{{ s is sequence }}{{ l is iterable }}{{ l is sequence }}{{ l is mapping }}{{ d is mapping }}{{ d is iterable }}{{ d is sequence }}{{ n is iterable }}{{ n is sequence }}{{ none is iterable }}
{{ 3 is odd }}{{ 4 is even }}{{ 9 is divisibleby(3) }}{{ 9 is divisibleby 2 }}{{ 5 is eq 5 }}{{ 5 is ne(5) }}{{ 5 is gt 4 }}{{ 5 is lt 4 }}{{ 5 is ge 5 }}{{ 5 is le 4 }}{{ 1 is in [1] }}{{ 'a' is in 'abc' }}{{ 1 is not in [1] }}{{ none is sameas none }}{{ 1 is sameas true }}
{{ 'ab' is lower }}{{ 'AB' is upper }}{{ 'Ab' is lower }}{{ namespace is callable }}{{ n is callable }}
{{ n is number and s is string or false }}{{ not n is string }}{{ n is not string }}{{ (n is number) == true }}{{ n is eq 7 and l is defined }}
{{ range(3)|list }}{{ range(1, 4)|list }}{{ range(5, 0, -2)|list }}{{ range(0)|list }}{{ dict(a=1, b=2) }}
{{ range(1000000)|list }}
{{ raise_exception('stop ' ~ n) }}
{{ strftime_now('%Y-%m-%d %H:%M:%S %d %b %Y %B %A %a %j %p %y %%') }}{{ strftime_now is defined }}
{{ -3|abs + 1 }}{{ 'a'|upper ~ 'b'|upper }}{{ 1 + 2|string|length }}{{ (1 + 2)|string }}{{ not missing|default(false) }}
{{ s.split(',')[0]|lower }}{{ s.split(', ')|last|upper }}{{ people[0].name.upper()[0] }}{{ d['a'] * 3 }}
{{ 1 if n else 2 }}{{ [x for x in l] }}
{{ 'unclosed }}
{% if %}{% endif %}
{% endif %}
{% for x in l %}
{% unknown %}
{{ 1 + }}
{{ (1, }}
{% set 1 = 2 %}
{% break %}
{{ a b }}
{% set x.y = 1 %}
{% set a, b = [1] %}
""".strip().split("\n")

# White space: the templates that need line ends of their own.
CASES += [
    "a\n{% if yes %}\nb\n{% endif %}\nc\n",
    "a\n  {% if yes %}  \n  b\n  {% endif %}\n  c",
    "a\n  {%+ if yes %}b{%+ endif %}\nc",
    "a  \n  {%- if yes -%}  \n  b  \n  {%- endif -%}  \n  c",
    "a  {{- n -}}  b {{ n -}}\n\n c",
    "  {{ n }}\n  {# comment #}\n  {% set x = 1 %}\n  x",
    "x {# comment #}\ny\n{#- comment -#}\nz",
    "{% for x in l %}\n  - {{ x }}\n{% endfor %}\nend",
    "{% for x in l -%}\n  - {{ x }}\n{% endfor %}\n\nend\n\n",
    "{% if yes +%}\na{% endif +%}\nb",
    "a {% raw %}\n {{ x }} \n{% endraw %}\nb {%- raw -%}  {% x %}  {%- endraw -%}  c",
    "\n\n{% if yes %}{% endif %}\n\n",
    "a\r\nb\rc\r\n",
    "{{ 'a\nb' }}\n",
    "{{\n n\n }}{%\n if yes\n %}x{%\n endif\n %}",
    "  {% if yes %}a{% endif %}\u00a0\u3000{%- if yes %}b{% endif -%}\u2003 c",
    "{",
    "{}{ {%%",
    "{{",
    "}} %} #}",
    "",
    "\n",
]


def main():
    env = chat_templates.environment()
    goldens = []
    for case in CASES:
        golden = {"template": case}
        try:
            golden["text"] = env.from_string(case).render(json.loads(json.dumps(VARIABLES)))
        except chat_templates.jinja2.exceptions.TemplateSyntaxError as e:
            golden["syntax_error"] = str(e)
        except Exception as e:  # whatever a template stumbles over
            golden["error"] = str(e)
        goldens.append(golden)
    path = chat_templates.ROOT / "jinja_language.json"
    document = {"variables": VARIABLES, "cases": goldens}
    path.write_text(json.dumps(document, ensure_ascii=False, indent=0, separators=(",", ":")) + "\n")
    print(f"{len(goldens)} cases, {sum('text' not in g for g in goldens)} errors")


if __name__ == "__main__":
    main()
