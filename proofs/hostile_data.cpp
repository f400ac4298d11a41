// Bad inputs: texts and JSON records to train on.
#include "hostile_cases.h"

namespace cairn::study {
namespace {

std::vector<std::string> training(const std::string& file) { return {"train", "--data", file, "--out", "x"}; }

HostileCase record_file(const std::string& name, const std::string& file, const Bytes& bytes, std::vector<std::string> said,
                        std::vector<std::string> arguments = {}) {
  said.push_back(file);
  if (arguments.empty()) arguments = training(file);
  return {"records", name, std::move(arguments), [file, bytes](const HostileFolder& in) { in.file(file, bytes); }, std::move(said)};
}

HostileCase line(const std::string& name, const Bytes& record, std::vector<std::string> said) {
  said.emplace_back("a.jsonl:2");
  return record_file(name, "a.jsonl", "{\"text\": \"a good line\"}\n" + record + "\n", std::move(said));
}

HostileCase text_file(const std::string& name, const Bytes& bytes, std::vector<std::string> said,
                      std::vector<std::string> arguments = training("a.txt")) {
  said.emplace_back("a.txt");
  return {"text", name, std::move(arguments), [bytes](const HostileFolder& in) { in.file("a.txt", bytes); }, std::move(said)};
}

HostileCases lines() {
  return {
      line("not_json", "text: a", {"invalid JSON"}),
      line("cut_off", "{\"text\": \"a", {"no end"}),
      line("a_list", "[1]", {"not a JSON object"}),
      line("a_number", "7", {"not a JSON object"}),
      line("a_text", "\"a\"", {"not a JSON object"}),
      line("no_known_field", "{\"body\": \"a\"}", {"body"}),
      line("text_a_number", "{\"text\": 7}", {"text", "number"}),
      line("text_null", "{\"text\": null}", {"text", "null"}),
      line("text_a_list", "{\"text\": [\"a\"]}", {"text", "array"}),
      line("same_key_twice", "{\"text\": \"a\", \"text\": \"b\"}", {"twice"}),
      line("lists_a_million_deep", "{\"text\": " + repeated("[", 1'000'000), {"nested"}),
      line("objects_a_million_deep", repeated("{\"text\":", 500'000), {"nested"}),
      line("invalid_utf8", "{\"text\": \"\xc3\x28\"}", {"invalid UTF-8"}),
      line("overlong_utf8", "{\"text\": \"\xc0\xaf\"}", {"invalid UTF-8"}),
      line("surrogate_alone", "{\"text\": \"\\udfff\"}", {"invalid JSON"}),
      line("nul_byte", std::string("{\"text\": \"a\"}\0{}", 15), {"NUL"}),
      line("number_beyond_a_double", "{\"text\": \"a\", \"id\": 1e999}", {"number"}),
      line("endless_number", "{\"text\": \"a\", \"id\": " + repeated("1", 1 << 20) + "}", {"number"}),
      line("three_million_lists", "{\"text\": \"a\", \"x\": [" + repeated("[],", 3'000'000) + "[]]}", {"memory"}),
      line("messages_a_text", "{\"messages\": \"hello\"}", {"messages"}),
      line("messages_empty", "{\"messages\": []}", {"messages", "empty"}),
      line("messages_of_numbers", "{\"messages\": [1, 2]}", {"messages"}),
      line("message_without_role", "{\"messages\": [{\"content\": \"a\"}]}", {"role"}),
      line("message_without_content", "{\"messages\": [{\"role\": \"user\"}]}", {"content"}),
      line("message_content_a_number", "{\"messages\": [{\"role\": \"user\", \"content\": 7}]}", {"content"}),
      line("nobody_answers", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}", {"assistant"}),
      line("instruction_a_list", "{\"instruction\": [], \"output\": \"a\"}", {"instruction"}),
      line("chosen_without_rejected", "{\"prompt\": \"a\", \"chosen\": \"b\"}", {"rejected"}),
      record_file("empty", "a.jsonl", "", {"empty"}),
      record_file("nothing_but_line_breaks", "a.jsonl", repeated("\n", 1000), {"a.jsonl"}),
      record_file("utf16", "a.jsonl", std::string("\xff\xfe{\0\"\0t\0", 8), {"UTF-16"}),
      record_file("list_not_closed", "a.json", "[{\"text\": \"a\"}", {"no ] was found"}),
      record_file("list_not_closed_in_a_record", "a.json", "[{\"text\": \"a", {"ends inside"}),
      record_file("list_without_commas", "a.json", "[{\"text\": \"a\"} {\"text\": \"b\"}]", {"no comma"}),
      record_file("list_with_more_after_it", "a.json", "[{\"text\": \"a\"}] [1]", {"after the end"}),
      record_file("list_of_lists_a_million_deep", "a.json", repeated("[", 1'000'000), {"a.json"}),
      record_file("list_of_commas", "a.json", "[" + repeated(",", 1000) + "]", {"missing"}),
      record_file("list_empty", "a.json", "[]", {"a.json"}),
      record_file("inspected_without_a_good_line", "a.jsonl", "7\n8\n9\n", {"no document"}, {"data", "inspect", "a.jsonl"}),
      record_file("made_into_a_shard", "a.jsonl", "{\"text\": 1}\n", {"text", "number"},
                  {"data", "tokenize", "a.jsonl", "--out", "x.bin", "--set", "data.tokenizer=bytes"}),
      record_file("line_of_40_mb", "a.jsonl", "{\"text\": \"" + repeated("a", 40 << 20) + "\"}\n", {"data.line_bytes"}),
      record_file("line_of_40_mb_inspected", "a.jsonl", "{\"text\": \"" + repeated("a", 40 << 20) + "\"}\n", {"data.line_bytes"},
                  {"data", "inspect", "a.jsonl"}),
  };
}

// A gigabyte on one line; zeros take no space on disk.
HostileCases gigabytes() {
  const auto sparse = [](const std::string& reader, const std::string& name, const std::string& file, const std::string& beginning,
                         std::vector<std::string> arguments, std::vector<std::string> said) {
    said.push_back(file);
    return HostileCase{reader, name, std::move(arguments),
                       [file, beginning](const HostileFolder& in) { in.sparse(file, beginning, int64_t{1} << 30); }, std::move(said)};
  };
  const auto solid = [](const std::string& reader, const std::string& name, const std::string& file, const std::string& beginning,
                        std::vector<std::string> arguments, std::vector<std::string> said) {
    said.push_back(file);
    return HostileCase{.reader = reader,
                       .name = name,
                       .arguments = std::move(arguments),
                       .make = [file, beginning](const HostileFolder& in) { in.file(file, beginning + repeated("a", 1 << 30)); },
                       .said = std::move(said),
                       .full = true};
  };
  const std::vector<std::string> shard{"data", "tokenize", "a.jsonl", "--out", "x.bin"}, inspect{"data", "inspect", "a.jsonl"};
  return {
      sparse("records", "line_of_a_gigabyte", "a.jsonl", "{\"text\": \"", training("a.jsonl"), {"data.line_bytes"}),
      sparse("records", "line_of_a_gigabyte_inspected", "a.jsonl", "{\"text\": \"", inspect, {"data.line_bytes"}),
      sparse("records", "line_of_a_gigabyte_for_a_shard", "a.jsonl", "{\"text\": \"", shard, {"data.line_bytes"}),
      sparse("records", "list_of_a_gigabyte", "a.json", "[{\"text\": \"", training("a.json"), {"data.line_bytes"}),
      sparse("text", "of_a_gigabyte_of_zeros", "a.txt", "Once", training("a.txt"), {"NUL"}),
      sparse("text", "of_a_gigabyte_to_tokenize", "a.txt", "Once", {"tokenize", "--tokenizer", "a.txt", "a.txt"}, {"1.00 GiB"}),
      sparse("text", "of_a_gigabyte_to_learn_from", "a.txt", "Once", {"tokenize", "train", "a.txt", "--out", "t.json"}, {"NUL"}),
      solid("records", "solid_line_of_a_gigabyte", "a.jsonl", "{\"text\": \"", training("a.jsonl"), {"data.line_bytes"}),
      solid("records", "solid_line_of_a_gigabyte_inspected", "a.jsonl", "{\"text\": \"", inspect, {"data.line_bytes"}),
      solid("text", "solid_of_a_gigabyte", "a.txt", "", training("a.txt"), {"data.line_bytes"}),
      solid("text", "solid_of_a_gigabyte_to_learn_from", "a.txt", "", {"tokenize", "train", "a.txt", "--out", "t.json"},
            {"data.line_bytes"}),
  };
}

HostileCases text_files() {
  const auto nothing = [](const HostileFolder&) {};
  return {
      text_file("empty", "", {"empty"}),
      text_file("nul_bytes", std::string("a\0b", 3), {"NUL byte at offset 1"}),
      text_file("binary", repeated("\xff\xfe\xfd", 1000), {"binary"}),
      text_file("latin_1", repeated("\xe4\xf6\xfc", 1000), {"binary"}),
      text_file("latin_1_words", repeated("sch\xf6n ", 1000), {"ISO-8859-1"}),
      text_file("utf16", std::string("\xff\xfeO\0n\0c\0e\0", 10), {"UTF-16"}),
      text_file("nothing_but_markers", repeated("<|endoftext|>", 100), {"markers"}),
      text_file("too_short", "a", {"a.txt"}),
      text_file("one_word_of_40_mb", repeated("a", 40 << 20), {"data.line_bytes"}),
      text_file("gzip", std::string("\x1f\x8b\x08") + std::string(100, 'x'), {"gzip"}),
      text_file("zstd", std::string("\x28\xb5\x2f\xfd") + std::string(100, 'x'), {"zstd"}),
      text_file("zip", std::string("PK\x03\x04") + std::string(100, 'x'), {"zip"}),
      text_file("arrow", std::string("ARROW1") + std::string(100, 'x'), {"Arrow"}),
      {"text",
       "parquet",
       training("a.parquet"),
       [](const HostileFolder& in) { in.file("a.parquet", "PAR1....PAR1"); },
       {"a.parquet", "convert"}},
      {"text", "nothing_there", training("gone.txt"), nothing, {"gone.txt", "no such file"}},
      {"text", "pattern_that_matches_nothing", training("*.gone"), nothing, {"*.gone", "no file matches"}},
      {"text", "an_empty_folder", training("d"), [](const HostileFolder& in) { in.folder("d"); }, {"d", "without data files"}},
      {"text", "a_pipe", training("a.txt"), [](const HostileFolder& in) { in.pipe("a.txt"); }, {"a.txt", "not a regular file"}},
      {"text",
       "endless",
       training("a.txt"),
       [](const HostileFolder& in) { in.link("a.txt", "/dev/zero"); },
       {"a.txt", "not a regular file"}},
      {"text", "a_link_to_itself", training("a.txt"), [](const HostileFolder& in) { in.link("a.txt", "a.txt"); }, {"a.txt"}},
      {"text", "a_name_too_long", training(std::string(5000, 'n')), nothing, {"no such file"}},
      {"text",
       "a_source_of_a_mixture",
       {"train", "--set", "data.sources=[\"a.txt\", \"b.txt\"]", "--out", "x"},
       [](const HostileFolder& in) { in.file("a.txt", "Once upon a time."), in.file("b.txt", std::string("\0", 1)); },
       {"b.txt", "NUL"}},
      {"text",
       "prompts_of_a_gigabyte",
       {"generate", "m", "--prompt-file", "p.txt"},
       [](const HostileFolder& in) { in.good("model", "m"), in.sparse("p.txt", "a", int64_t{1} << 30); },
       {"p.txt", "1.00 GiB"}},
      {"text",
       "prompts_empty",
       {"generate", "m", "--prompt-file", "p.txt"},
       [](const HostileFolder& in) { in.good("model", "m"), in.file("p.txt", ""); },
       {"p.txt", "no line"}},
      {"text",
       "prompt_too_long",
       {"generate", "m", "--prompt-file", "p.txt"},
       [](const HostileFolder& in) { in.good("model", "m"), in.file("p.txt", repeated("a", 10 << 20)); },
       {"p.txt:1", "64 tokens"}},
      {"text",
       "chat_line_of_two_megabytes",
       {"chat", "m"},
       [](const HostileFolder& in) { in.good("model", "m"); },
       {"standard input"},
       repeated("a", 2 << 20)},
  };
}

}  // namespace

HostileCases hostile_data() {
  HostileCases all;
  for (const HostileCases& part : {lines(), text_files(), gigabytes()}) all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace cairn::study
