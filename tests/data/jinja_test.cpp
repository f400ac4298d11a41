// The template language: every expected text is what Jinja2 writes (tools/check_chat_templates.py compares thousands more).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/chat/chat_template.h"
#include "scratch.h"

namespace cairn::data {
namespace {

using testing::HasSubstr;

std::string rendered(const std::string& text) {
  const base::OrderedJson variables = {{"word", "hello World"},
                                       {"wide", " Ünï 日本 "},
                                       {"numbers", {3, 1, 2}},
                                       {"nested", {{"b", 1}, {"a", "x"}, {"items", "own"}}},
                                       {"people", {{{"name", "Ann"}, {"age", 3}}, {{"name", "bob"}, {"age", 0}}}}};
  return ChatTemplate::parse(text).render_text({}, {.variables = variables});
}
std::string refused(const std::string& text) {
  return refusal([&] { rendered(text); });
}

TEST(JinjaWhiteSpace, IsTrimmedAfterTagsAndStrippedBeforeThem) {
  EXPECT_EQ(rendered("a\n  {% if true %}\n  b\n  {% endif %}\nc\n"), "a\n  b\nc");
  EXPECT_EQ(rendered("a \n {%- if true -%} \n b {%- endif %} c"), "ab c");
  EXPECT_EQ(rendered("  {%+ if true +%}\nb{% endif %}"), "  \nb");
  EXPECT_EQ(rendered("  {{ 1 }}\n{# note #}\n  {# - #}x {{- 2 -}} y\n\n"), "  1\nx2y\n");
  EXPECT_EQ(rendered("a\r\nb\rc"), "a\nb\nc");
}

TEST(JinjaText, RawIsLeftAlone) {
  EXPECT_EQ(rendered("{% raw %}{{ x }} {% if %}{% endraw %}!{ } {x}"), "{{ x }} {% if %}!{ } {x}");
  EXPECT_EQ(rendered("{{ 'a\\n\\t\\'\\x41\\u00e9\\101\\q' 'b' }}"), "a\n\t'AéA\\qb");
}

TEST(JinjaOperators, AreThoseOfPython) {
  EXPECT_EQ(rendered("{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 3 ** 2 }} {{ 2 + 3 * 4 - 1 }}"), "3 -4 2 3.5 64 13");
  EXPECT_EQ(rendered("{{ 1 ~ 'a' ~ none }} {{ 'ab' * 2 }} {{ [1] + [2] }} {{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }}"),
            "1aNone abab [1, 2] True False");
  EXPECT_EQ(rendered("{{ 'a' in 'cat' }} {{ 3 not in [1] }} {{ 'b' in nested }} {{ not 1 == 2 }} {{ 1 == 1.0 == true }}"),
            "True True True True True");
  EXPECT_EQ(rendered("{{ 0 or 'x' }} {{ 1 and '' }}| {{ 'y' if 0 else 'n' }} {{ 'y' if 0 }}|"), "x | n |");
  EXPECT_EQ(rendered("{{ 1e22 }} {{ 0.1 }} {{ 100000.0 }} {{ 1e-5 }} {{ 1_000 }} {{ -0.5 }}"), "1e+22 0.1 100000.0 1e-05 1000 -0.5");
}

TEST(JinjaParts, CountCharactersFromBothEnds) {
  EXPECT_EQ(rendered("{{ wide[1] }}{{ wide[-2] }}{{ wide[1:3] }}{{ wide[::-1] }}{{ wide | length }}"), "Ü本Ün 本日 ïnÜ 8");
  EXPECT_EQ(rendered("{{ numbers[-1] }} {{ numbers[1:] }} {{ numbers[::-1] }} {{ numbers[9] is defined }} {{ nested['b'] }}{{ nested.a }}"),
            "2 [1, 2] [2, 1, 3] False 1x");
}

TEST(JinjaParts, MethodsComeBeforeKeysAfterADotAndAfterThemInBrackets) {
  EXPECT_EQ(rendered("{{ nested['items'] }} {% for k, v in nested.items() %}{{ k }}={{ v }};{% endfor %}"), "own b=1;a=x;items=own;");
  EXPECT_EQ(rendered("{{ nested.get('b') }} {{ nested.get('q') }} {{ nested.get('q', 5) }} {{ nested.keys() | list }}"),
            "1 None 5 ['b', 'a', 'items']");
}

TEST(JinjaMethods, AreThoseOfPythonsStrings) {
  EXPECT_EQ(rendered("[{{ wide.strip() }}][{{ wide.lstrip() }}][{{ wide.rstrip() }}][{{ 'xxay'.strip('xy') }}]"),
            "[Ünï 日本][Ünï 日本 ][ Ünï 日本][a]");
  EXPECT_EQ(rendered("{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a.b.c'.rsplit('.', 1) }} {{ 'a b c'.split(none, 1) }}"),
            "['a', 'b', '', 'c'] ['a', 'b'] ['a.b', 'c'] ['a', 'b c']");
  EXPECT_EQ(rendered("{{ word.title() }} {{ word | title }} {{ \"it's\".title() }} {{ \"it's\" | title }} {{ wide.upper() }}"),
            "Hello World Hello World It'S It's  ÜNÏ 日本 ");
  EXPECT_EQ(
      rendered("{{ word.startswith(('a', 'he')) }} {{ word.endswith('x') }} {{ word.replace('l', 'L', 2) }} {{ '-'.join(['a', 'b']) }}"),
      "True False heLLo World a-b");
}

TEST(JinjaFilters, AreThoseThatTemplatesUse) {
  EXPECT_EQ(rendered("{{ ' a ' | trim }}{{ q | default('d') }}{{ '' | default('e', true) }}{{ numbers | join('-') }}"), "ade3-1-2");
  EXPECT_EQ(rendered("{{ people | map(attribute='name') | join(', ') }} {{ people | selectattr('age') | list | length }} "
                     "{{ people | rejectattr('name', 'equalto', 'Ann') | map(attribute='age') | first }}"),
            "Ann, bob 1 0");
  EXPECT_EQ(rendered("{{ nested | dictsort | first }} {{ numbers | sort | last }} {{ '42.7' | int }} {{ 'x' | int(3) }} {{ 2.5 | round }}"),
            "('a', 'x') 3 42 3 2.0");
  EXPECT_EQ(rendered("{{ 'a\n\nb' | indent }}|{{ 'a\nb' | indent(2, first=true) }}"), "a\n\n    b|  a\n  b");
  EXPECT_EQ(rendered("{{ {'k': [1, none, true, \"q\\\"\\n\"]} | tojson }} {{ [1] | tojson(indent=1) }}"),
            "{\"k\": [1, null, true, \"q\\\"\\n\"]} [\n 1\n]");
}

TEST(JinjaTests, TellKindsApart) {
  EXPECT_EQ(
      rendered("{{ q is defined }} {{ q is undefined }} {{ none is none }} {{ 'a' is string }} {{ 1 is number }} {{ nested is mapping }} "
               "{{ 'a' is iterable }} {{ 1 is sequence }} {{ true is boolean }} {{ 1 is true }} {{ 4 is even }} {{ 4 is odd }} {{ 2 is "
               "equalto 2 }} "
               "{{ 1 is not string }}"),
      "False True True True True True True False True False True False True True");
}

TEST(JinjaLoops, KnowTheirPlace) {
  EXPECT_EQ(rendered("{% for n in numbers %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}"
                     "{{ loop.previtem }}{{ loop.nextitem }} {% endfor %}"),
            "10TrueFalse31 21FalseFalse332 32FalseTrue31 ");
  EXPECT_EQ(
      rendered(
          "{% for n in numbers if n > 1 %}{{ n }}/{{ loop.length }} {% else %}-{% endfor %}{% for n in [] %}{% else %}none{% endfor %}"),
      "3/2 2/2 none");
  EXPECT_EQ(
      rendered("{% for n in range(9) %}{% if n == 1 %}{% continue %}{% endif %}{% if n == 4 %}{% break %}{% endif %}{{ n }}{% endfor %}"),
      "023");
}

TEST(JinjaScopes, KeepWhatLoopsSetInsideAndNamespacesOutside) {
  EXPECT_EQ(
      rendered("{% set x = 1 %}{% for n in numbers %}{% set x = n %}{% endfor %}{{ x }}{% if true %}{% set x = 2 %}{% endif %}{{ x }}"),
      "12");
  EXPECT_EQ(rendered("{% set ns = namespace(t=0) %}{% for n in numbers %}{% set ns.t = ns.t + n %}{% endfor %}{{ ns.t }}"), "6");
  EXPECT_EQ(rendered("{% set a, b = 1, 'z' %}{{ b }}{{ a }}{% set c | upper %}x{{ a }}y{% endset %}{{ c }}{% with d = 5 %}{{ d }}{% "
                     "endwith %}{{ d }}"),
            "z1X1Y5");
}

TEST(JinjaMacros, TakeArgumentsAndBlocks) {
  EXPECT_EQ(rendered("{% macro f(a, b='-') %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(2, b=3) }}{{ f() }}"), "1-23-");
  EXPECT_EQ(rendered("{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}"), "3210");
  EXPECT_EQ(rendered("{% macro box() %}<{{ caller('x') }}>{% endmacro %}{% call(v) box() %}{{ v }}!{% endcall %}"), "<x!>");
}

TEST(JinjaWhatFiltersGive, IsTrueAndGoneThroughOnce) {
  EXPECT_EQ(rendered("{% set s = [] | select %}{{ 'yes' if s }}{% set s = numbers | select %}{{ s | join }}{{ s | join }}|"), "yes312|");
  EXPECT_THAT(refused("{{ numbers | select | length }}"), HasSubstr("put \"| list\" before it"));
}

TEST(JinjaNumbers, AreReadFromTextsWithPrefixesAndUnderscores) {
  EXPECT_EQ(rendered("{{ '0x1f' | int(0, 16) }} {{ '1F' | int(0, 16) }} {{ '-0b11' | int(0, 2) }} {{ '0o17' | int(0, 0) }} "
                     "{{ '0x1f' | int(7) }} {{ '1_000' | int }} {{ '1__0' | int(5) }} {{ '010' | int(0, 0) }} {{ 'z' | int(0, 36) }}"),
            "31 31 -3 15 7 1000 5 10 35");
}

TEST(JinjaRanges, StayRangesAndViewsOfDictsStayViews) {
  EXPECT_EQ(
      rendered("{{ range(3) }} {{ range(1, 9, 3) }} {{ range(5)[1:3] }} {{ range(5)[::-2] }} {{ range(3) | list }} {{ range(4)[-1] }}"),
      "range(0, 3) range(1, 9, 3) range(1, 3) range(4, -1, -2) [0, 1, 2] 3");
  EXPECT_EQ(rendered("{{ range(3) == [0, 1, 2] }} {{ range(3) == range(0, 3) }} {{ 2 in range(3) }} {{ range(3) | length }} "
                     "{{ range(3) is sequence }} {{ nested.keys() is sequence }}"),
            "False True True 3 True False");
  EXPECT_EQ(rendered("{{ nested.keys() }} {{ {1: 2}.items() }} {{ {1: 2}.values() }} {{ nested.keys() | length }}"),
            "dict_keys(['b', 'a', 'items']) dict_items([(1, 2)]) dict_values([2]) 3");
}

TEST(JinjaFormats, AreThoseOfPython) {
  EXPECT_EQ(rendered("{{ '{} {}'.format(1, 'a') }} {{ '{1}{0}{x!r}'.format(1, 2, x='q') }} {{ '{n.a} {n[b]} {{}}'.format(n=nested) }}"),
            "1 a 21'q' x 1 {}");
  EXPECT_EQ(
      rendered(
          "{{ '{:>5}|{:<5}|{:^5}|{:*^7}'.format(1, 2, 'a', 'ü') }} {{ '{:05d} {:+} {:,} {:#x} {:b}'.format(-42, 3, 1234567, 255, 5) }}"),
      "    1|2    |  a  |***ü*** -0042 +3 1,234,567 0xff 101");
  EXPECT_EQ(rendered("{{ '{:.2f} {:.3} {:e} {:g} {:.1%} {:{w}}'.format(2.675, 1234.5, 1.5, 1e-7, 0.5, 'x', w=3) }}|"),
            "2.67 1.23e+03 1.500000e+00 1e-07 50.0% x  |");
  EXPECT_EQ(rendered("{{ '%s-%05.1f-%x' % ('a', 3.14159, 255) }} {{ '%(k)s%%' % {'k': [1]} }} {{ '%-4d|%r' | format(7, 'q') }}"),
            "a-003.1-ff [1]% 7   |'q'");
}

TEST(JinjaMethods, SearchFromCharactersAndFillWidths) {
  EXPECT_EQ(
      rendered("{{ wide.find('日') }} {{ word.rfind('o') }} {{ word.index('o', 5) }} {{ word.find('h', 1) }} {{ word.count('l', 0, 4) }} "
               "{{ word.startswith('World', 6) }} {{ numbers.index(2, 1) }}"),
      "5 7 7 -1 2 True 2");
  EXPECT_EQ(rendered("{{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'a'.partition('=') }} [{{ 'ab'.center(5) }}] "
                     "{{ '-7'.zfill(4) }} {{ 'x'.rjust(3, '.') }} {{ 'x'.ljust(3, '.') }} {{ 'aBc'.swapcase() }}"),
            "('a', '=', 'b=c') ('a=b', '=', 'c') ('a', '', '') [  ab ] -007 ..x x.. AbC");
  EXPECT_EQ(rendered("{{ 'a1'.isalnum() }} {{ 'ü'.isascii() }} {{ '12'.isdecimal() }} {{ 'ab'.islower() }} {{ 'A1'.isupper() }}"),
            "True False True True True");
}

TEST(JinjaFilters, FindExtremesGroupsAndBatches) {
  EXPECT_EQ(rendered("{{ numbers | max }} {{ ['b', 'A'] | min }} {{ people | max(attribute='age') }} {{ [] | max }}|"),
            "3 A {'name': 'Ann', 'age': 3} |");
  EXPECT_EQ(
      rendered("{% for age, those in people | groupby('age') %}{{ age }}:{{ those | map(attribute='name') | join('+') }} {% endfor %}"
               "{% for g in people | groupby('age') %}{{ g.grouper }}{{ g.list | length }} {% endfor %}{{ numbers | batch(2, 0) | list }} "
               "{{ [1, 2, 3] | slice(2) | list }}"),
      "0:bob 3:Ann 01 31 [[3, 1], [2, 0]] [[1, 2], [3]]");
  EXPECT_EQ(rendered("{{ 'one two three four' | truncate(9, leeway=0) }} {{ 'a b_c d' | wordcount }} {{ nested | attr('b') is defined }} "
                     "{{ 'max' is filter }} {{ 'max' is test }} {{ dict([(1, 2)], a=3) }}"),
            "one... 3 False True False {1: 2, 'a': 3}");
}

TEST(JinjaLoops, HaveADepthOnlyWhereTheyCallThemselves) {
  EXPECT_EQ(rendered("{% for a in [1] %}{{ loop.depth }}{% for b in [1] %}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}{% endfor %}"),
            "110");
  EXPECT_EQ(rendered("{% for x in [1, [2, [3]], 4] recursive %}{% if x is iterable %}<{{ loop(x) }}>{% else %}{{ loop.depth }}:{{ x }} "
                     "{% endif %}{% endfor %}"),
            "1:1 <2:2 <3:3 >>1:4 ");
}

TEST(JinjaFunctions, GoRoundAndJoin) {
  EXPECT_EQ(
      rendered("{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.current }}"),
      "ababNonea");
  EXPECT_EQ(rendered("{% set j = joiner('; ') %}{% for n in numbers %}{{ j() }}{{ n }}{% endfor %}"), "3; 1; 2");
}

struct Refusal {
  const char* text;
  const char* says;
};

TEST(JinjaErrors, NameTheLineAndTheCulprit) {
  for (const auto& [text, says] : {
           Refusal{"a\nb\n{{ 1 | foo }}", "chat_template, line 3: unknown filter 'foo'"},
           {"{{ 1 | trm }}", "line 1: unknown filter 'trm': did you mean 'trim'?"},
           {"{{ 1 is strin }}", "unknown test 'strin': did you mean 'string'?"},
           {"\n{% fro x in y %}", "line 2: unknown tag 'fro': did you mean 'for'?"},
           {"{% include 'secret' %}", "unknown tag 'include'"},
           {"{% if true %}\n\n", "found the end of the template where {% endif %} is still missing"},
           {"{% for x in [] %}{% endif %}", "found endif where {% endfor %} is still missing"},
           {"{% endfor %}", "{% endfor %} stands here without its beginning"},
           {"{{ x", "a tag begins here and has no }}"},
           {"{# x", "a comment begins with {# and has no #}"},
           {"{% raw %}", "{% raw %} has no {% endraw %}"},
           {"{{ 'x }}", "a string begins with ' and does not end"},
           {"{{ (1] }}", "found \"]\" where \")\" is still open"},
           {"{{ 1) }}", "\")\" closes nothing"},
           {"{{ $ }}", "\"$\" has no meaning in a tag"},
           {"{{ 3x }}", "\"3x\" is neither a number nor a name"},
           {"{{ '\\u12' }}", "without 4 hexadecimal digits"},
           {"{{ 1 + }}", "expected an expression, found the end of the tag"},
           {"{{ f(*x) }}", "*arguments and **arguments are not supported"},
           {"{{ f(a=1, 2) }}", "an argument without a name comes after \"a=\""},
           {"{{ 99999999999999999999 }}", "the number 99999999999999999999 is too large"},
           {"{% break %}", "{% break %} stands outside a loop"},
           {"{% set none = 1 %}", "\"none\" cannot be given a value"},
           {"{{ q.a }}", "'q' is undefined and has no 'a'"},
           {"{{ nested.q.a }}", "'q' of a dict is undefined and has no 'a'"},
           {"{{ 'a' + 1 }}", "+ cannot stand between string and int (\"~\" joins anything as text)"},
           {"{{ 'a' + q }}", "'q' is undefined and cannot be used with +"},
           {"{{ 1 < 'a' }}", "int and string cannot be compared"},
           {"{{ 1 / 0 }}", "a division by zero"},
           {"{{ 2 ** 70 }}", "more than 64 bits"},
           {"{{ '%d' % 'a' }}", "%d needs a number, not string"},
           {"{{ '%s %s' % 1 }}", "% has more fields than values"},
           {"{{ '%s' % (1, 2) }}", "% was given 2 values and used 1"},
           {"{{ '{} {}'.format(1) }}", "format: there is no argument 1"},
           {"{{ '{} {0}'.format(1) }}", "fields with and without numbers do not mix"},
           {"{{ '{:x}'.format('a') }}", "the format 'x' is not for a string"},
           {"{{ '{'.format() }}", "format: \"{\" has no \"}\""},
           {"{{ word.index('z') }}", "index: the string does not hold it"},
           {"{{ word | random }}", "the filter 'random' is not supported"},
           {"{{ range(3) | tojson }}", "tojson: range cannot be written as JSON"},
           {"{{ nested.items()[:1] }}", "a dict_items has no slices"},
           {"{{ cycler() }}", "cycler needs items to go round in"},
           {"{% for x in [1] %}{{ loop([]) }}{% endfor %}", "only if its tag ends with \"recursive\""},
           {"{{ '99999999999999999999' | int }}", "more than 64 bits"},
           {"{{ numbers.append(1) }}", "list.append() would change a list, which transformers does not allow either: write list + [item]"},
           {"{{ word.encode() }}", "a string has no method 'encode'"},
           {"{{ open('/etc/passwd') }}", "'open' is undefined and cannot be called"},
           {"{{ ''.__class__.__mro__ }}", "'__class__' of a string is undefined"},
           {"{{ word() }}", "a string cannot be called"},
           {"{{ word.replace('a') }}", "string.replace needs the argument 'new'"},
           {"{{ word | trim(1, 2, 3) }}", "filter 'trim'"},
           {"{{ word | upper(z=1) }}", "filter 'upper' was given arguments that it does not take"},
           {"{{ raise_exception('no ' ~ 1) }}", "the template refuses this conversation: no 1"},
           {"{{ {[]: 1} }}", "a list cannot be a key"},
           {"{{ q | tojson }}", "'q', which is undefined, cannot be written as JSON"},
           {"{% for a, b in [[1]] %}{% endfor %}", "2 names for 1 items"},
           {"{% for a in 3 %}{% endfor %}", "int cannot be gone through"},
           {"{% set word.x = 1 %}", "word.x cannot be set: word is string and no namespace()"},
           {"{{ namespace }}", "a function has no text to write"},
           {"{{ numbers[::0] }}", "a slice has the step 0"},
       }) {
    EXPECT_THAT(refused(text), HasSubstr(says)) << text;
  }
}

TEST(JinjaBounds, StopWhatDoesNotEnd) {
  const std::string nines(9, '9');
  EXPECT_THAT(refused("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"),
              HasSubstr("takes more than 10000000 steps"));
  EXPECT_THAT(refused("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), HasSubstr("does a macro call itself for ever?"));
  EXPECT_THAT(refused("{{ 'ab' * " + nines + " }}"), HasSubstr("makes more than 192 MB"));
  EXPECT_THAT(refused("{{ [1] * " + nines + nines + " }}"), HasSubstr("makes more than 192 MB"));
  EXPECT_THAT(refused("{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"),
              HasSubstr("192 MB"));
  EXPECT_THAT(refused("{% set ns = namespace(s=[]) %}{% for i in range(999) %}{% set ns.s = [ns.s] %}{% endfor %}"),
              HasSubstr("more than 100 deep"));
  const std::string often = "{% set ns = namespace(s='x') %}{% for i in range(1000) %}{% for j in range(1000) %}";
  for (const char* deeper :
       {"{% set ns.s = cycler(ns.s) %}", "{% set ns.s = joiner(ns.s) %}", "{% for x in [ns.s] %}{% set ns.s = loop %}{% endfor %}",
        "{% set ns.s = cycler(cycler(ns.s).next) %}", "{% for x in [ns.s] if true %}{% set ns.s = {'a': joiner(loop)} %}{% endfor %}"})
    EXPECT_THAT(refused(often + deeper + "{% endfor %}{% endfor %}"), HasSubstr("more than 100 deep")) << deeper;
  EXPECT_THAT(
      refused("{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s == n.s[:] }}{{ n.s }}"),
      HasSubstr("more than"));
  EXPECT_THAT(refused("{{ range(100001) }}"), HasSubstr("more than 100000 numbers"));
  EXPECT_THAT(refused("{{ range(" + nines + ") }}"), HasSubstr("more than 100000 numbers"));
  EXPECT_THAT(refused("{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}"), HasSubstr("too deep"));
  for (const std::string& wide :
       {"'{:" + nines + "}'.format(1)", "'{:." + nines + "f}'.format(1)", "'%" + nines + "d' % 1", "'%." + nines + "f' % 1",
        "'{:{w}}'.format(1, w=" + nines + ")", "'a'.center(" + nines + ")", "'a'.zfill(" + nines + ")", "'a' | center(" + nines + ")"})
    EXPECT_THAT(refused("{{ " + wide + " }}"), HasSubstr("10000")) << wide;
  const std::string least = "-9223372036854775807";
  EXPECT_EQ(rendered("{{ 'ab'.center(" + least + ") }}{{ '-1'.zfill(" + least + ") }}{{ ''.zfill(0) }}{{ 'c' | center(" + least + ") }}"),
            "ab-1c");
  EXPECT_THAT(refused("{{ [1] | batch(" + nines + ", 0) | list }}"), HasSubstr("makes more than 192 MB"));
  EXPECT_THAT(refused("{{ [1] | slice(" + nines + ") | list }}"), HasSubstr("makes more than 192 MB"));
  EXPECT_THAT(refused("{% set x = 'x' * 1000000 %}{{ ('{0}' * 1000).format(x) }}"), HasSubstr("makes more than 192 MB"));
  EXPECT_THAT(refused("{{ [] | slice(2000000) | list | length }}"), HasSubstr("makes more than 192 MB"));  // empty lists take memory too
}

TEST(JinjaBounds, HoldDepthAndSizeOfTheTemplate) {
  const auto many = [](int count, const std::string& what) {
    std::string text;
    for (int i = 0; i < count; ++i) text += what;
    return text;
  };
  for (const std::string& deep : {"{{ " + many(100'000, "(") + "1" + many(100'000, ")") + " }}", "{{ " + many(100'000, "not ") + "1 }}",
                                  "{{ " + many(100'000, "-") + "1 }}", "{{ " + many(100'000, "[") + many(100'000, "]") + " }}",
                                  many(50'000, "{% if 1 %}"), "{{ x" + many(50'000, ".a") + " }}", "{{ x" + many(50'000, "|trim") + " }}",
                                  "{{ x" + many(50'000, " if 1") + " }}", "{{ x" + many(50'000, "()") + " }}"}) {
    EXPECT_THAT(refused(deep), HasSubstr("deep")) << deep.substr(0, 20);
  }
  EXPECT_EQ(rendered("{{ 0" + many(5'000, "+1") + " }}"), "5000");  // a long sum is not deep
  EXPECT_THAT(refused(std::string((1 << 20) + 1, 'x')), HasSubstr("1048577 bytes, and a template has at most 1048576"));
}

TEST(JinjaBounds, CountWorkOnLongTexts) {
  const std::string big = "{% set big = ' ' * 8000000 %}{% for i in range(1000) %}";
  for (const char* work :
       {"{% set x = big.strip() %}", "{% set x = big | trim %}", "{% set x = nested[big] %}", "{% set x = big[5] %}",
        "{% set x = big.count('  ') %}", "{% set x = 'y' in big %}", "{% set x = big == big ~ '' %}", "{% set x = big is lower %}"})
    EXPECT_THAT(refused(big + work + "{% endfor %}"), HasSubstr("more than")) << work;
  EXPECT_THAT(refused("{% set x = ('a,' * 60000000).split(',') %}"), HasSubstr("makes more than 192 MB"));
  EXPECT_THAT(refused("{% set x = ('a' * 60000000)[::2] %}"), HasSubstr("more than"));
}

TEST(JinjaDicts, CompareTheirKeysAndItemsAsSets) {
  EXPECT_EQ(
      rendered("{{ {'a': 1, 'b': 2}.keys() == {'b': 2, 'a': 1}.keys() }} {{ {'a': 1, 'b': [2]}.items() == {'b': [2], 'a': 1}.items() }} "
               "{{ {'a': 1}.items() == {'a': 2}.items() }} {{ {'a': 1}.keys() == ['a'] }} {{ {(1, 2): 3}.keys() == {1: 2}.items() }} "
               "{{ {'a': 1}.keys() == {'a': 1, 'b': 2}.keys() }} {{ {'a': 1}.values() == {'a': 1}.values() }}"),
      "True True False False True False False");
  EXPECT_THAT(refused("{{ {nested.keys(): 1} }}"), HasSubstr("a dict_keys cannot be a key"));
  EXPECT_THAT(refused("{{ (1, nested.items()) in nested }}"), HasSubstr("a dict_items cannot be a key"));
  EXPECT_EQ(rendered("{{ {nested.values(): 1} | length }}"), "1");
}

TEST(JinjaFormats, TakeTheLargestNumbersAndAnyFill) {
  EXPECT_EQ(rendered("{{ '%d' % 9223372036854775807 }} {{ '%d' % -9223372036854775807 }} {{ '%d' % 9.3e17 }}"),
            "9223372036854775807 -9223372036854775807 930000000000000000");
  EXPECT_THAT(refused("{{ '%d' % 1e19 }}"), HasSubstr("more than 64 bits"));
  EXPECT_EQ(rendered("{{ '{:[>5}{:]<3}'.format(1, 2) }} {{ '{0[a]:[>3}'.format({'a': 7}) }}"), "[[[[12]] [[7");
}

TEST(JinjaLoops, SeeWhatChanges) {
  EXPECT_EQ(rendered("{% for n in [1, 1, 2] %}{{ loop.changed(n) }}{{ loop.cycle('a', 'b') }} {% endfor %}"), "Truea Falseb Truea ");
  EXPECT_THAT(refused("{% for n in [1] %}{{ loop.changed(loop) }}{% endfor %}"), HasSubstr("a loop has no text"));
}

TEST(JinjaNamespaces, MayHoldThemselves) {
  EXPECT_EQ(rendered("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns.me.me == ns }}"), "True");
}

}  // namespace
}  // namespace cairn::data
