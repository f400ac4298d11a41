// A byte-pair encoding as a plain value: vocabulary, merges, normalizers, pre-tokenizers and decoder, as in a Hugging Face tokenizer.json.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace cairn::data {

// Joins two neighbouring pieces into one. Merges earlier in the list are applied first.
struct Merge {
  int32_t left = 0;
  int32_t right = 0;
  int32_t result = 0;
  bool operator==(const Merge&) const = default;
};

// A token that is matched in the text before pre-tokenization.
struct AddedToken {
  int32_t id = 0;
  std::string text;
  bool special = true;       // a control token such as <|endoftext|>, not part of a text
  bool normalized = false;   // matched after the normalizers
  bool left_strip = false;   // absorbs whitespace before it
  bool right_strip = false;  // absorbs whitespace after it
  bool single_word = false;  // matches only where no word character is next to it
  bool in_vocab = true;      // also a piece of the vocabulary that merges can produce
  bool operator==(const AddedToken&) const = default;
};

// One normalizer: a change of the text before pre-tokenization.
struct NormalizerStep {
  enum class Kind { nfc, nfd, nfkc, nfkd, prepend, replace };
  Kind kind = Kind::nfc;
  std::string from = {};  // replace: every occurrence of this
  std::string to = {};    // replace: by this; prepend: this, where there is any text
  bool operator==(const NormalizerStep&) const = default;
};

// One pre-tokenizer: splits text into words. The next step works on each piece of this one.
struct PreTokenizerStep {
  enum class Kind {
    gpt2,  // the patterns of word_split.h
    llama3,
    qwen2,
    expression,    // a regular expression
    literal,       // a text
    digits,        // runs of digits
    each_digit,    // digits one by one
    prefix_space,  // splits nothing: prepends a space to a piece that does not begin with one
    metaspace,     // splits nothing: spaces become `text`, and one is prepended as `prefix` says
  };
  // What becomes of a match of expression, literal or digits (`behavior` of a Split in tokenizer.json).
  enum class Behavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };
  enum class Prefix { never, first, always };
  Kind kind = Kind::gpt2;
  std::string text = {};
  Behavior behavior = Behavior::isolated;
  bool invert = false;  // the text between matches counts as the match
  Prefix prefix = Prefix::never;
  bool operator==(const PreTokenizerStep&) const = default;
};

// The decoder: how ids become text.
struct Decoding {
  bool byte_level = true;                     // pieces are spelled by the byte-to-unicode table (byte_to_unicode.h)
  std::vector<NormalizerStep> replaces = {};  // applied to each piece
  bool byte_pieces = false;                   // <0x0A> is the byte 10
  std::string strip = {};                     // removed from the beginning of the text strip_first times, from the end strip_last times
  int64_t strip_first = 0, strip_last = 0;
  std::string drop_in_first = {};  // removed from the first piece
  bool operator==(const Decoding&) const = default;
};

struct Bpe {
  std::vector<std::string> pieces;  // by id: raw bytes where `bytes`, else text
  std::vector<Merge> merges;
  std::vector<AddedToken> added;  // their texts are also their pieces
  std::vector<NormalizerStep> normalizers = {};
  std::vector<PreTokenizerStep> pre_tokenizers = {{PreTokenizerStep::Kind::gpt2}};
  bool bytes = true;                          // merges start from bytes; false: from characters
  bool byte_fallback = false;                 // characters: one without a piece becomes the pieces <0x00> .. <0xFF> of its bytes
  int32_t unknown = -1;                       // characters: the piece for one without a piece (unk); -1: it is dropped
  bool fuse_unknown = false;                  // neighbouring unknown characters become one unk
  bool whole_words = false;                   // a word that is a piece is not merged (ignore_merges)
  std::vector<int32_t> begin = {}, end = {};  // added around a text where EncodeOptions::add_special is set
  Decoding decoding = {};
  bool operator==(const Bpe&) const = default;
};

}  // namespace cairn::data
