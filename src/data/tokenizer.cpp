#include "data/tokenizer.h"

#include "base/check.h"
#include "base/checksum.h"

namespace cairn::data {
namespace {

constexpr std::string_view kEnds[] = {kEndOfText, "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>"};

std::optional<int32_t> end_by_name(const Tokenizer& tokenizer) {
  for (const std::string_view name : kEnds)
    if (const std::optional<int32_t> id = tokenizer.id_of(name)) return id;
  return std::nullopt;
}

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 8);
  encode(text, options, ids);
  return ids;
}

int32_t Tokenizer::end_of_text() const {
  if (const std::optional<int32_t> id = find_end_of_text()) return *id;
  base::fail_input("the tokenizer has no token that ends a document. Name one as eos_token in tokenizer_config.json beside it.");
}

std::optional<int32_t> Tokenizer::find_end_of_text() const { return declared_.end ? declared_.end : end_by_name(*this); }

std::string Tokenizer::end_of_text_name() const { return piece(end_of_text()); }

std::optional<int32_t> Tokenizer::begin_of_text() const {
  if (declared_.begin) return declared_.begin;
  const std::vector<int32_t> ids = begin_ids();
  return ids.empty() ? std::nullopt : std::optional(ids.front());
}

void Tokenizer::declare(const Declared& declared) {
  if (declared.begin) declared_.begin = declared.begin;
  if (declared.end) declared_.end = declared.end;
}

std::vector<int32_t> text_prefix(const Tokenizer& tokenizer, bool trained_here) {
  std::vector<int32_t> ids = tokenizer.begin_ids();
  if (const std::optional<int32_t> end = tokenizer.find_end_of_text(); ids.empty() && trained_here && end) ids.push_back(*end);
  return ids;
}

// The number changes when the same file gives other ids than before. (2: Unicode's own classes \p{L}, \p{N} and \s.)
uint64_t hash(const Tokenizer& tokenizer) {
  std::string text = tokenizer.json() + "\nids 2";
  const std::optional<int32_t> end = tokenizer.find_end_of_text();
  if (end != end_by_name(tokenizer)) text += "\nend " + std::to_string(*end);
  return base::checksum(text);
}

}  // namespace cairn::data
