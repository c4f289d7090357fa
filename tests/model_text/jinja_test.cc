// The Jinja interpreter against jinja2, over small templates (tests/python/template_oracle.py).

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/text/chat_template.h"

namespace shoal::text {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using json = nlohmann::ordered_json;

absl::Time Now() {
  return absl::FromCivil(absl::CivilSecond(2024, 7, 26, 15, 4, 5), absl::UTCTimeZone());
}

absl::StatusOr<std::string> RenderText(absl::string_view source, const std::string& kwargs = "",
                                       TemplateLimits limits = {}) {
  auto chat_template = ChatTemplate::Parse(source, "<s>", "</s>", limits);
  if (!chat_template.ok()) {
    return chat_template.status();
  }
  ChatInput input;
  input.template_kwargs_json = kwargs;
  auto spans = (*chat_template)->Render(input, Now());
  if (!spans.ok()) {
    return spans.status();
  }
  std::string text;
  for (const TextSpan& span : *spans) {
    text += span.text;
  }
  return text;
}

std::string ErrorOf(absl::string_view source, const std::string& kwargs = "",
                    TemplateLimits limits = {}) {
  const auto text = RenderText(source, kwargs, limits);
  if (text.ok()) {
    return absl::StrCat("no error but: ", *text);
  }
  EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(text.status().message());
}

TEST(JinjaTest, RendersSnippetsAsJinja2Does) {
  std::ifstream file(SHOAL_SOURCE_DIR "/tests/model_text/data/snippets.json");
  const json data = json::parse(file);
  const std::string variables = data["variables"].dump();
  size_t count = 0;
  for (const json& snippet : data["snippets"]) {
    const std::string source = snippet["source"];
    SCOPED_TRACE(source);
    const auto text = RenderText(source, variables);
    if (snippet.contains("error")) {
      EXPECT_FALSE(text.ok()) << "gives " << *text << "\njinja2 says " << snippet["error"];
      EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
    } else {
      EXPECT_TRUE(text.ok()) << text.status();
      EXPECT_EQ(text.value_or(""), snippet["expected"].get<std::string>());
    }
    ++count;
  }
  EXPECT_GT(count, 700u);
}

TEST(JinjaTest, MacrosKeepTheScopeTheyWereDefinedIn) {
  EXPECT_EQ(RenderText("{% set n = namespace(f=[]) %}{% for x in 'abc' %}{% set y = x * 2 %}"
                       "{% if x != 'b' %}{% macro f() %}{{ x }}{{ y }},{% endmacro %}"
                       "{% set n.f = n.f + [f] %}{% endif %}{% endfor %}"
                       "{% for f in n.f %}{{ f() }}{% endfor %}")
                .value_or(""),
            "aaa,ccc,");
}

// --- Limits --------------------------------------------------------------------------------------

TEST(JinjaTest, StopsLoopsAtTheStepLimit) {
  EXPECT_THAT(ErrorOf("{% for i in range(1000000) %}{% endfor %}"), HasSubstr("limit 100000"));
  EXPECT_THAT(ErrorOf("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}"
                      "{% endfor %}"),
              HasSubstr("max_steps = 5000000"));
  TemplateLimits limits;
  limits.max_steps = 1000;
  EXPECT_THAT(ErrorOf("{% for i in range(2000) %}{% endfor %}", "", limits),
              HasSubstr("max_steps = 1000"));
}

TEST(JinjaTest, StopsRecursionAtTheDepthLimit) {
  TemplateLimits limits;
  limits.max_depth = 10;
  EXPECT_EQ(RenderText("{{ x }}", R"({"x": [[[[[[[[1]]]]]]]]})", limits).value_or(""),
            "[[[[[[[[1]]]]]]]]");
  EXPECT_THAT(ErrorOf("{{ x }}", R"({"x": [[[[[[[[[1]]]]]]]]]})", limits),
              HasSubstr("max_depth = 10"));
  const std::string forever = "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}";
  EXPECT_THAT(ErrorOf(forever), HasSubstr("max_depth = 400"));
  const std::string cycle = "{% set n = namespace() %}{% set n.n = n %}";
  EXPECT_THAT(ErrorOf(cycle + "{{ n }}"), HasSubstr("max_depth"));
  EXPECT_THAT(ErrorOf(cycle + "{{ [n]|string }}"), HasSubstr("max_depth"));
  const std::string deep =
      "{% set n = namespace(a=[], b=[]) %}{% for i in range(1000) %}{% set n.a = [n.a] %}"
      "{% set n.b = [n.b] %}{% endfor %}";
  EXPECT_THAT(ErrorOf(deep + "{{ n.a|tojson }}"), HasSubstr("max_depth"));
  EXPECT_THAT(ErrorOf(deep + "{{ n.a == n.b }}"), HasSubstr("max_depth"));
  EXPECT_THAT(ErrorOf(deep + "{{ n.a < n.b }}"), HasSubstr("max_depth"));
}

TEST(JinjaTest, RefusesSourcesThatNestTooDeeply) {
  const auto repeat = [](absl::string_view unit) {
    std::string text;
    for (int i = 0; i < 20'000; ++i) {
      absl::StrAppend(&text, unit);
    }
    return text;
  };
  const auto nest = [&](absl::string_view open, absl::string_view close) {
    return absl::StrCat("{{ ", repeat(open), "1", repeat(close), " }}");
  };
  for (const std::string& source : {nest("(", ")"),
                                    nest("[", "]"),
                                    nest("{1:", "}"),
                                    nest("x[", "]"),
                                    nest("f(", ")"),
                                    nest("-", ""),
                                    nest("not ", ""),
                                    nest("", "+1"),
                                    nest("", "**1"),
                                    nest("", " and 1"),
                                    nest("", " if 1"),
                                    nest("", " if 1 else 1"),
                                    nest("", ".x"),
                                    nest("", "[0]"),
                                    nest("", "()"),
                                    nest("", "|trim"),
                                    "{% set " + repeat("(") + "x" + repeat(")") + " = 1 %}",
                                    repeat("{% if 1 %}"),
                                    repeat("{% for x in y %}"),
                                    repeat("{% macro f() %}"),
                                    repeat("{% set x %}"),
                                    repeat("{% filter trim %}"),
                                    repeat("{% generation %}")}) {
    EXPECT_THAT(ErrorOf(source), HasSubstr("too deeply")) << source.substr(0, 40);
  }
  std::string flat = "{{ 0";
  for (int i = 0; i < 5'000; ++i) {
    flat += " ~ 0";
  }
  EXPECT_EQ(RenderText(flat + " }}").value_or("").size(), 5'001u);
}

TEST(JinjaTest, StopsOutputAtItsLimit) {
  TemplateLimits limits;
  limits.max_output_bytes = 1000;
  const std::string d = R"({"d": {"a": [1, [2, [3]]]}})";
  for (const char* source :
       {"{% for i in range(2000) %}x{% endfor %}", "{{ 'x' * 1001 }}",
        "{{ 'xx' * 9223372036854775807 }}", "{{ [1] * 9223372036854775807 }}",
        "{{ 'x'|indent(100000000000, true) }}", "{{ d|tojson(indent=400) }}",
        "{{ d|tojson(indent=100000000000) }}", "{{ ('x' * 999)|replace('', 'yy') }}",
        "{{ ('x' * 999).replace('x', 'yy') }}", "{{ range(900)|join(', ') }}",
        "{{ range(900)|list }}", "{{ range(900)|list|tojson }}",
        "{% set n = namespace(s='x') %}{% for i in range(100) %}{% set n.s = n.s + n.s %}{% endfor "
        "%}",
        "{% set n = namespace(s='x') %}{% for i in range(100) %}{% set n.s = n.s ~ n.s %}{% endfor "
        "%}",
        "{% set n = namespace(s=[1]) %}{% for i in range(40) %}{% set n.s = [n.s, n.s] %}{% endfor "
        "%}"
        "{{ n.s }}",
        "{% macro f() %}{{ 'x' * 600 }}{% endmacro %}{{ f() + f() }}"}) {
    EXPECT_THAT(ErrorOf(source, d, limits), HasSubstr("max_output_bytes = 1000")) << source;
  }
  EXPECT_EQ(RenderText("{{ 'x' * 1000 }}", "", limits).value_or("").size(), 1000u);
}

TEST(JinjaTest, StopsAtTheMemoryLimit) {
  TemplateLimits limits;
  limits.max_memory_bytes = 1'000'000;
  for (const char* source :
       {"{% set n = namespace(l=[]) %}{% for i in range(10000) %}{% set n.l = n.l + ['x' * 100] %}"
        "{% endfor %}",
        "{% for i in range(100000) %}{% set x = 'y' * 1000 %}{% endfor %}",
        "{{ range(50000)|map('string')|list|length }}", "{{ ('x' * 100000)|list|length }}",
        "{{ ('x ' * 100000).split()|length }}",
        "{{ ('xy' * 100000)|replace('x', text)|length }}"}) {
    EXPECT_THAT(ErrorOf(source, R"({"text": "z"})", limits),
                HasSubstr("max_memory_bytes = 1000000"))
        << source;
  }
}

TEST(JinjaTest, BoundsWorkThatMakesNothing) {
  TemplateLimits limits;
  limits.max_steps = 100'000;
  const std::string prelude = "{% set s = 'ab' * 500000 %}{% for i in range(100000) %}";
  for (const char* body : {"{{ 'x' in s }}", "{{ s|length }}", "{{ s[0] }}", "{{ s.find('x') }}",
                           "{{ s.count('x') }}", "{{ s == 'ab' * 500000 }}"}) {
    EXPECT_THAT(ErrorOf(absl::StrCat(prelude, body, "{% endfor %}"), "", limits),
                AnyOf(HasSubstr("max_steps = 100000"), HasSubstr("max_memory_bytes")))
        << body;
  }
  // Equality of shared structure would be exponential.
  EXPECT_THAT(ErrorOf("{% set n = namespace(a=[1], b=[1]) %}{% for i in range(40) %}"
                      "{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}{% endfor %}"
                      "{{ n.a == n.b }}",
                      "", limits),
              HasSubstr("max_steps"));
}

TEST(JinjaTest, RefusesIntegersBeyond64Bits) {
  for (const char* source :
       {"{{ 9223372036854775808 }}", "{{ 9223372036854775807 + 1 }}",
        "{{ -9223372036854775807 - 2 }}", "{{ 9223372036854775807 * 2 }}", "{{ 2 ** 63 }}",
        "{{ (-9223372036854775807 - 1) // -1 }}", "{{ -(-9223372036854775807 - 1) }}",
        "{{ (-9223372036854775807 - 1)|abs }}"}) {
    EXPECT_FALSE(RenderText(source).ok()) << source;
  }
  EXPECT_EQ(RenderText("{{ (-9223372036854775807 - 1) % -1 }}").value_or(""), "0");
  EXPECT_EQ(RenderText("{{ x[:9223372036854775807:9223372036854775807] }}"
                       "{{ x[::-9223372036854775807 - 1] }}{{ x[-9223372036854775807:] }}",
                       R"({"x": "abc"})")
                .value_or(""),
            "acabc");
  EXPECT_EQ(RenderText("{{ x }}", R"({"x": 18446744073709551615})").value_or(""),
            "1.8446744073709552e+19");
}

TEST(JinjaTest, CountsInvalidUtf8ByteByByte) {
  TemplateLimits limits;
  const auto chat_template = ChatTemplate::Parse(
      "{{ messages[0].content|length }} {{ messages[0].content[::-1] }} "
      "{{ messages[0].content|upper }} {{ messages[0].content|trim }}{{ messages[0].content|tojson "
      "}}",
      "", "", limits);
  ASSERT_TRUE(chat_template.ok());
  ChatInput input;
  input.messages.emplace_back().content = "a\xff\xe2\x82\x80\x80";
  const auto spans = (*chat_template)->Render(input, Now());
  ASSERT_TRUE(spans.ok()) << spans.status();
  std::string text;
  for (const TextSpan& span : *spans) {
    text += span.text;
  }
  EXPECT_EQ(text,
            "4 \x80\xe2\x82\x80\xff"
            "a A\xff\xe2\x82\x80\x80 a\xff\xe2\x82\x80\x80\"a\xff\xe2\x82\x80\x80\"");
}

TEST(JinjaTest, LooksUpManyKeysInLinearTime) {
  std::string variables = R"({"d": {)";
  for (int i = 0; i < 50'000; ++i) {
    absl::StrAppend(&variables, i == 0 ? "" : ",", "\"key", i, "\": ", i);
  }
  variables += R"(, "key7": "again"}})";
  EXPECT_EQ(RenderText("{{ d.key49999 }} {{ d.key7 }} {{ d|length }} {{ (d|list)[7] }}"
                       " {{ 'key50000' in d }} {{ d.get('key3') }}",
                       variables)
                .value_or(""),
            "49999 again 50000 key7 False 3");
}

}  // namespace
}  // namespace shoal::text
