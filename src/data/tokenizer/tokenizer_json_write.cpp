// Writes a Hugging Face tokenizer.json.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/json.h"
#include "data/tokenizer/byte_to_unicode.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/tokenizer/word_split.h"

namespace cairn::data {
namespace {

std::string json_text(std::string_view text) { return base::compact(base::Json(std::string(text))); }

// null, the one part, or a Sequence of them.
std::string joined(const std::vector<std::string>& parts, const char* key) {
  if (parts.empty()) return "null";
  if (parts.size() == 1) return parts[0];
  return fmt::format("{{\"type\": \"Sequence\", \"{}\": [{}]}}", key, fmt::join(parts, ", "));
}

std::string write_replace(const NormalizerStep& step) {
  return fmt::format("{{\"type\": \"Replace\", \"pattern\": {{\"String\": {}}}, \"content\": {}}}", json_text(step.from),
                     json_text(step.to));
}

std::string write_normalizer(const Bpe& bpe) {
  std::vector<std::string> parts;
  for (const NormalizerStep& step : bpe.normalizers) {
    switch (step.kind) {
      case NormalizerStep::Kind::prepend:
        parts.push_back(fmt::format("{{\"type\": \"Prepend\", \"prepend\": {}}}", json_text(step.to)));
        break;
      case NormalizerStep::Kind::replace:
        parts.push_back(write_replace(step));
        break;
      default: {
        static constexpr const char* kNames[] = {"NFC", "NFD", "NFKC", "NFKD"};
        parts.push_back(fmt::format("{{\"type\": \"{}\"}}", kNames[static_cast<int>(step.kind)]));
      }
    }
  }
  return joined(parts, "normalizers");
}

std::string write_byte_level(bool words) {
  return fmt::format("{{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": {}}}", words);
}

// Only for BPEs that Cairn makes itself; a tokenizer that was read from a file keeps that file's text.
std::string write_pre_tokenizer(const Bpe& bpe) {
  if (!bpe.bytes) {
    CAIRN_CHECK(bpe.pre_tokenizers.empty(), "{} pre-tokenizers of characters", bpe.pre_tokenizers.size());
    return "null";
  }
  if (bpe.pre_tokenizers.empty()) return write_byte_level(false);
  const PreTokenizerStep::Kind kind = bpe.pre_tokenizers[0].kind;
  CAIRN_CHECK(bpe.pre_tokenizers.size() == 1 && kind <= PreTokenizerStep::Kind::qwen2, "{} pre-tokenizers, the first of kind {}",
              bpe.pre_tokenizers.size(), static_cast<int>(kind));
  if (kind == PreTokenizerStep::Kind::gpt2) return write_byte_level(true);
  const std::string_view expression = expression_of(kind == PreTokenizerStep::Kind::llama3 ? WordPattern::llama3 : WordPattern::qwen2);
  return joined({fmt::format("{{\"type\": \"Split\", \"pattern\": {{\"Regex\": {}}}, \"behavior\": \"Isolated\", \"invert\": false}}",
                             json_text(expression)),
                 write_byte_level(false)},
                "pretokenizers");
}

std::string write_post_processor(const Bpe& bpe) {
  if (bpe.begin.empty() && bpe.end.empty()) return "null";
  std::vector<std::string> single, pair, tokens;
  const auto add = [&](const std::vector<int32_t>& ids, int type) {
    for (const int32_t id : ids) {
      const std::string name = json_text(bpe.pieces[id]);
      const std::string item = fmt::format("{{\"SpecialToken\": {{\"id\": {}, \"type_id\": {}}}}}", name, type);
      if (type == 0) single.push_back(item);
      pair.push_back(item);
      if (type == 0) tokens.push_back(fmt::format("{0}: {{\"id\": {0}, \"ids\": [{1}], \"tokens\": [{0}]}}", name, id));
    }
  };
  const auto sequence = [](char which, int type) {
    return fmt::format("{{\"Sequence\": {{\"id\": \"{}\", \"type_id\": {}}}}}", which, type);
  };
  add(bpe.begin, 0);
  single.push_back(sequence('A', 0));
  pair.push_back(sequence('A', 0));
  add(bpe.end, 0);
  add(bpe.begin, 1);
  pair.push_back(sequence('B', 1));
  add(bpe.end, 1);
  return fmt::format("{{\"type\": \"TemplateProcessing\", \"single\": [{}], \"pair\": [{}], \"special_tokens\": {{{}}}}}",
                     fmt::join(single, ", "), fmt::join(pair, ", "), fmt::join(tokens, ", "));
}

std::string write_decoder(const Bpe& bpe) {
  if (bpe.decoding.byte_level) return write_byte_level(true);
  std::vector<std::string> parts;
  for (const NormalizerStep& step : bpe.decoding.replaces) parts.push_back(write_replace(step));
  if (bpe.decoding.byte_pieces) parts.emplace_back("{\"type\": \"ByteFallback\"}");
  parts.emplace_back("{\"type\": \"Fuse\"}");
  if (!bpe.decoding.strip.empty())
    parts.push_back(fmt::format("{{\"type\": \"Strip\", \"content\": {}, \"start\": {}, \"stop\": {}}}", json_text(bpe.decoding.strip),
                                bpe.decoding.strip_first, bpe.decoding.strip_last));
  return joined(parts, "decoders");
}

std::string write_added(const Bpe& bpe) {
  std::string out;
  const char* comma = "";
  for (const AddedToken& token : bpe.added) {
    out += fmt::format(
        "{}\n    {{\"id\": {}, \"content\": {}, \"single_word\": {}, \"lstrip\": {}, \"rstrip\": {}, "
        "\"normalized\": {}, \"special\": {}}}",
        comma, token.id, json_text(token.text), token.single_word, token.left_strip, token.right_strip, token.normalized, token.special);
    comma = ",";
  }
  return out;
}

// Pieces as the vocabulary and the merges write them.
std::vector<std::string> written_pieces(const Bpe& bpe) {
  std::vector<std::string> written = bpe.pieces;
  std::vector<bool> as_is(written.size(), !bpe.bytes);
  for (const AddedToken& token : bpe.added) as_is[token.id] = true;
  for (size_t id = 0; id < written.size(); ++id)
    if (!as_is[id]) written[id] = bytes_to_unicode(written[id]);
  return written;
}

}  // namespace

std::string write_tokenizer_json(const Bpe& bpe) {
  std::string out = fmt::format(
      "{{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [{}\n  ],\n"
      "  \"normalizer\": {},\n  \"pre_tokenizer\": {},\n  \"post_processor\": {},\n  \"decoder\": {},\n",
      write_added(bpe), write_normalizer(bpe), write_pre_tokenizer(bpe), write_post_processor(bpe), write_decoder(bpe));
  out += fmt::format(
      "  \"model\": {{\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": {},\n"
      "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": {},\n"
      "    \"byte_fallback\": {},\n    \"ignore_merges\": {},\n    \"vocab\": {{",
      bpe.unknown < 0 ? "null" : json_text(bpe.pieces[bpe.unknown]), bpe.fuse_unknown, bpe.byte_fallback, bpe.whole_words);
  const std::vector<std::string> written = written_pieces(bpe);
  const char* comma = "";
  std::vector<bool> left_out(bpe.pieces.size());
  for (const AddedToken& token : bpe.added) left_out[token.id] = !token.in_vocab;
  for (size_t id = 0; id < bpe.pieces.size(); ++id) {
    if (left_out[id]) continue;
    out += fmt::format("{}\n      {}: {}", comma, json_text(written[id]), id);
    comma = ",";
  }
  out += "\n    },\n    \"merges\": [";
  comma = "";
  for (const Merge& merge : bpe.merges) {
    out += fmt::format("{}\n      {}", comma, json_text(written[merge.left] + " " + written[merge.right]));
    comma = ",";
  }
  out += "\n    ]\n  }\n}\n";
  return out;
}

}  // namespace cairn::data
