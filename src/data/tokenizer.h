// The seam between text and token ids.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::data {

// What separates documents, in text files and in vocabularies (Hugging Face's name for it).
inline constexpr std::string_view kEndOfText = "<|endoftext|>";

// Turns text into ids and back. Any bytes are accepted, and decode(encode(text)) == text always. Ids are 0 .. vocab_size() - 1.
// Immutable, so one tokenizer may serve many threads. Cutting a text where `is_border` (word_split.h) holds and encoding the
// pieces one by one gives the ids of the whole.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  // An id outside the vocabulary is refused.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  virtual int64_t vocab_size() const = 0;
  // The id of kEndOfText, which encode() recognises inside a text too.
  virtual int32_t end_of_text() const = 0;
  // The text of a Hugging Face tokenizer.json that gives the same ids.
  virtual std::string json() const = 0;
};

// Equal for tokenizers that give equal ids; names what was tokenised with it in caches and snapshots.
uint64_t hash(const Tokenizer& tokenizer);

}  // namespace cairn::data
