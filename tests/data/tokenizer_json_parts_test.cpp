#include "data/tokenizer/tokenizer_json_parts.h"

#include <gtest/gtest.h>

#include "scratch.h"

namespace cairn::data {
namespace {

const char* const kByteLevel = R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true})";

Bpe read_parts(const std::string& parts) {
  Bpe bpe;
  const base::Json root = base::parse_json("{" + parts + "}");
  EXPECT_TRUE(root.is_object()) << parts;
  read_tokenizer_parts(root, "x.json", bpe);
  return bpe;
}

std::string part(const char* name, const std::string& value) { return "\"" + std::string(name) + "\": " + value; }

// The parts of a byte-level file, one of them other than usual.
Bpe with(const char* name, const std::string& value) {
  std::string parts = part(name, value);
  for (const char* usual : {"pre_tokenizer", "decoder"})
    if (usual != std::string(name)) parts += ", " + part(usual, kByteLevel);
  return read_parts(parts);
}

std::string says(const char* name, const std::string& value) {
  return refusal([&] { with(name, value); });
}

TEST(TokenizerParts, ReadsLlama3) {
  const Bpe bpe = read_parts(R"json("normalizer": null, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
       "behavior": "Isolated", "invert": false},
      {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]},
    "post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel", "add_prefix_space": true},
      {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<b>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
       "pair": [], "special_tokens": {"<b>": {"id": "<b>", "ids": [128000], "tokens": ["<b>"]}}}]},
    "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true})json");
  EXPECT_EQ(bpe.pre_tokenizers, (std::vector<PreTokenizerStep>{{PreTokenizerStep::Kind::llama3}}));
  EXPECT_EQ(bpe.begin, (std::vector<int32_t>{128000}));
  EXPECT_TRUE(bpe.end.empty() && bpe.bytes && bpe.decoding.byte_level);
}

TEST(TokenizerParts, ReadsLlama2) {
  const Bpe bpe = read_parts(R"("normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}, "pre_tokenizer": null,
    "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
      {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})");
  EXPECT_EQ(bpe.normalizers,
            (std::vector<NormalizerStep>{{NormalizerStep::Kind::prepend, "", "▁"}, {NormalizerStep::Kind::replace, " ", "▁"}}));
  EXPECT_TRUE(bpe.pre_tokenizers.empty() && !bpe.bytes);
  EXPECT_EQ(bpe.decoding, (Decoding{.byte_level = false,
                                    .replaces = {{NormalizerStep::Kind::replace, "▁", " "}},
                                    .byte_pieces = true,
                                    .strip = " ",
                                    .strip_first = 1}));
}

TEST(TokenizerParts, ReadsMetaspaceOldAndNew) {
  const auto marks = [](const std::string& more) {
    const std::string space = R"({"type": "Metaspace", "replacement": "▁")" + more + "}";
    return read_parts(part("pre_tokenizer", space) + ", " + part("decoder", space));
  };
  const Bpe old = marks(R"(, "add_prefix_space": true)");
  EXPECT_EQ(old.pre_tokenizers,
            (std::vector<PreTokenizerStep>{
                {PreTokenizerStep::Kind::metaspace, "▁", PreTokenizerStep::Behavior::isolated, false, PreTokenizerStep::Prefix::always},
                {PreTokenizerStep::Kind::literal, "▁", PreTokenizerStep::Behavior::merged_with_next}}));
  EXPECT_EQ(old.decoding.drop_in_first, "▁");
  const Bpe now = marks(R"(, "prepend_scheme": "first", "split": false)");
  EXPECT_EQ(now.pre_tokenizers,
            (std::vector<PreTokenizerStep>{
                {PreTokenizerStep::Kind::metaspace, "▁", PreTokenizerStep::Behavior::isolated, false, PreTokenizerStep::Prefix::first}}));
  EXPECT_EQ(marks(R"(, "prepend_scheme": "never", "split": false)").decoding.drop_in_first, "");
}

TEST(TokenizerParts, ReadsOtherCuts) {
  EXPECT_EQ(with("pre_tokenizer", R"({"type": "ByteLevel", "use_regex": false})").pre_tokenizers,
            (std::vector<PreTokenizerStep>{{PreTokenizerStep::Kind::prefix_space}}));
  const Bpe bpe = with("pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true},
      {"type": "Split", "pattern": {"Regex": "x+"}, "behavior": "MergedWithNext", "invert": true}, )" +
                                            std::string(kByteLevel) + "]}");
  EXPECT_EQ(bpe.pre_tokenizers,
            (std::vector<PreTokenizerStep>{{PreTokenizerStep::Kind::each_digit},
                                           {PreTokenizerStep::Kind::expression, "x+", PreTokenizerStep::Behavior::merged_with_next, true},
                                           {PreTokenizerStep::Kind::gpt2}}));
}

TEST(TokenizerParts, RefusesWhatItDoesNotKnowByName) {
  EXPECT_EQ(says("normalizer", R"({"type": "Lowercase"})"),
            "x.json: normalizer \"Lowercase\": not supported; NFC, NFD, NFKC, NFKD, Prepend, Replace and Sequence are");
  EXPECT_EQ(says("normalizer", R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Precompiled"}]})"),
            "x.json: normalizer \"Precompiled\": not supported; NFC, NFD, NFKC, NFKD, Prepend, Replace and Sequence are");
  EXPECT_EQ(says("normalizer", R"({"type": "Replace", "pattern": {"Regex": " +"}, "content": " "})"),
            "x.json: normalizer Replace by a regular expression: not supported; a String is");
  EXPECT_EQ(says("normalizer", R"({"type": "Replace", "pattern": {"String": ""}, "content": " "})"),
            "x.json: normalizer Replace of nothing");
  EXPECT_EQ(says("pre_tokenizer", R"({"type": "BertPreTokenizer"})"),
            "x.json: pre_tokenizer \"BertPreTokenizer\": not supported; ByteLevel, Split, Digits, Metaspace and Sequence are");
  EXPECT_EQ(says("post_processor", R"({"type": "BertProcessing"})"),
            "x.json: post_processor \"BertProcessing\": not supported; ByteLevel, TemplateProcessing and Sequence are");
  EXPECT_EQ(says("decoder", R"({"type": "WordPiece"})"),
            "x.json: decoder \"WordPiece\": not supported; ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace and Sequence are");
}

TEST(TokenizerParts, RefusesPartsThatAreBroken) {
  EXPECT_EQ(says("normalizer", "3"), "x.json: normalizer is no object: not a tokenizer.json");
  EXPECT_EQ(says("normalizer", "{}"), "x.json: a part of normalizer has no text \"type\"");
  EXPECT_EQ(says("normalizer", R"({"type": "Sequence"})"), "x.json: a part of normalizer has no list \"normalizers\"");
  EXPECT_EQ(says("normalizer", R"({"type": "Sequence", "normalizers": [7]})"), "x.json: a part of normalizer has no text \"type\"");
  EXPECT_EQ(says("pre_tokenizer", R"({"type": "Split", "pattern": 3, "behavior": "Isolated"})"),
            "x.json: a part of pre_tokenizer has no \"pattern\" that is a String or a Regex");
  EXPECT_EQ(says("pre_tokenizer", R"({"type": "Split", "pattern": {"String": "x"}, "behavior": "Kept"})"),
            "x.json: pre_tokenizer Split behavior \"Kept\": not supported");
  EXPECT_EQ(says("pre_tokenizer", R"({"type": "ByteLevel", "use_regex": 1})"),
            "x.json: pre_tokenizer.use_regex is 1: must be true or false");
  EXPECT_EQ(says("pre_tokenizer", R"({"type": "Metaspace", "replacement": ""})"),
            "x.json: pre_tokenizer Metaspace with an empty replacement");
  EXPECT_EQ(says("pre_tokenizer", R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "often"})"),
            "x.json: pre_tokenizer Metaspace prepend_scheme \"often\": must be always, first or never");
  EXPECT_EQ(says("pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "Digits"}]})"),
            "x.json: pre_tokenizer \"Digits\" after ByteLevel: not supported");
  EXPECT_EQ(says("pre_tokenizer", "null"),
            "x.json: the decoder is ByteLevel and the pre_tokenizer is not: ids could not become text again");
  EXPECT_EQ(says("decoder", "null"), "x.json: has no decoder: ids could not become text again");
  EXPECT_EQ(says("decoder", R"({"type": "Strip", "content": " ", "start": 1, "stop": 0})"),
            "x.json: decoder Strip before Fuse: not supported");
  EXPECT_EQ(
      says("decoder", R"({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": -1, "stop": 0}]})"),
      "x.json: decoder Strip has no count \"start\"");
}

TEST(TokenizerParts, RefusesTemplatesThatAreBroken) {
  const auto single = [](const std::string& items, const std::string& tokens = "{}") {
    return says("post_processor", R"({"type": "TemplateProcessing", "single": [)" + items + R"(], "special_tokens": )" + tokens + "}");
  };
  const std::string token = R"({"SpecialToken": {"id": "<b>", "type_id": 0}})", text = R"({"Sequence": {"id": "A", "type_id": 0}})";
  EXPECT_EQ(single(token), "x.json: the post_processor's template needs \"<b>\", which is not among its special_tokens");
  EXPECT_EQ(single(token, R"({"<b>": {"ids": [-1]}})"), "x.json: post_processor token \"<b>\" has id -1");
  EXPECT_EQ(single(text + "," + text), "x.json: the post_processor's template has the text twice");
  EXPECT_EQ(single(""), "x.json: the post_processor's template does not have the text");
  EXPECT_EQ(single("7"), "x.json: post_processor template item 7: not supported");
}

}  // namespace
}  // namespace cairn::data
