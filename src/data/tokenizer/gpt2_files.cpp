#include "data/tokenizer/gpt2_files.h"

#include "base/check.h"
#include "base/json.h"
#include "data/tokenizer.h"
#include "data/tokenizer/tokenizer_json.h"

namespace cairn::data {
namespace {

using base::Json;

constexpr size_t kMergesMax = 1 << 20;

Json read_vocab_file(std::string_view text, const std::string& name) {
  if (text.size() > kTokenizerFileBytes) base::fail_input("{}: {} bytes, and at most {} are read", name, text.size(), kTokenizerFileBytes);
  base::GuardedJson read = base::parse_json_guarded(text, base::JsonLimits{.depth = 2, .tree_bytes = 176 << 20, .string_bytes = 1 << 20});
  if (read.repeated_key) base::fail_input("{}: the piece \"{}\" stands twice", name, *read.repeated_key);
  if (!read.value.is_object())
    base::fail_input("{}: holds no JSON object of pieces and ids: not a GPT-2 vocabulary{}", name,
                     read.trouble.empty() ? "" : fmt::format(" ({})", read.trouble));
  return std::move(read.value);
}

Json read_merges_file(std::string_view text, const std::string& name) {
  if (text.size() > kTokenizerFileBytes) base::fail_input("{}: {} bytes, and at most {} are read", name, text.size(), kTokenizerFileBytes);
  Json merges = Json::array();
  for (size_t line = 1; !text.empty(); ++line) {
    const size_t end = text.find('\n');
    std::string_view merge = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (merge.ends_with('\r')) merge.remove_suffix(1);
    if (merge.empty() || (line == 1 && merge.starts_with("#version"))) continue;
    const size_t space = merge.find(' ');
    if (space == std::string_view::npos || space == 0 || space + 1 == merge.size() || merge.find(' ', space + 1) != std::string_view::npos)
      base::fail_input("{}:{}: not two pieces with a space between them", name, line);
    if (merges.size() == kMergesMax) base::fail_input("{}:{}: more than {} merges, and no more are read", name, line, kMergesMax);
    merges.push_back({std::string(merge.substr(0, space)), std::string(merge.substr(space + 1))});
  }
  return merges;
}

}  // namespace

Bpe read_gpt2_files(std::string_view vocab, const std::string& vocab_name, std::string_view merges, const std::string& merges_name) {
  Json root;
  const Json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  root["pre_tokenizer"] = byte_level;
  root["decoder"] = byte_level;
  root["model"] = {{"type", "BPE"}, {"vocab", read_vocab_file(vocab, vocab_name)}, {"merges", read_merges_file(merges, merges_name)}};
  const auto end = root["model"]["vocab"].find(kEndOfText);
  if (end != root["model"]["vocab"].end()) root["added_tokens"] = {{{"id", *end}, {"content", kEndOfText}, {"special", true}}};
  return bpe_of_json(root, vocab_name);
}

}  // namespace cairn::data
