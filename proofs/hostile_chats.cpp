// Bad inputs: tokenizer_config.json and the chat templates in it.
#include "base/json.h"
#include "hostile_cases.h"

namespace cairn::study {
namespace {

HostileCase token_config(const std::string& name, const Bytes& bytes, std::vector<std::string> said) {
  said.push_back("tokenizer_config.json");
  return {"tokenizer_config", name, generate_text(),
          [bytes](const HostileFolder& in) {
            in.good("model", "m");
            in.file("m/tokenizer_config.json", bytes);
          },
          std::move(said)};
}

HostileCase chat(const std::string& name, const std::string& text, std::vector<std::string> said) {
  said.push_back("chat_template");
  return {"chat_template",
          name,
          {"chat", "m", "--tokens", "1"},
          [text](const HostileFolder& in) {
            in.good("model", "m");
            in.file("m/tokenizer_config.json", base::compact(base::Json{{"chat_template", text}}));
          },
          std::move(said),
          "Hello\n"};
}

HostileCases token_configs() {
  return {
      token_config("not_json", "{", {"JSON"}),
      token_config("empty", "", {"empty"}),
      token_config("a_list", "[]", {"JSON object"}),
      token_config("a_million_deep", repeated("[", 1'000'000), {"nested"}),
      token_config("same_key_twice", R"({"bos_token": "a", "bos_token": "b"})", {"bos_token", "twice"}),
      token_config("token_a_number", R"({"bos_token": 7})", {"bos_token"}),
      token_config("token_of_a_megabyte", "{\"bos_token\": \"" + repeated("b", 1 << 20) + "\"}", {"bos_token", "1048576 bytes"}),
      token_config("flag_a_text", R"({"add_bos_token": "yes"})", {"add_bos_token"}),
      token_config("length_negative", R"({"model_max_length": -1})", {"model_max_length"}),
      token_config("length_a_text", R"({"model_max_length": "long"})", {"model_max_length"}),
      token_config("template_a_number", R"({"chat_template": 7})", {"chat_template"}),
      token_config("template_list_of_texts", R"({"chat_template": ["a"]})", {"chat_template"}),
      token_config("template_twice", R"({"chat_template": [{"name": "a", "template": ""}, {"name": "a", "template": ""}]})", {"twice"}),
      token_config("template_of_two_megabytes", "{\"chat_template\": \"" + repeated("x", 2 << 20) + "\"}", {"2097152 bytes"}),
      token_config("invalid_utf8", "{\"bos_token\": \"\xff\"}", {"UTF-8"}),
  };
}

HostileCases chats() {
  const std::string loop = "{% for i in range(1000) %}";
  return {
      chat("tag_without_end", "{% if true", {"line 1"}),
      chat("if_without_end", "{% if true %}yes", {"line 1"}),
      chat("unknown_tag", "{% import os %}", {"import"}),
      chat("unknown_filter", "{{ messages | evil }}", {"evil"}),
      chat("unknown_function", "{{ open('/etc/passwd') }}", {"open"}),
      chat("reaching_for_python", "{{ ''.__class__.__mro__ }}", {"line 1"}),
      chat("string_without_end", "{{ 'abc }}", {"line 1"}),
      chat("brackets_that_do_not_match", "{{ (1] }}", {"line 1"}),
      chat("comment_without_end", "{# abc", {"line 1"}),
      chat("raw_without_end", "{% raw %}" + copies("{% endraw ", 50'000), {"raw"}),
      chat("raw_with_half_a_million_tags", "{% raw %}" + copies("{%", 500'000), {"raw"}),
      chat("range_of_a_billion", "{% for i in range(10**9) %}x{% endfor %}", {"line 1"}),
      chat("loops_in_loops", loop + loop + loop + loop + "x{% endfor %}{% endfor %}{% endfor %}{% endfor %}", {"line 1"}),
      chat("a_long_text", "{{ 'abc' * 10**9 }}", {"line 1"}),
      chat("a_text_doubled", "{% set ns = namespace(s='ab') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
           {"line 1"}),
      chat("a_list_doubled", "{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
           {"line 1"}),
      chat("cyclers_a_million_deep",
           "{% set ns = namespace(s=1) %}" + loop + loop + "{% set ns.s = cycler(ns.s) %}{% endfor %}{% endfor %}", {"deep"}),
      chat("joiners_a_million_deep",
           "{% set ns = namespace(s=1) %}" + loop + loop + "{% set ns.s = joiner(ns.s) %}{% endfor %}{% endfor %}", {"deep"}),
      chat("loops_kept_in_loops",
           "{% set ns = namespace(s=1) %}" + loop + loop + "{% for x in [ns.s] %}{% set ns.s = loop %}{% endfor %}{% endfor %}{% endfor %}",
           {"deep"}),
      chat("a_number_that_grows", "{{ 9 ** 9 ** 9 ** 9 }}", {"line 1"}),
      chat("a_macro_that_calls_itself", "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", {"line 1"}),
      chat("two_macros_that_call_each_other", "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}",
           {"line 1"}),
      chat("brackets_a_hundred_thousand_deep", "{{ " + copies("(", 100'000) + "1" + copies(")", 100'000) + " }}", {"deep"}),
      chat("lists_a_hundred_thousand_deep", "{{ " + copies("[", 100'000) + copies("]", 100'000) + " }}", {"deep"}),
      chat("ifs_ten_thousand_deep", copies("{% if 1 %}", 10'000) + copies("{% endif %}", 10'000), {"deep"}),
      chat("nots_a_hundred_thousand", "{{ " + copies("not ", 100'000) + "1 }}", {"deep"}),
      chat("minuses_a_hundred_thousand", "{{ " + copies("-", 100'000) + "1 }}", {"deep"}),
      chat("dots_a_hundred_thousand", "{{ messages" + copies(".x", 100'000) + " }}", {"line 1"}),
      chat("sums_a_hundred_thousand", "{{ 1" + copies(" + nothing", 100'000) + " }}", {"line 1"}),
      chat("format_of_a_huge_width", "{{ '%1000000000d' | format(1) }}", {"line 1"}),
      chat("indent_of_a_huge_width", "{{ 'a' | indent(10**9, true) }}", {"line 1"}),
      chat("join_that_explodes", "{{ range(100000) | join('x' * 100000) }}", {"line 1"}),
      chat("replace_that_explodes", "{{ ('a' * 100000).replace('a', 'b' * 100000) }}", {"line 1"}),
      chat("division_by_zero", "{{ 1 // 0 }}", {"line 1"}),
      chat("template_that_refuses", "{{ raise_exception('no chats today') }}", {"no chats today"}),
      chat("a_sum_of_unlike_things", "{{ messages + 1 }}", {"line 1"}),
      {"chat_template",
       "file_is_a_pipe",
       {"chat", "m"},
       [](const HostileFolder& in) {
         in.good("model", "m");
         in.pipe("m/chat_template.jinja");
       },
       {"chat_template.jinja", "not a regular file"}},
      {"chat_template",
       "file_of_a_gigabyte",
       {"chat", "m"},
       [](const HostileFolder& in) {
         in.good("model", "m");
         in.sparse("m/chat_template.jinja", "", int64_t{1} << 30);
       },
       {"chat_template.jinja", "1.00 GiB"}},
  };
}

}  // namespace

HostileCases hostile_chats() {
  HostileCases all = token_configs();
  for (HostileCase& one : chats()) all.push_back(std::move(one));
  return all;
}

}  // namespace cairn::study
