"""The small templates whose outputs template_oracle.py asks jinja2 for."""

VARIABLES = {
    "text": "Hello World",
    "padded": "  \n pad \t",
    "uni": "Žluťoučký kůň 日本 🙂",
    "lines": "one\n\ntwo\r\nthree",
    "n": 7,
    "f": 2.5,
    "big": 1e16,
    "tiny": 0.00001,
    "yes": True,
    "no": False,
    "nil": None,
    "empty": "",
    "nums": [3, 1, 2],
    "words": ["pear", "Apple", "fig", "apple"],
    "none_list": [],
    "d": {"b": 1, "a": "x", "items": "shadow", "nested": {"k": [1, {"z": None}]}},
    "users": [
        {"name": "Zed", "age": 30, "ok": True},
        {"name": "amy", "age": 25},
        {"name": "Bob", "age": 41, "ok": False, "tags": {"x": 5}},
    ],
    "quotes": "it's \"fine\"\\ \x07 \x7f \u00a0 \u200b é",
    "just_single": "it's",
    "html": "<a href=\"x\">&'</a>",
    "json_text": '{"b": [1, 2.0, "\\u00e9"], "a": null}',
}


def _printed(expressions):
    return ["{{ " + e + " }}" for e in expressions.strip().splitlines() if e.strip()]


EXPRESSIONS = _printed(
    r"""
text
1
-1
1.0
1e3
1.5e-7
1e16
123456789012345678
1e22
0.1 + 0.2
1/3
10/2
7 // 2
-7 // 2
7 % 3
-7 % 3
7 % -3
7.5 // 2
-7.5 % 2
7.5 % -2
2 ** 10
2 ** -1
-2 ** 2
2 ** 3 ** 2
2 ** 0.5
1_000 + 0x1F + 0b101 + 0o17
1 // 0
1 % 0
1 / 0
9223372036854775807
true
True
none
None
false
[1, 'two', none, true, 1.5]
(1, 2)
(1,)
()
{}
[]
{'a': 1, 'b': [1, {'c': 'd'}]}
{1: 'x', true: 'y', none: 'z', 2.5: 'w'}
{'a': 1, 'a': 2}
d
users
[quotes, just_single, uni, empty]
quotes
"a" 'b' "c"
'\n\t\\\'\"\x41\u00e9\U0001F600\101\q'
"\
x"
text + '!'
text ~ 1 ~ none ~ true ~ 1.5 ~ nums ~ d
'a' + 1
1 + 'a'
'a' + none
'ab' * 3
3 * 'ab'
'ab' * 0
'ab' * -1
[1, 2] * 2
[1] + [2]
(1,) + (2,)
[1] + (2,)
1 + true
1 ~ 2 + 3 ~ 4
1 + 2 ~ 3
2 * 3 ~ 4
-n
+n
--n
-'a'
not n
not not n
not none
n == 7
n == 7.0
1 == true
'1' == 1
n != 7
1 < 2 < 3
1 < 3 < 2
3 > 2 >= 2 <= 5
'a' < 'b'
'Z' < 'a'
[1, 2] < [1, 3]
[1, 2] == [1, 2]
(1, 2) == [1, 2]
{'a': 1, 'b': 2} == {'b': 2, 'a': 1}
{'a': 1} == {'a': 2}
'a' < 1
none == none
none < 1
missing == missing
missing == none
'World' in text
'xyz' in text
'xyz' not in text
not 'xyz' in text
1 in nums
9 in nums
9 not in nums
'a' in d
'z' in d
1 in text
'a' in none
'a' in missing
[] in [[]]
true and false
true or false
n and text
empty or 'default'
none or false or 0
0 and missing.x
1 if yes else 2
1 if no else 2
'x' if no
('x' if no) is defined
1 if no else 2 if no else 3
'a' if yes else 'b' ~ 'c'
text[0]
text[-1]
text[99]
text[0:5]
text[:5]
text[-5:]
text[::2]
text[::-1]
text[8:2:-2]
text[5:1]
text[:-1]
text[100:]
text[::0]
uni[0]
uni[-1]
uni[2:5]
uni[::-1]
uni|length
nums[0]
nums[-1]
nums[5]
nums[1:]
nums[::-1]
nums[:-1]
nums[-1:0:-1]
nums[::-2]
nums[10:]
nums['x']
nums.0
nums[true]
(1, 2, 3)[1:]
d['a']
d.a
d.nested.k[1].z
d['nested']['k']
d.missing
d.missing.deeper
d['missing']
d['missing']['deeper']
d.items()|list
d['items']
d.keys()|list
d.values()|list
d.get('a')
d.get('zz')
d.get('zz', 5)
{1: 'one'}[1]
{1: 'one'}[1.0]
{1: 'one'}[true]
none.x
none['x']
n.x
n[0]
text.missing
text.missing.more
missing
missing.x
missing['x']
missing()
missing + 1
missing ~ 'x'
missing * 2
missing < 1
-missing
text()
(1).x
[1, 2,]
{'a': 1,}
[[1, 2], [3]]
(1)
((1))
1, 2
'%' ~ '%'
'a' 'b'|upper
-1|abs
(-1)|abs
'a'|upper + 'b'
'a' + 'b'|upper
'a' ~ 'b'|upper
text.upper()|lower
'x' is string and 1 is number
bos_token
bos_token + text + eos_token
range(3)|list
range(1, 4)|list
range(5, 0, -2)|list
range(0)|list
range(3, 1)|list
range(1, 2, 0)|list
range(200000)|list
dict(a=1, b='x')
dict({'z': 0}, a=1)
namespace(a=1).a
strftime_now('%d %b %Y')
strftime_now('%Y-%m-%dT%H:%M:%S %A %B %j %p %y %%')
strftime_now('%-d')
raise_exception('no!')
raise_exception('no: ' ~ text)
"""
)

FILTERS = _printed(
    r"""
text|upper
text|lower
uni|upper
uni|lower
'ÀÉÎÕÜß'|lower
'αβγω абвя ёђ'|upper
'hELLO wORLD'|capitalize
'élan Vital'|capitalize
'hello wORLD-foo (bar) it\'s'|title
''|capitalize
n|upper
none|upper
true|lower
missing|upper
padded|trim
'[' ~ padded|trim ~ ']'
'xxhixx'|trim('x')
'xyhiyx'|trim('xy')
''|trim
'\u3000\u00a0x\u2003'|trim
n|trim
none|trim
text|length
nums|length
d|length
empty|length
missing|length
n|length
none|length
text|count
n|string
none|string
1.0|string
nums|string
text|string
d|items|list
missing|items|list
nums|items|list
nums|join
nums|join(', ')
nums|join(d='-')
words|join(', ')
[1, none, 'a', true]|join('|')
users|join(', ', attribute='name')
users|map(attribute='name')|join(', ')
'abc'|join('-')
none_list|join(',')
d|join(',')
n|join
missing|join(',')
missing|default('x')
missing|default
none|default('x')
none|default('x', true)
empty|default('x', true)
empty|default('x', boolean=true)
0|default(5, boolean=false)
d.nope|default('n/a')
missing|d('q')
missing.x|default('q')
'abc'|list
d|list
nums|list
(1, 2)|list
none_list|list
n|list
users|map(attribute='age')|list
users|map(attribute='ok', default='?')|list
users|map(attribute='tags.x', default=0)|list
words|map('upper')|list
words|map('replace', 'p', 'b')|list
words|map('length')|sum
words|map('nofilter')|list
words|map|list
users|selectattr('ok')|map(attribute='name')|list
users|selectattr('ok', 'defined')|map(attribute='name')|list
users|rejectattr('ok', 'defined')|map(attribute='name')|list
users|rejectattr('ok')|map(attribute='name')|list
users|selectattr('name', 'equalto', 'Bob')|list
users|selectattr('age', 'gt', 26)|map(attribute='name')|list
users|selectattr('age', '>=', 30)|map(attribute='name')|list
users|selectattr('name', 'in', ['amy', 'Zed'])|map(attribute='age')|list
users|selectattr('name', 'nosuchtest')|list
users|selectattr('tags.x', 'eq', 5)|list|length
nums|select('odd')|list
nums|select|list
[0, 1, '', 'a', none]|select|list
[0, 1, '', 'a', none]|reject|list
nums|reject('gt', 1)|list
nums|reject('divisibleby', 2)|list
text|replace('o', '0')
text|replace('o', '0', 1)
text|replace('l', '')
text|replace('', '-')
text|replace('', '-', 3)
'aaa'|replace('aa', 'b')
n|replace(7, 8)
text|replace('World', none)
text|replace('x')
nums|first
nums|last
text|first
text|last
none_list|first
none_list|first is defined
none_list|last
''|first
d|first
d|last
uni|last
lines|indent
lines|indent(2)
lines|indent(2, true)
lines|indent(2, first=true, blank=true)
lines|indent(width='> ')
''|indent(2, true)
'a\n'|indent
'a\n\n'|indent(1, blank=true)
'x'|indent(-1)
words|unique|list
words|unique(true)|list
[1, 1.0, true, 2, '2', none, none]|unique|list
users|unique(attribute='ok')|map(attribute='name')|list
d|dictsort
{'b': 2, 'A': 3, 'a': 1}|dictsort
{'b': 2, 'A': 3, 'a': 1}|dictsort(true)
{'b': 2, 'A': 3, 'a': 1}|dictsort(by='value')
{'b': 2, 'A': 3, 'a': 1}|dictsort(reverse=true)
{'b': 2}|dictsort(by='other')
nums|dictsort
nums|sort
nums|sort(reverse=true)
nums|sort(true)
words|sort
words|sort(case_sensitive=true)
users|sort(attribute='name')|map(attribute='name')|list
users|sort(attribute='age', reverse=true)|map(attribute='name')|list
['b', 1]|sort
'hello'|sort|join
'42'|int
'42.9'|int
' 42 '|int
'-17'|int
'abc'|int
'abc'|int(5)
'abc'|int(default=-1)
'0x1F'|int(base=16)
'ff'|int(0, 16)
'101'|int(base=2)
4.9|int
-4.9|int
none|int
true|int
nums|int
'1_000'|int
'3.5'|float
'x'|float
'x'|float(1.5)
3|float
'1e3'|float
none|float
text|safe
html|safe
-5|abs
-5.5|abs
'x'|abs
2.5|round
3.5|round
2.567|round(2)
2.5|round(method='ceil')
2.561|round(1, 'floor')
2.675|round(2)
5|round
7|round(method='ceil')
2.5|round(method='odd')
nums|max
nums|min
none_list|max
words|max
words|min(case_sensitive=true)
users|max(attribute='age')
nums|sum
users|sum(attribute='age')
nums|sum(start=10)
none_list|sum
nums|reverse|list
'abc'|reverse
d|tojson
users|tojson
users|tojson(indent=2)
d|tojson(indent=4)
d|tojson(4)
d|tojson(indent=0)
d|tojson(indent='--')
d|tojson(sort_keys=true)
d|tojson(separators=(',', ':'))
{}|tojson(indent=2)
[]|tojson(indent=2)
[[], {}, [1]]|tojson(indent=1)
html|tojson
uni|tojson
uni|tojson(ensure_ascii=true)
quotes|tojson
text|tojson
n|tojson
f|tojson
big|tojson
tiny|tojson
1e100|tojson
-0.0|tojson
none|tojson
true|tojson
(1, 2)|tojson
{1: 2, none: 3, true: 4, 1.5: 5}|tojson
missing|tojson
[missing]|tojson
range|tojson
json_text|from_json
json_text|from_json|tojson
(json_text|from_json).b[2]
'{bad'|from_json
text|upper|lower|replace('l', 'L')|trim('h')
(text|lower).split(' ')|join('+')
text|nofilter
text|upper(1)
text|trim(charz='x')
text|default('a', 'b', 'c')
"""
)

TESTS = _printed(
    r"""
text is defined
missing is defined
d.a is defined
d.z is defined
missing is undefined
text is undefined
none is none
nil is none
missing is none
text is string
n is string
missing is string
d is mapping
nums is mapping
missing is mapping
text is iterable
nums is iterable
d is iterable
n is iterable
none is iterable
missing is iterable
nums is sequence
text is sequence
d is sequence
n is sequence
missing is sequence
yes is boolean
n is boolean
1 is true
yes is true
no is true
no is false
0 is false
n is number
f is number
yes is number
text is number
n is integer
yes is integer
f is integer
f is float
n is float
n is odd
n is even
'a' is odd
n is divisibleby 7
n is divisibleby(2)
n is eq 7
n is equalto(7)
n is ne 7
n is lt 8
n is gt 8
n is ge(7)
n is le 6
n is in nums
3 is in [1, 3]
3 is not in [1, 3]
'x' is in 'xyz'
n is sameas n
none is sameas none
1 is sameas true
[] is sameas []
range is callable
text is callable
text.upper is callable
'abc' is lower
'aBc' is lower
'ABC' is upper
'123' is upper
'' is lower
text is not string
text is not none
not text is none
text is string is defined
text is nosuchtest
n is divisibleby
text is defined and n is odd
'upper' is filter
'nofilter' is filter
'odd' is test
d.items is defined
"""
)

METHODS = _printed(
    r"""
text.upper()
text.lower()
'hELLO'.capitalize()
'hello world it\'s a-b'.title()
padded.strip()
'[' ~ padded.lstrip() ~ ']'
'[' ~ padded.rstrip() ~ ']'
'xxhixx'.strip('x')
'xxhixx'.lstrip('x')
'xxhixx'.rstrip('x')
'xyhiyx'.strip('yx')
'hi'.strip(none)
'hi'.strip(1)
'日本日'.strip('日')
'a,b,,c'.split(',')
'a,b,,c'.split(',', 1)
'a,b,,c'.split(',', 0)
'a b  c '.split()
' a b  c '.split(none, 1)
'a b'.split(' ', maxsplit=1)
''.split()
''.split(',')
'abc'.split('')
'a--b--c'.split('--')
'a,b,c'.rsplit(',', 1)
'a,b,c'.rsplit(',')
' a b  c '.rsplit()
' a b  c '.rsplit(none, 1)
'a</think>b</think>c'.split('</think>')[-1]
'a</think>b'.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n')
lines.splitlines()
lines.splitlines(true)
text.startswith('Hello')
text.startswith('World')
text.startswith(('x', 'He'))
text.startswith(1)
text.endswith('World')
text.endswith(('x', 'ld'))
text.replace('o', '0')
text.replace('o', '0', 1)
text.replace('', '.')
text.replace('l', 1)
', '.join(words)
', '.join(nums)
'-'.join('abc')
''.join([])
text.find('o')
text.find('zz')
text.rfind('o')
uni.find('日')
uni.rfind('日')
'banana'.find('')
text.count('o')
'aaaa'.count('aa')
'abc'.count('')
text.removeprefix('Hello ')
text.removesuffix(' World')
text.removeprefix('zz')
nums.append(4)
nums.append is defined
nums.pop()
nums.count(1)
nums.index(2)
nums.index(99)
d.pop('a')
d.update({'x': 1})
d.get()
(1, 2, 1).count(1)
text.nosuch()
text.upper(1)
text.split(sep=' ')
"""
)

STATEMENTS = [
    "{% if yes %}a{% endif %}",
    "{% if no %}a{% elif n == 7 %}b{% else %}c{% endif %}",
    "{% if no %}a{% elif no %}b{% else %}c{% endif %}",
    "{% if missing %}a{% else %}b{% endif %}",
    "{% if 1, 2 %}a{% endif %}",
    "{% for x in nums %}{{ x }},{% endfor %}",
    "{% for x in nums if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% endfor %}",
    "{% for x in [] %}a{% else %}none{% endfor %}",
    "{% for x in nums if x > 9 %}a{% else %}none{% endfor %}",
    "{% for x in nums %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}"
    "{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }};{% endfor %}",
    "{% for x in nums %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}",
    "{% for x in nums %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}",
    "{% for x in nums %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }}{% endfor %}",
    "{% for x in nums %}{% for y in nums %}{{ loop.depth }}{{ loop.index }}{% endfor %}{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d|items %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d.items() if k != 'a' %}{{ k }}{% if not loop.last %},{% endif %}{% endfor %}",
    "{% for (a, b), c in [[(1, 2), 3]] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [[1, 2, 3]] %}{{ a }}{% endfor %}",
    "{% for a, b in [1] %}{{ a }}{% endfor %}",
    "{% for c in 'abc' %}{{ c }}.{% endfor %}",
    "{% for k in d %}{{ k }} {% endfor %}",
    "{% for x in missing %}a{% else %}b{% endfor %}",
    "{% for x in none %}a{% endfor %}",
    "{% for x in n %}a{% endfor %}",
    "{% for x in 1, 2, 3 %}{{ x }}{% endfor %}",
    "{% for x in nums %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in nums %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in nums %}{% if x == 9 %}{% break %}{% endif %}{% else %}never{% endfor %}",
    "{% for x in nums %}{% for y in nums %}{% break %}{% endfor %}{{ x }}{% endfor %}",
    "{% break %}",
    "{% for x in nums %}{{ loop }}{% endfor %}",
    "{{ loop }}",
    "{% for x in nums %}{{ loop.nosuch }}{% endfor %}",
    "{% for x in nums %}{% set y = x %}{% endfor %}{{ y }}",
    "{% set y = 0 %}{% for x in nums %}{% set y = y + x %}{{ y }}{% endfor %}{{ y }}",
    "{% for x in nums %}{% if loop.first %}{% set y = 1 %}{% endif %}[{{ y }}]{% endfor %}",
    "{% for x in nums %}{% set x = x * 2 %}{{ x }}{% endfor %}",
    "{% if yes %}{% set y = 5 %}{% endif %}{{ y }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% set a, b = [1, 2, 3] %}{{ a }}",
    "{% set (a, b) = 'xy' %}{{ a }}{{ b }}",
    "{% set a = 1, 2 %}{{ a }}",
    "{% set a = text if yes else '' %}{{ a }}",
    "{% set a %}x{{ n }}y{% endset %}[{{ a }}]{{ a is string }}",
    "{% set a | upper | trim %}  x{{ n }}y {% endset %}[{{ a }}]",
    "{% set a | replace('x', 'z') %}xx{% endset %}{{ a }}",
    "{% set a %}{% set b = 1 %}{{ b }}{% endset %}{{ a }}{{ b }}",
    "{% set ns = namespace() %}{% set ns.x = 1 %}{{ ns.x }}{{ ns.y }}{{ ns.y is defined }}",
    "{% set ns = namespace(x=0) %}{% for i in nums %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace({'x': 3}, y=4) %}{{ ns.x }}{{ ns['y'] }}",
    "{% set ns = namespace(x=0) %}{% set ns.x %}block{% endset %}{{ ns.x }}",
    "{% set ns = namespace() %}{% set ns.a, ns.b = 1, 2 %}{{ ns.a + ns.b }}",
    "{% set d.x = 1 %}",
    "{% set missing.x = 1 %}",
    "{% macro m(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(b=4, a=5) }}",
    "{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}",
    "{% macro m(a) %}[{{ a }}]{{ a is defined }}{% endmacro %}{{ m() }}",
    "{% macro m(a) %}x{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}x{% endmacro %}{{ m(z=2) }}",
    "{% macro m(a) %}x{% endmacro %}{{ m(1, a=2) }}",
    "{% macro m() %}{{ y }}{% endmacro %}{% set y = 1 %}{{ m() }}",
    "{% set y = 1 %}{% macro m() %}{{ y }}{% set y = 2 %}{{ y }}{% endmacro %}{{ m() }}{{ y }}",
    "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(4) }}",
    "{% macro f(x) %}{% for i in x %}{{ i }}{% endfor %}{% endmacro %}{{ f(nums) | upper }}",
    "{% macro f(x) %} {{ x }} {% endmacro %}{{ 'a' + f('b') + 'c' }}",
    "{% macro f() %}{% endmacro %}{{ f() == '' }}",
    "{% macro f(x, y=1) -%} a {%- endmacro f %}{{ f(1) }}",
    "{% macro f(a=1, b) %}{% endmacro %}",
    "{% for x in nums %}{% macro f() %}{{ x }}{% endmacro %}{{ f() }}{% endfor %}",
    "{{ f() }}{% macro f() %}x{% endmacro %}",
    "{% filter upper %}abc {{ text }}{% endfilter %}",
    "{% filter replace('a', 'b') | trim %} aaa {% endfilter %}",
    "{% filter indent(2) %}a\nb{% endfilter %}",
    "{% filter nofilter %}a{% endfilter %}",
    "{% generation %}x{{ n }}{% endgeneration %}y",
    "{% for x in nums %}{% generation %}{{ x }}{% endgeneration %}{% endfor %}",
    "{% generation %}{% set q = 1 %}{{ q }}{% endgeneration %}{{ q }}",
    "{% raw %}{{ x }}{% if %}{% endraw %}",
    "a {% raw -%}  {{ x }}  {%- endraw %} b",
    "{% raw %}\n{{ x }}\n{% endraw %}\nb",
    "  {% raw %} x {% endraw %}  \n",
    "{%- raw %}  x{% endraw -%}  y",
    "{# comment #}x",
    "a{#- comment -#} b",
    "a {#- comment #}\n b",
    "{# {{ x }} {% if %} #}x",
    "x\n  {# indented #}\ny",
    "{# unclosed",
    "{{ unclosed",
    "{% if x %}",
    "{% if x %}{% endfor %}",
    "{% endif %}",
    "{% nosuch %}",
    "{% for x in y",
    "{{ 'unclosed }}",
    "{{ }}",
    "{% %}",
    "{{ 1 + }}",
    "{{ (1 }}",
    "{{ [1 }}",
    "{{ 1) }}",
    "{{ {'a' 1} }}",
    "{{ a b }}",
    "{{ 1 = 2 }}",
    "{{ f(a=1, 2) }}",
    "{{ x. }}",
    "{{ x| }}",
    "{{ x is }}",
    "{{ x[ }}",
    "{{ x[] }}",
    "{{ $ }}",
    "{% set %}",
    "{% set 1 = 2 %}",
    "{% set x %}",
    "{% for x %}{% endfor %}",
    "{% for 1 in y %}{% endfor %}",
    "{% macro %}{% endmacro %}",
    "{% macro x %}{% endmacro %}",
    "{% if %}{% endif %}",
    "{{ {'a': {'b': 1}} }}",
    "{{ {'a': {'b': {'c': 1}}}['a']['b'] }}",
    "{{ '}}' }}{{ '%}' }}",
    "{% set x = '%}' %}{{ x }}",
    "{{ '{{' }}",
    "{ { } } % { #",
    "{",
    "{{'a'}}{{\"b\"}}",
    "{{-1}}",
    "{{ -1 }}",
    "{{\n1\n+\n2\n}}",
    "{{ 1 }}{{ 2 }} {{ 3 }}",
]

WHITESPACE = [
    "",
    "\n",
    "\n\n",
    "a\n",
    "a\r\nb\rc\r\n",
    "{{ n }}\n",
    "{{ n }}\n\n",
    "{{ n }}\nx",
    "{% if yes %}\nx\n{% endif %}\ny\n",
    "{% if yes %}\n\nx\n{% endif %}\n\ny\n",
    "  {% if yes %}\n  x\n  {% endif %}\n  y",
    "a  {% if yes %}\n  x\n  {% endif %}\n  y",
    "\t {% if yes %}x{% endif %}",
    " {{ n }} ",
    " {{- n -}} ",
    "a {{- n }} b",
    "a {{ n -}} b",
    "a\n\n {{- n -}} \n\n b",
    "a {%- if yes %} b {%- endif %} c",
    "a {% if yes -%} b {% endif -%} c",
    "a {%- if yes -%} b {%- endif -%} c",
    "  {%+ if yes %}x{% endif %}",
    "a\n  {%+ if yes %}x{%+ endif %}",
    "{% if yes +%}\nx{% endif %}",
    "{% if yes +%}\nx{% endif +%}\n",
    "{% if yes -%}\n\n  x{% endif %}",
    "a\n{%- if yes %}\nb\n{%- endif %}\nc",
    "a\n{% if yes %}\n{% if yes %}\nb\n{% endif %}\n{% endif %}\nc",
    "{% for x in nums %}\n  {{ x }}\n{% endfor %}\n",
    "{% for x in nums -%}\n  {{ x }}\n{%- endfor %}\n",
    "{% for x in nums %}\n\n  - {{ x }}\n\n{% endfor %}end",
    "  {# c #}\n  x",
    "  {#- c -#}\n  x",
    "x {# c #}\ny",
    "x {# c +#}\ny",
    "  {#+ c #}y",
    "{# a #}  {# b #}\n  {# c #}x",
    "{% set x = 1 %}\n\n{{ x }}",
    "{% set x = 1 %}  \n{{ x }}",
    "x{% set x = 1 %}\r\ny",
    "\u00a0{% if yes %}x{% endif %}",
    "\u3000\n\u3000{%- if yes %}x{% endif -%}\u3000 y",
    "  {{ n }}\n  {% if yes %}\n    {{ n }}\n  {% endif %}\n",
    "{{ 'a\nb' }}\n\n",
    "{{ 'a\r\nb' }}",
    "{% if yes %}a{% endif %}\n{% if yes %}b{% endif %}\n\n{% if yes %}c{% endif %}",
    "  {% if yes %}  {% if yes %}x{% endif %}  {% endif %}  ",
    "{%- set a = 1 -%}   {%- set b = 2 -%}   {{ a }}",
    "{{ n }}  {%- if yes %}x{% endif %}",
    "a\x0b\x0c {%- if yes %}x{% endif %}",
]

SNIPPETS = EXPRESSIONS + FILTERS + TESTS + METHODS + STATEMENTS + WHITESPACE
