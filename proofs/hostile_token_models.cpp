// Bad inputs: the other kinds of tokenizer: GPT-2's two files, SentencePiece models, llama2.c's file; and llama2.c's models.
#include <cstring>

#include "data/tokenizer/sentencepiece_tokenizer.h"
#include "hostile_cases.h"

namespace cairn::study {
namespace {

HostileCase pair_of_files(const std::string& name, const Bytes& vocab, const Bytes& merges, std::vector<std::string> said) {
  return {"vocab.json",
          name,
          {"tokenize", "--tokenizer", "vocab.json", "--text", "a"},
          [vocab, merges](const HostileFolder& in) {
            in.file("vocab.json", vocab);
            in.file("merges.txt", merges);
          },
          std::move(said)};
}

HostileCases pairs() {
  return {
      pair_of_files("empty", "", "", {"vocab.json", "empty"}),
      pair_of_files("not_json", "a b c", "", {"vocab.json"}),
      pair_of_files("a_list", "[]", "", {"vocab.json", "no JSON object"}),
      pair_of_files("nested", "{\"a\": [[1]]}", "", {"vocab.json"}),
      pair_of_files("a_million_deep", repeated("{", 1'000'000), "", {"vocab.json"}),
      pair_of_files("same_piece_twice", "{\"a\": 0, \"a\": 1}", "", {"vocab.json", "twice"}),
      pair_of_files("id_negative", "{\"a\": -1}", "", {"vocab.json", "-1"}),
      pair_of_files("id_huge", "{\"a\": 99999999999}", "", {"vocab.json", "99999999999"}),
      pair_of_files("bytes_missing", "{\"a\": 0}", "", {"vocab.json", "no piece for byte"}),
      pair_of_files("merge_of_one", "{\"a\": 0}", "#version: 0.2\na\n", {"merges.txt:2", "two pieces"}),
      pair_of_files("merge_of_three", "{\"a\": 0}", "a b c\n", {"merges.txt:1", "two pieces"}),
      pair_of_files("merge_unknown", "{\"a\": 0}", "x y\n", {"vocab.json"}),
      pair_of_files("merges_without_end", "{\"a\": 0}", repeated("a b\n", 5'000'000), {"merges.txt", "1048576 merges"}),
      {"vocab.json",
       "merges_missing",
       {"tokenize", "--tokenizer", "vocab.json", "--text", "a"},
       [](const HostileFolder& in) { in.file("vocab.json", "{}"); },
       {"merges.txt"}},
      {"vocab.json",
       "merges_of_a_gigabyte",
       {"tokenize", "--tokenizer", "vocab.json", "--text", "a"},
       [](const HostileFolder& in) {
         in.file("vocab.json", "{}");
         in.sparse("merges.txt", "a", int64_t{1} << 30);
       },
       {"merges.txt", "1.00 GiB"}},
  };
}

std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  return out + static_cast<char>(value);
}

// A field of a protocol buffer that holds a text or another message.
std::string field(int number, const std::string& bytes) {
  return varint(static_cast<uint64_t>(number) << 3 | 2) + varint(bytes.size()) + bytes;
}

std::string piece(const std::string& text, int kind, const std::string& score = std::string(4, '\0')) {
  return field(1, field(1, text) + varint(2 << 3 | 5) + score + varint(3 << 3) + varint(static_cast<uint64_t>(kind)));
}

// A SentencePiece model of single letters.
std::string letters_model() {
  std::string model = piece("<unk>", 2) + piece("<s>", 3) + piece("</s>", 3) + piece("\xe2\x96\x81", 1);
  for (char c = 'a'; c <= 'z'; ++c) model += piece(std::string(1, c), 1);
  return model;
}

HostileCase sentencepiece(const std::string& name, const Bytes& bytes, std::vector<std::string> said) {
  said.push_back("tokenizer.model");
  return {"sentencepiece",
          name,
          {"tokenize", "--tokenizer", "tokenizer.model", "--text", "a story"},
          [bytes](const HostileFolder& in) { in.file("tokenizer.model", bytes); },
          std::move(said)};
}

// A compiled map of characters: the length of its array, the array, the texts.
std::string character_map(const std::vector<uint32_t>& units, const std::string& texts) {
  const auto bytes = static_cast<uint32_t>(units.size() * sizeof(uint32_t));
  std::string map(sizeof bytes + bytes, '\0');
  std::memcpy(map.data(), &bytes, sizeof bytes);
  std::memcpy(map.data() + sizeof bytes, units.data(), bytes);
  return map + texts;
}

std::string with_map(const std::string& map) { return letters_model() + field(3, field(1, "nmt_nfkc") + field(2, map)); }

HostileCases sentencepieces() {
  std::vector<uint32_t> astray(256, 0), leaf_astray(256, 0);
  astray[0] = 0x3fffffu << 10;
  leaf_astray[0] = 1u << 8;
  const std::string nul(1, '\0');
  return {
      sentencepiece("empty", "", {"no pieces"}),
      sentencepiece("a_text", "this is no model\n", {"not a SentencePiece model"}),
      sentencepiece("cut_off", letters_model().substr(0, 100), {"SentencePiece"}),
      sentencepiece("length_beyond_file", "\x0a\xff\xff\xff\xff\x0f", {"not a SentencePiece model"}),
      sentencepiece("length_of_2_to_64", "\x0a" + std::string(9, '\xff') + "\x01", {"not a SentencePiece model"}),
      sentencepiece("varint_without_end", "\x0a" + std::string(100, '\xff'), {"not a SentencePiece model"}),
      sentencepiece("groups_a_million_deep", repeated("\x0b", 1'000'000), {"not a SentencePiece model"}),
      sentencepiece("piece_empty", letters_model() + piece("", 1), {"is empty"}),
      sentencepiece("piece_with_a_nul", letters_model() + piece("a" + nul + "b", 1), {"NUL"}),
      sentencepiece("piece_of_a_megabyte", letters_model() + piece(copies("x", 1 << 20), 1), {"1048576 bytes"}),
      sentencepiece("piece_of_unknown_kind", letters_model() + piece("zz", 77), {"kind 77"}),
      sentencepiece("score_nan", letters_model() + piece("zz", 1, std::string("\x00\x00\xc0\x7f", 4)), {"nan"}),
      sentencepiece("same_piece_twice", letters_model() + piece("a", 1), {"SentencePiece refuses it"}),
      sentencepiece("no_unknown_piece", piece("a", 1), {"SentencePiece refuses it"}),
      sentencepiece("model_of_unknown_kind", letters_model() + field(2, varint(3 << 3) + varint(99)), {"kind 99"}),
      sentencepiece("map_cut_off", with_map("\x01"), {"character map"}),
      sentencepiece("map_length_beyond_it", with_map(std::string(4, '\xff') + "abc"), {"character map"}),
      sentencepiece("map_that_leads_astray", with_map(character_map(astray, "x" + nul)), {"character map"}),
      sentencepiece("map_of_a_text_beyond_it", with_map(character_map(leaf_astray, "")), {"character map"}),
      sentencepiece("map_without_an_end", with_map(character_map(std::vector<uint32_t>(256, 0), "x")), {"character map"}),
      {"sentencepiece",
       "of_a_gigabyte",
       {"tokenize", "--tokenizer", "tokenizer.model", "--text", "a"},
       [](const HostileFolder& in) { in.sparse("tokenizer.model", "", int64_t{1} << 30); },
       {"tokenizer.model", "1.00 GiB"}},
  };
}

std::string words(std::initializer_list<int32_t> values) {
  std::string bytes;
  for (const int32_t value : values) bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  return bytes;
}

HostileCase llama2c(const std::string& name, const Bytes& bytes, std::vector<std::string> said) {
  said.push_back("model.bin");
  return {"llama2c",
          name,
          {"snapshot", "convert", "model.bin", "--out", "x"},
          [bytes](const HostileFolder& in) { in.file("model.bin", bytes); },
          std::move(said)};
}

HostileCase llama2c_tokens(const std::string& name, const Bytes& bytes, std::vector<std::string> said) {
  said.push_back("tok.bin");
  return {"llama2c_tokenizer",
          name,
          {"tokenize", "--tokenizer", "tok.bin", "--text", "a"},
          [bytes](const HostileFolder& in) { in.file("tok.bin", bytes); },
          std::move(said)};
}

HostileCases llama2cs() {
  return {
      llama2c("empty", "", {"too short"}),
      llama2c("header_cut_off", words({8, 16, 1}), {"too short"}),
      llama2c("a_text", "Once upon a time there was a file that was no model.", {"header"}),
      llama2c("dim_negative", words({-8, 16, 1, 2, 1, 32, 8}), {"dim = -8"}),
      llama2c("layers_of_a_billion", words({8, 16, 1'000'000'000, 2, 1, 32, 8}), {"n_layers = 1000000000"}),
      llama2c("heads_zero", words({8, 16, 1, 0, 1, 32, 8}), {"n_heads = 0"}),
      llama2c("heads_that_do_not_divide", words({8, 16, 1, 3, 1, 32, 8}), {"cannot work"}),
      llama2c("vocabulary_of_2_to_31", words({8, 16, 1, 2, 1, INT32_MIN, 8}), {"vocab_size"}),
      llama2c("largest_sizes", words({1 << 16, 1 << 20, 1 << 12, 1 << 4, 1 << 4, 1 << 24, 1 << 24}), {"its header speaks of"}),
      llama2c("weights_missing", words({8, 16, 1, 2, 1, 32, 8}), {"28 bytes long"}),
      llama2c("weights_cut_off", words({8, 16, 1, 2, 1, 32, 8}) + floats(100), {"428 bytes long"}),
      {"llama2c",
       "a_pipe",
       {"snapshot", "convert", "model.bin", "--out", "x"},
       [](const HostileFolder& in) { in.pipe("model.bin"); },
       {"not a regular file"}},
      llama2c_tokens("empty", "", {"ends within"}),
      llama2c_tokens("longest_negative", words({-1}), {"-1 bytes"}),
      llama2c_tokens("longest_of_2_gb", words({INT32_MAX}), {"2147483647 bytes"}),
      llama2c_tokens("piece_cut_off", words({8, 0, 100}), {"100 bytes"}),
      llama2c_tokens("length_negative", words({8, 0, -5}), {"-5 bytes"}),
      llama2c_tokens("score_nan", words({8, 0x7fc00000, 1}) + "a", {"score"}),
      llama2c_tokens("too_few_pieces", words({8, 0, 1}) + "a", {"1 pieces"}),
  };
}

}  // namespace

HostileCases hostile_token_models() {
  HostileCases all = pairs();
  for (HostileCase& one : llama2cs()) all.push_back(std::move(one));
  if (data::has_sentencepiece())
    for (HostileCase& one : sentencepieces()) all.push_back(std::move(one));
  return all;
}

}  // namespace cairn::study
