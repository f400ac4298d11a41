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

  // The ids that this tokenizer puts before a text: its post-processor's, or bos_token where add_bos_token is set.
  virtual std::vector<int32_t> begin_ids() const { return {}; }

  // The id that ends a document: the declared one, else the first of <|endoftext|>, <|end_of_text|>, </s>, <eos> and <|im_end|> that
  // exists. Refuses a tokenizer without any.
  int32_t end_of_text() const;
  std::optional<int32_t> find_end_of_text() const;  // none where it does not exist
  std::string end_of_text_name() const;
  // The id that begins a text, where one is declared or begin_ids() has one.
  std::optional<int32_t> begin_of_text() const;

  // What the files beside the tokenizer say (tokenizer/declared_tokens.h). An id that is not given stays as it was.
  struct Declared {
    std::optional<int32_t> begin = {}, end = {};
  };
  void declare(const Declared& declared);

 private:
  Declared declared_;
};

// The ids before every text, the same in training, evaluation and generation: those that the tokenizer adds. Where it adds none and the
// model was trained here, that is the token that ends the document before: each document followed one. Conversations have none: their
// template writes what they begin with.
std::vector<int32_t> text_prefix(const Tokenizer& tokenizer, bool trained_here);

// Equal for tokenizers that give equal ids. Identifies the tokenizer in caches and snapshots.
uint64_t hash(const Tokenizer& tokenizer);

}  // namespace cairn::data
