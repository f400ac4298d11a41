// The seam between text and token ids.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::data {

// What separates documents, in text files and in vocabularies (Hugging Face's name for it).
inline constexpr std::string_view kEndOfText = "<|endoftext|>";

struct EncodeOptions {
  bool add_special = false;   // the tokens that this tokenizer puts around a text (a Llama's <s>)
  bool parse_special = true;  // false: text that reads like a special token is text all the same
};

// Turns text into ids and back. Any bytes are accepted. Ids are 0 .. vocab_size() - 1. One tokenizer may serve many threads.
// decode(encode(text)) == text for byte-level tokenizers without normalisation; docs/guides/tokenizers.md says what others change.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // Appends the ids of `text`.
  virtual void encode(std::string_view text, const EncodeOptions& options, std::vector<int32_t>& into) const = 0;
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  // An id outside the vocabulary is refused. The bytes may end within a character.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  // What one id adds to a text that it does not begin: for showing a text as it grows.
  virtual std::string piece(int32_t id) const = 0;
  virtual int64_t vocab_size() const = 0;
  // The id of a token by its name, as the vocabulary writes it: "<|im_start|>", "</s>".
  virtual std::optional<int32_t> id_of(std::string_view token) const = 0;
  virtual bool is_special(int32_t id) const = 0;
  // Whether cutting a text between two such bytes and encoding the parts one by one always gives the ids of the whole.
  virtual bool is_split_point(char before, char after) const = 0;
  // The text of a Hugging Face tokenizer.json that gives the same ids.
  virtual std::string json() const = 0;

  // The id that ends a document: <|endoftext|>, <|end_of_text|>, </s>, <eos> or <|im_end|>, the first that there is. A tokenizer
  // with none of them is refused.
  int32_t end_of_text() const;
  std::optional<int32_t> find_end_of_text() const;  // nothing where there is none
  std::string_view end_of_text_name() const;
  // The id that begins a text, where this tokenizer has one: <s>, <|begin_of_text|> or <bos>.
  std::optional<int32_t> begin_of_text() const;
};

// Equal for tokenizers that give equal ids; names what was tokenised with it in caches and snapshots.
uint64_t hash(const Tokenizer& tokenizer);

}  // namespace cairn::data
