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

// The token between documents, in text files and vocabularies.
inline constexpr std::string_view kEndOfText = "<|endoftext|>";

struct EncodeOptions {
  bool add_special = false;   // add the tokens that this tokenizer puts around a text (Llama's <s>)
  bool parse_special = true;  // false: text that looks like a special token stays text
};

// Turns text into ids and back. Accepts any bytes. Ids are 0 .. vocab_size() - 1. Thread-safe.
// decode(encode(text)) == text for byte-level tokenizers without a normalizer.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // Appends the ids of `text`.
  virtual void encode(std::string_view text, const EncodeOptions& options, std::vector<int32_t>& into) const = 0;
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  // Refuses an id outside the vocabulary. The bytes may end inside a UTF-8 character.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  // The bytes that one id adds in the middle of a text: for streaming output.
  virtual std::string piece(int32_t id) const = 0;
  virtual int64_t vocab_size() const = 0;
  // The id of a token by its spelling in the vocabulary: "<|im_start|>", "</s>".
  virtual std::optional<int32_t> id_of(std::string_view token) const = 0;
  virtual bool is_special(int32_t id) const = 0;
  // Whether splitting any text between these two neighbouring bytes and encoding the parts separately gives the ids of the whole.
  virtual bool is_split_point(char before, char after) const = 0;
  // The text of a Hugging Face tokenizer.json that gives the same ids.
  virtual std::string json() const = 0;

  // The id that ends a document: the first of <|endoftext|>, <|end_of_text|>, </s>, <eos> and <|im_end|> that exists. Refuses a tokenizer
  // without any.
  int32_t end_of_text() const;
  std::optional<int32_t> find_end_of_text() const;  // none where it does not exist
  std::string_view end_of_text_name() const;
  // The id that begins a text, if there is one: <s>, <|begin_of_text|> or <bos>.
  std::optional<int32_t> begin_of_text() const;
};

// Equal for tokenizers that give equal ids. Identifies the tokenizer in caches and snapshots.
uint64_t hash(const Tokenizer& tokenizer);

}  // namespace cairn::data
