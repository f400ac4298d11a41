// `cairn tokenize`: text to ids and back, and learning a tokenizer.
#include <algorithm>
#include <charconv>
#include <cstdio>

#include <fmt/format.h>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/environment.h"
#include "data/corpus/chunks.h"
#include "data/corpus/source.h"
#include "data/tokenizer/bpe_trainer.h"
#include "data/tokenizer/open_tokenizer.h"
#include "data/tokenizer/tokenizer_json.h"

namespace cairn::cli {
namespace {

constexpr int64_t kTextBytes = 128 << 20;  // larger ones are for `cairn data tokenize`, which holds a part of them at a time

struct Text {
  std::string name, bytes;
};

std::string read_standard_input() {
  std::string text;
  char buffer[1 << 16];
  for (size_t got = 0; (got = std::fread(buffer, 1, sizeof buffer, stdin)) > 0;) {
    text.append(buffer, got);
    if (static_cast<int64_t>(text.size()) > kTextBytes)
      base::fail_input("standard input: more than {} bytes; `cairn data tokenize` reads files of any size", kTextBytes);
  }
  return text;
}

std::vector<Text> read_texts(const TokenizeArguments& a) {
  if (a.text_given && !a.files.empty()) base::fail_input("--text and files: give one or the other");
  if (a.text_given) return {{"--text", a.text}};
  if (a.files.empty()) return {{"standard input", read_standard_input()}};
  std::vector<Text> texts;
  for (const std::string& file : a.files) texts.push_back({file, base::read_file(file, kTextBytes)});
  return texts;
}

void print(std::string_view bytes) { std::fwrite(bytes.data(), 1, bytes.size(), stdout); }

// Ids separated by spaces, commas or line breaks, in brackets or not.
std::vector<int32_t> parse_ids(const Text& text) {
  static constexpr std::string_view kBetween = " ,\t\r\n[]";
  std::vector<int32_t> ids;
  std::string_view rest = text.bytes;
  while (true) {
    rest.remove_prefix(std::min(rest.find_first_not_of(kBetween), rest.size()));
    if (rest.empty()) return ids;
    const std::string_view word = rest.substr(0, rest.find_first_of(kBetween));
    int32_t id = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size())
      base::fail_input("{}: \"{}\" is not a token id", text.name, base::printable(word.substr(0, 40)));
    ids.push_back(id);
    rest.remove_prefix(word.size());
  }
}

std::string ids_line(const std::vector<int32_t>& ids) {
  std::string line;
  for (const int32_t id : ids) {
    if (!line.empty()) line += ' ';
    line += std::to_string(id);
  }
  return line + "\n";
}

// Each line of a text by itself, JSON in and JSON out.
void print_lines(const TokenizeArguments& a, const data::Tokenizer& tokenizer, const data::EncodeOptions& options, const Text& text) {
  std::string_view rest = text.bytes;
  for (int64_t number = 1; !rest.empty(); ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    const base::GuardedJson read = base::parse_json_guarded(line, 1);
    if (a.decode) {
      std::vector<int32_t> ids;
      bool good = read.value.is_array();
      for (const base::Json& id : good ? read.value : base::Json::array()) {
        good = good && id.is_number_integer() && id >= INT32_MIN && id <= INT32_MAX;
        if (good) ids.push_back(id.get<int32_t>());
      }
      if (!good) base::fail_input("{}:{}: not a JSON list of ids", text.name, number);
      print(base::compact(base::Json(tokenizer.decode(ids))) + "\n");
    } else {
      if (!read.value.is_string()) base::fail_input("{}:{}: not a JSON text (in quotes)", text.name, number);
      print(base::compact(base::Json(tokenizer.encode(read.value.get_ref<const std::string&>(), options))) + "\n");
    }
  }
}

void print_text(const TokenizeArguments& a, const data::Tokenizer& tokenizer, const data::EncodeOptions& options, const Text& text) {
  if (a.decode) return print(tokenizer.decode(parse_ids(text)) + "\n");
  const std::vector<int32_t> ids = tokenizer.encode(text.bytes, options);
  if (a.count) {
    const double bytes = static_cast<double>(text.bytes.size());
    print(fmt::format("{}, {}, {:.2f} bytes/token  {}\n", base::plural(static_cast<int64_t>(ids.size()), "token"),
                      base::plural(static_cast<int64_t>(text.bytes.size()), "byte"),
                      ids.empty() ? 0.0 : bytes / static_cast<double>(ids.size()), text.name));
  } else if (a.json) {
    std::vector<std::string> pieces;
    for (const int32_t id : ids) pieces.push_back(tokenizer.piece(id));
    const base::OrderedJson json = {{"text", text.name}, {"ids", ids}, {"pieces", pieces}};
    print(base::compact(json) + "\n");
  } else {
    print(ids_line(ids));
  }
}

int train_tokenizer(const TokenizeArguments& a) {
  std::vector<data::Documents> sources;
  for (const std::string& file : a.train_files) sources.push_back(data::read_text(file));
  if (sources.empty()) sources.push_back(data::generate_stories(1, 4'000'000));
  std::vector<std::string_view> texts;
  for (const data::Documents& source : sources)
    for (int64_t i = 0; i < source.size(); ++i) texts.push_back(source[i]);
  for (const std::string& special : a.specials)
    if (special.empty()) base::fail_input("--special: a special token cannot be empty");
  if (a.vocab < 256 + static_cast<int64_t>(a.specials.size()))
    base::fail_input("--vocab {}: 256 bytes and {} special tokens must fit", a.vocab, a.specials.size());
  const data::Bpe bpe = data::train_bpe(texts, {.vocab = a.vocab,
                                                .pattern = a.pattern == "gpt2"     ? data::WordPattern::gpt2
                                                           : a.pattern == "llama3" ? data::WordPattern::llama3
                                                                                   : data::WordPattern::qwen2,
                                                .threads = processors(),
                                                .specials = a.specials});
  base::write_atomically(a.out, data::write_tokenizer_json(bpe));
  print(fmt::format("{}: {} tokens, {} merges\n", a.out, bpe.pieces.size(), bpe.merges.size()));
  return 0;
}

}  // namespace

int tokenize_command(const TokenizeArguments& a) {
  if (a.train) return train_tokenizer(a);
  if (a.tokenizer.empty())
    base::fail_input("tokenize: needs --tokenizer FILE (a tokenizer.json, tokenizer.model, vocab.json or their folder)");
  if (a.ids + a.json + a.count + a.decode + a.tokenizer_json > 1)
    base::fail_input("tokenize: give one of --ids, --json, --count, --decode and --tokenizer-json");
  if (a.lines && (a.json || a.count)) base::fail_input("tokenize: --lines goes with --ids or --decode");
  const std::unique_ptr<data::Tokenizer> tokenizer = data::open_tokenizer(a.tokenizer);
  if (a.tokenizer_json) {
    print(tokenizer->json());
    return 0;
  }
  const data::EncodeOptions options{.add_special = a.add_special, .parse_special = !a.plain_specials};
  for (const Text& text : read_texts(a)) a.lines ? print_lines(a, *tokenizer, options, text) : print_text(a, *tokenizer, options, text);
  return 0;
}

}  // namespace cairn::cli
