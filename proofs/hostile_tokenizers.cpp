// Bad inputs: tokenizer.json.
#include "base/json.h"
#include "hostile_cases.h"

namespace cairn::study {
namespace {

using base::OrderedJson;

std::vector<std::string> tokenize(const std::string& text = "a story of 12 words") {
  return {"tokenize", "--tokenizer", "m/tokenizer.json", "--text", text};
}

HostileCase whole_tokenizer(const std::string& name, const Bytes& bytes, std::vector<std::string> said) {
  said.push_back("tokenizer.json");
  return {"tokenizer", name, tokenize(),
          [bytes](const HostileFolder& in) {
            in.good("model", "m");
            in.file("m/tokenizer.json", bytes);
          },
          std::move(said)};
}

// The good tokenizer, changed.
HostileCase tokenizer(const std::string& name, const std::function<void(OrderedJson&)>& change, std::vector<std::string> said,
                      std::vector<std::string> arguments = tokenize()) {
  return {"tokenizer", name, std::move(arguments),
          [change](const HostileFolder& in) {
            in.good("model", "m");
            OrderedJson json = base::parse_ordered_json(in.text("m/tokenizer.json"));
            change(json);
            in.file("m/tokenizer.json", base::compact(json));
          },
          std::move(said)};
}

HostileCase split_by(const std::string& name, const std::string& pattern, std::vector<std::string> said, const std::string& text) {
  return tokenizer(
      name,
      [pattern](OrderedJson& json) {
        const OrderedJson split = {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
        const OrderedJson bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
        json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}};
      },
      std::move(said), tokenize(text));
}

OrderedJson replace_step(const std::string& from, const std::string& to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

HostileCases files() {
  return {
      whole_tokenizer("empty", "", {"empty"}),
      whole_tokenizer("not_json", "tokenizer", {"JSON"}),
      whole_tokenizer("a_list", "[]", {"JSON object"}),
      whole_tokenizer("nothing_in_it", "{}", {"model"}),
      whole_tokenizer("a_million_deep", repeated("[", 1'000'000), {"nested"}),
      whole_tokenizer("model_a_million_deep", "{\"model\":" + repeated("{\"model\":", 500'000), {"nested"}),
      whole_tokenizer("byte_order_mark", "\xef\xbb\xbf{}", {"byte order mark"}),
      whole_tokenizer("invalid_utf8", "{\"model\": \"\xff\"}", {"JSON"}),
      whole_tokenizer("ten_million_lists", "[" + repeated("[],", 10'000'000) + "[]]", {"memory"}),
      {"tokenizer",
       "of_1350000_pieces",
       tokenize(),
       [](const HostileFolder& in) {
         std::string json = "{\"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {\"\": 0";
         json.reserve(32 << 20);
         for (int i = 1; i < 1'350'000; ++i) {
           json += ",\"w";
           json += std::to_string(i);
           json += "\":";
           json += std::to_string(i);
         }
         in.file("m/tokenizer.json", json + "}}}");
       },
       {"tokenizer.json", "memory"}},
      whole_tokenizer("ten_million_objects", "[" + repeated("{},", 10'000'000) + "{}]", {"memory"}),
      whole_tokenizer("ten_million_keys", "{" + repeated("\"\":0,", 10'000'000) + "\"\":0}", {"memory"}),
      whole_tokenizer("one_string_of_30_mb", "{\"a\":\"" + repeated("x", 30 << 20) + "\"}", {"string of 30.0 MiB"}),
      {"tokenizer",
       "of_a_gigabyte",
       tokenize(),
       [](const HostileFolder& in) { in.sparse("m/tokenizer.json", "{", int64_t{1} << 30); },
       {"tokenizer.json", "1.00 GiB", "at most"}},
      {"tokenizer", "nothing_there", {"tokenize", "--tokenizer", "gone.json", "--text", "a"}, [](const HostileFolder&) {}, {"gone.json"}},
      {"tokenizer",
       "an_empty_folder",
       {"tokenize", "--tokenizer", "m", "--text", "a"},
       [](const HostileFolder& in) { in.folder("m"); },
       {"m", "no tokenizer"}},
      {"tokenizer",
       "a_pipe",
       tokenize(),
       [](const HostileFolder& in) { in.folder("m"), in.pipe("m/tokenizer.json"); },
       {"not a regular file"}},
      {"tokenizer",
       "ids_that_no_token_has",
       {"tokenize", "--tokenizer", "m/tokenizer.json", "--decode", "ids.txt"},
       [](const HostileFolder& in) { in.good("model", "m"), in.file("ids.txt", "1 2 99999"); },
       {"99999"}},
      {"tokenizer",
       "ids_that_are_none",
       {"tokenize", "--tokenizer", "m/tokenizer.json", "--decode", "ids.txt"},
       [](const HostileFolder& in) { in.good("model", "m"), in.file("ids.txt", "1 2 99999999999999999999"); },
       {"ids.txt", "not a token id"}},
      {"tokenizer",
       "lines_that_are_no_json",
       {"tokenize", "--tokenizer", "m/tokenizer.json", "--lines", "lines.txt"},
       [](const HostileFolder& in) { in.good("model", "m"), in.file("lines.txt", "\"good\"\n\xff\n"); },
       {"lines.txt:2"}},
  };
}

HostileCases vocabularies() {
  const auto vocab = [](OrderedJson& json) -> OrderedJson& { return json["model"]["vocab"]; };
  return {
      tokenizer("no_model", [](OrderedJson& j) { j.erase("model"); }, {"model"}),
      tokenizer("model_a_text", [](OrderedJson& j) { j["model"] = "BPE"; }, {"model"}),
      tokenizer("model_unknown", [](OrderedJson& j) { j["model"]["type"] = "WordPiece"; }, {"WordPiece"}),
      tokenizer("no_vocab", [](OrderedJson& j) { j["model"].erase("vocab"); }, {"vocab"}),
      tokenizer("vocab_a_list", [](OrderedJson& j) { j["model"]["vocab"] = OrderedJson::array({"a"}); }, {"vocab"}),
      tokenizer("vocab_empty", [](OrderedJson& j) { j["model"]["vocab"] = OrderedJson::object(); }, {"id 0 is missing"}),
      tokenizer("id_negative", [=](OrderedJson& j) { vocab(j)["a"] = -1; }, {"-1"}),
      tokenizer("id_of_2_to_40", [=](OrderedJson& j) { vocab(j)["a"] = int64_t{1} << 40; }, {"1099511627776"}),
      tokenizer("id_of_2_to_64", [=](OrderedJson& j) { vocab(j)["a"] = ~uint64_t{0}; }, {"18446744073709551615"}),
      tokenizer("id_a_fraction", [=](OrderedJson& j) { vocab(j)["a"] = 1.5; }, {"1.5"}),
      tokenizer("id_a_text", [=](OrderedJson& j) { vocab(j)["a"] = "1"; }, {"\"1\""}),
      tokenizer("id_null", [=](OrderedJson& j) { vocab(j)["a"] = nullptr; }, {"null"}),
      tokenizer("id_twice", [=](OrderedJson& j) { vocab(j)["a"] = 0; }, {"given twice"}),
      tokenizer("ids_with_a_hole", [=](OrderedJson& j) { vocab(j)["zzz"] = 1000; }, {"is missing"}),
      tokenizer("a_byte_missing",
                [=](OrderedJson& j) {
                  const int id = vocab(j)["a"];
                  vocab(j).erase("a");
                  vocab(j)["zz"] = id;
                },
                {"no piece for byte 0x61"}),
      tokenizer("piece_of_a_megabyte", [=](OrderedJson& j) { vocab(j)[copies("y", 1 << 20)] = -1; }, {"-1"}),
      tokenizer("merges_missing", [](OrderedJson& j) { j["model"].erase("merges"); }, {"merges"}),
      tokenizer("merges_an_object", [](OrderedJson& j) { j["model"]["merges"] = OrderedJson::object(); }, {"merges"}),
      tokenizer("merge_of_unknown_pieces", [](OrderedJson& j) { j["model"]["merges"] = {"qx zq"}; }, {"qx", "not in the vocabulary"}),
      tokenizer("merge_of_three", [](OrderedJson& j) { j["model"]["merges"] = {"a b c"}; }, {"not two pieces"}),
      tokenizer("merge_a_number", [](OrderedJson& j) { j["model"]["merges"] = OrderedJson::array({7}); }, {"not two pieces"}),
      tokenizer("merge_with_one_side", [](OrderedJson& j) { j["model"]["merges"] = OrderedJson::array({OrderedJson::array({"a"})}); },
                {"not two pieces"}),
      tokenizer("merge_without_a_result", [](OrderedJson& j) { j["model"]["merges"] = {"a b"}; }, {"\"ab\""}),
      tokenizer("dropout", [](OrderedJson& j) { j["model"]["dropout"] = 0.5; }, {"dropout"}),
      tokenizer("flag_a_text", [](OrderedJson& j) { j["model"]["byte_fallback"] = "yes"; }, {"byte_fallback"}),
      tokenizer("added_an_object", [](OrderedJson& j) { j["added_tokens"] = OrderedJson::object(); }, {"added_tokens"}),
      tokenizer("added_without_content",
                [](OrderedJson& j) {
                  j["added_tokens"] = OrderedJson::array({OrderedJson{{"id", 256}}});
                },
                {"content"}),
      tokenizer("added_empty", [](OrderedJson& j) { j["added_tokens"][0]["content"] = ""; }, {"empty"}),
      tokenizer("added_id_negative", [](OrderedJson& j) { j["added_tokens"][0]["id"] = -5; }, {"-5"}),
      tokenizer("added_id_huge", [](OrderedJson& j) { j["added_tokens"][0]["id"] = int64_t{1} << 40; }, {"1099511627776"}),
      tokenizer("added_id_of_another", [](OrderedJson& j) { j["added_tokens"][0]["id"] = 3; }, {"given twice"}),
  };
}

HostileCases parts() {
  return {
      tokenizer("no_decoder", [](OrderedJson& j) { j["decoder"] = nullptr; }, {"decoder"}),
      tokenizer("decoder_a_text", [](OrderedJson& j) { j["decoder"] = "ByteLevel"; }, {"decoder"}),
      tokenizer("decoder_unknown",
                [](OrderedJson& j) {
                  j["decoder"] = {{"type", "Magic"}};
                },
                {"Magic"}),
      tokenizer("pre_tokenizer_unknown",
                [](OrderedJson& j) {
                  j["pre_tokenizer"] = {{"type", "Magic"}};
                },
                {"Magic"}),
      tokenizer("pre_tokenizer_without_type", [](OrderedJson& j) { j["pre_tokenizer"] = OrderedJson::object(); }, {"type"}),
      tokenizer("sequence_without_list",
                [](OrderedJson& j) {
                  j["pre_tokenizer"] = {{"type", "Sequence"}};
                },
                {"pretokenizers"}),
      tokenizer("normalizer_unknown",
                [](OrderedJson& j) {
                  j["normalizer"] = {{"type", "Evil"}};
                },
                {"Evil"}),
      tokenizer("normalizer_replace_of_nothing", [](OrderedJson& j) { j["normalizer"] = replace_step("", "x"); }, {"Replace of nothing"}),
      tokenizer("normalizer_that_explodes",
                [](OrderedJson& j) {
                  OrderedJson steps = OrderedJson::array();
                  for (int i = 0; i < 20; ++i) steps.push_back(replace_step("a", "aaaaaaaaaa"));
                  j["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
                },
                {"64 times"}),
      tokenizer("normalizer_of_a_thousand_steps",
                [](OrderedJson& j) {
                  OrderedJson steps = OrderedJson::array();
                  for (int i = 0; i < 1000; ++i) steps.push_back(replace_step("x", "y"));
                  j["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
                },
                {"256 steps"}),
      tokenizer("normalizer_prepends_a_megabyte",
                [](OrderedJson& j) {
                  j["normalizer"] = {{"type", "Prepend"}, {"prepend", copies("p", 1 << 20)}};
                },
                {"64 times"}),
      tokenizer(
          "template_of_a_million_tokens",
          [](OrderedJson& j) {
            OrderedJson ids = OrderedJson::array(), single = OrderedJson::array({OrderedJson{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}});
            for (int i = 0; i < 1000; ++i) ids.push_back(1), single.push_back({{"SpecialToken", {{"id", "x"}, {"type_id", 0}}}});
            j["post_processor"] = {
                {"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", {{"x", {{"id", "x"}, {"ids", ids}}}}}};
          },
          {"more than 1024 tokens"}),
      tokenizer("template_of_an_unknown_token",
                [](OrderedJson& j) {
                  j["post_processor"] = {{"type", "TemplateProcessing"},
                                         {"single", OrderedJson::array({OrderedJson{{"SpecialToken", {{"id", "zz"}}}}})},
                                         {"special_tokens", OrderedJson::object()}};
                },
                {"zz"}),
      tokenizer("template_of_an_id_that_no_token_has",
                [](OrderedJson& j) {
                  j["post_processor"] = {{"type", "TemplateProcessing"},
                                         {"single", {{{"SpecialToken", {{"id", "x"}}}}, {{"Sequence", {{"id", "A"}}}}}},
                                         {"special_tokens", {{"x", {{"ids", {99999}}}}}}};
                },
                {"99999"}),
      tokenizer("metaspace_of_a_megabyte",
                [](OrderedJson& j) {
                  j["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", copies("_", 1 << 20)}};
                },
                {"one character"}),
  };
}

// Patterns of words that a regular-expression engine must not run away with.
HostileCases patterns() {
  return {
      split_by("pattern_that_does_not_compile", "([a-z", {"tokenizer.json", "does not compile"}, "abc"),
      split_by("pattern_that_backtracks_for_years", "(a+)+$", {"tokenizer.json", "pattern"}, std::string(60, 'a') + "!"),
      split_by("pattern_that_backtracks_in_steps", "(a|a|a|a|a|aa)+$", {"tokenizer.json", "pattern"}, std::string(40, 'a') + "!"),
      split_by("pattern_that_calls_itself", "(a(?1)?b|(?1)c)+", {"tokenizer.json", "pattern"}, "aaaa"),
      split_by("pattern_of_repeats", "((((a{1,999}){1,999}){1,999}){1,999}){1,999}", {"tokenizer.json", "pattern"}, "aaaa"),
      split_by("pattern_nested_deep", copies("(", 10'000) + "a" + copies(")", 10'000), {"tokenizer.json", "pattern"}, "aaaa"),
      split_by("pattern_of_a_megabyte", copies("a", 1 << 20), {"tokenizer.json", "pattern"}, "aaaa"),
      split_by("pattern_of_raw_bytes", "\\C", {"tokenizer.json", "pattern"}, "aaaa"),
  };
}

// The same reader through the other commands.
HostileCases other_ways() {
  const auto way = [](const std::string& name, std::vector<std::string> arguments) {
    return HostileCase{"tokenizer",
                       name,
                       std::move(arguments),
                       [](const HostileFolder& in) {
                         in.good("model", "m");
                         in.cut("m/tokenizer.json", 1000);
                         in.file("a.txt", "A story.\n");
                       },
                       {"m/tokenizer.json"}};
  };
  return {way("cut_for_generation", generate_text()), way("cut_for_chat", {"chat", "m"}),
          way("cut_for_training", {"train", "--set", "data.tokenizer_file=m/tokenizer.json", "--out", "x"}),
          way("cut_for_training_from_a_model", {"train", "--set", "model.from=m", "--out", "x"}),
          way("cut_for_a_shard", {"data", "tokenize", "a.txt", "--tokenizer", "m/tokenizer.json", "--out", "x.bin"})};
}

}  // namespace

HostileCases hostile_tokenizers() {
  HostileCases all;
  for (const HostileCases& part : {files(), vocabularies(), parts(), patterns(), other_ways()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace cairn::study
