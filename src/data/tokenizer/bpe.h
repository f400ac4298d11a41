// The value of a byte-pair encoding: its pieces and merges, and what happens to a text before and after them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace cairn::data {

// Joins two pieces standing side by side into one. The earlier in the list, the sooner it is applied.
struct Merge {
  int32_t left = 0;
  int32_t right = 0;
  int32_t result = 0;
  bool operator==(const Merge&) const = default;
};

// A token that is matched in the text as it stands, before words are cut.
struct AddedToken {
  int32_t id = 0;
  std::string text;
  bool special = true;       // steers a model, rather than being part of a text
  bool normalized = false;   // looked for after the rewrites
  bool left_strip = false;   // takes the space before it along
  bool right_strip = false;  // and after it
  bool single_word = false;  // only where no word character stands next to it
  bool in_vocab = true;      // a piece of the model as well, which may come out of words
  bool operator==(const AddedToken&) const = default;
};

// One change of the text before it is cut.
struct NormalizerStep {
  enum class Kind { nfc, nfd, nfkc, nfkd, prepend, replace };
  Kind kind = Kind::nfc;
  std::string from = {};  // replace: every occurrence of this
  std::string to = {};    // replace: by this; prepend: this, where there is any text
  bool operator==(const NormalizerStep&) const = default;
};

// One step of cutting a text into words; the next step works on each of its pieces.
struct PreTokenizerStep {
  enum class Kind {
    gpt2,  // the patterns of word_split.h
    llama3,
    qwen2,
    expression,    // a regular expression
    literal,       // a text
    digits,        // runs of numbers
    each_digit,    // numbers one by one
    prefix_space,  // cuts nothing: a piece that does not begin with a space gets one
    metaspace,     // cuts nothing: spaces become `text`, and one is put in front as `prefix` says
  };
  // What becomes of a match of expression, literal and digits.
  enum class Behavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };
  enum class Prefix { never, first, always };
  Kind kind = Kind::gpt2;
  std::string text = {};
  Behavior keep = Behavior::isolated;
  bool invert = false;  // what lies between the matches counts as the match
  Prefix prefix = Prefix::never;
  bool operator==(const PreTokenizerStep&) const = default;
};

// How ids become text again.
struct Decoding {
  bool byte_level = true;                     // pieces are written in byte letters
  std::vector<NormalizerStep> replaces = {};  // in each piece
  bool byte_pieces = false;                   // <0x0A> is the byte 10
  std::string strip = {};                     // taken off the whole, so often, at the beginning and at the end
  int64_t strip_first = 0, strip_last = 0;
  std::string drop_in_first = {};  // taken out of the first piece
  bool operator==(const Decoding&) const = default;
};

struct Bpe {
  std::vector<std::string> pieces;  // of each id: raw bytes where `bytes`, else text
  std::vector<Merge> merges;
  std::vector<AddedToken> added;  // their texts are also their pieces
  std::vector<NormalizerStep> normalizers = {};
  std::vector<PreTokenizerStep> pre_tokenizers = {{PreTokenizerStep::Kind::gpt2}};
  bool bytes = true;                          // a word begins as bytes; false: as characters
  bool byte_fallback = false;                 // characters: one without a piece becomes the pieces <0x00> .. <0xFF> of its bytes
  int32_t unknown = -1;                       // characters: the piece of one that has none; -1: it is dropped
  bool fuse_unknown = false;                  // neighbours without a piece become one
  bool whole_words = false;                   // a word that is a piece is that piece, whatever the merges would give
  std::vector<int32_t> begin = {}, end = {};  // put around a text where special tokens are asked for
  Decoding decoding = {};
  bool operator==(const Bpe&) const = default;
};

}  // namespace cairn::data
