#include "data/tokenizer.h"

#include "base/check.h"
#include "base/checksum.h"

namespace cairn::data {
namespace {

constexpr std::string_view kEnds[] = {kEndOfText, "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>"};

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 8);
  encode(text, options, ids);
  return ids;
}

int32_t Tokenizer::end_of_text() const { return *id_of(end_of_text_name()); }

std::optional<int32_t> Tokenizer::find_end_of_text() const {
  for (const std::string_view name : kEnds)
    if (const std::optional<int32_t> id = id_of(name)) return id;
  return std::nullopt;
}

std::string_view Tokenizer::end_of_text_name() const {
  for (const std::string_view name : kEnds)
    if (id_of(name)) return name;
  base::fail_input("the tokenizer has no token that ends a document: add one of <|endoftext|>, <|end_of_text|>, </s>, <eos>, <|im_end|>");
}

std::optional<int32_t> Tokenizer::begin_of_text() const {
  for (const char* name : {"<s>", "<|begin_of_text|>", "<bos>"})
    if (const std::optional<int32_t> id = id_of(name)) return id;
  return std::nullopt;
}

// The number changes when the same file gives other ids than before. (2: Unicode's own classes \p{L}, \p{N} and \s.)
uint64_t hash(const Tokenizer& tokenizer) { return base::checksum(tokenizer.json() + "\nids 2"); }

}  // namespace cairn::data
