#include "data/tokenizer/tokenizer_json_parts.h"

#include <utility>

#include "base/check.h"
#include "data/tokenizer/piece_text.h"
#include "data/tokenizer/word_split.h"

namespace cairn::data {
namespace {

using base::Json;

constexpr size_t kTemplateIds = 1024;
constexpr size_t kMarkBytes = 16;
constexpr size_t kStepsMax = 256;  // of one part

// Reads one file's parts. Every error names the file and the part.
class PartsReader {
 public:
  PartsReader(const Json& root, const std::string& name, Bpe& bpe) : root_(root), name_(name), bpe_(bpe) {}

  void read() {
    bpe_.normalizers.clear();
    bpe_.pre_tokenizers.clear();
    bpe_.bytes = false;
    bpe_.decoding.byte_level = false;
    if (const Json* part = part_at("normalizer")) read_normalizer(*part);
    if (const Json* part = part_at("pre_tokenizer")) read_pre_tokenizer(*part);
    if (const Json* part = part_at("post_processor")) read_post_processor(*part);
    const Json* decoder = part_at("decoder");
    if (!decoder) refuse("has no decoder: ids could not become text again");
    read_decoder(*decoder);
    if (bpe_.bytes != bpe_.decoding.byte_level)
      refuse("{} is ByteLevel and {} is not: ids could not become text again", bpe_.bytes ? "the pre_tokenizer" : "the decoder",
             bpe_.bytes ? "the decoder" : "the pre_tokenizer");
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    base::fail_input("{}: {}", name_, fmt::format(format, std::forward<Args>(args)...));
  }

  // Null where the file has none.
  const Json* part_at(const char* key) const {
    const auto at = root_.find(key);
    if (at == root_.end() || at->is_null()) return nullptr;
    if (!at->is_object()) refuse("{} is no object: not a tokenizer.json", key);
    return &*at;
  }

  std::string type_of(const Json& part, const char* what) const { return text_at(part, "type", what); }

  std::string text_at(const Json& part, const char* key, const char* what) const {
    const auto at = part.is_object() ? part.find(key) : part.end();
    if (!part.is_object() || at == part.end() || !at->is_string()) refuse("a part of {} has no text \"{}\"", what, key);
    return at->get<std::string>();
  }

  bool flag_at(const Json& part, const char* key, bool missing, const char* what) const {
    const auto at = part.find(key);
    if (at == part.end() || at->is_null()) return missing;
    if (!at->is_boolean()) refuse("{}.{} is {}: must be true or false", what, key, base::shown(*at));
    return at->get<bool>();
  }

  const Json& list_at(const Json& part, const char* key, const char* what) const {
    const auto at = part.find(key);
    if (at == part.end() || !at->is_array()) refuse("a part of {} has no list \"{}\"", what, key);
    return *at;
  }

  // A pattern is {"String": …} or {"Regex": …}.
  std::pair<std::string, bool> pattern_of(const Json& part, const char* what) const {
    const auto at = part.find("pattern");
    if (at != part.end() && at->is_object() && at->size() == 1) {
      if (at->contains("String")) return {text_at(*at, "String", what), false};
      if (at->contains("Regex")) return {text_at(*at, "Regex", what), true};
    }
    refuse("a part of {} has no \"pattern\" that is a String or a Regex", what);
  }

  void read_normalizer(const Json& part) {
    const std::string type = type_of(part, "normalizer");
    if (bpe_.normalizers.size() >= kStepsMax) refuse("the normalizer has more than {} steps", kStepsMax);
    if (type == "Sequence") {
      for (const Json& each : list_at(part, "normalizers", "normalizer")) read_normalizer(each);
    } else if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
      using Kind = NormalizerStep::Kind;
      bpe_.normalizers.push_back({type == "NFC" ? Kind::nfc : type == "NFD" ? Kind::nfd : type == "NFKC" ? Kind::nfkc : Kind::nfkd});
    } else if (type == "Prepend") {
      bpe_.normalizers.push_back({NormalizerStep::Kind::prepend, "", text_at(part, "prepend", "normalizer")});
    } else if (type == "Replace") {
      bpe_.normalizers.push_back(replace_of(part, "normalizer"));
    } else {
      refuse("normalizer \"{}\": not supported; NFC, NFD, NFKC, NFKD, Prepend, Replace and Sequence are", type);
    }
  }

  NormalizerStep replace_of(const Json& part, const char* what) const {
    const auto [from, is_expression] = pattern_of(part, what);
    if (is_expression) refuse("{} Replace by a regular expression: not supported; a String is", what);
    if (from.empty()) refuse("{} Replace of nothing", what);
    return {NormalizerStep::Kind::replace, from, text_at(part, "content", what)};
  }

  void read_pre_tokenizer(const Json& part) {
    const std::string type = type_of(part, "pre_tokenizer");
    if (bpe_.pre_tokenizers.size() >= kStepsMax) refuse("the pre_tokenizer has more than {} steps", kStepsMax);
    if (bpe_.bytes) refuse("pre_tokenizer \"{}\" after ByteLevel: not supported", type);
    if (type == "Sequence") {
      for (const Json& each : list_at(part, "pretokenizers", "pre_tokenizer")) read_pre_tokenizer(each);
    } else if (type == "ByteLevel") {
      bpe_.bytes = true;
      if (flag_at(part, "add_prefix_space", true, "pre_tokenizer")) bpe_.pre_tokenizers.push_back({PreTokenizerStep::Kind::prefix_space});
      if (flag_at(part, "use_regex", true, "pre_tokenizer")) bpe_.pre_tokenizers.push_back({PreTokenizerStep::Kind::gpt2});
    } else if (type == "Split") {
      read_split(part);
    } else if (type == "Digits") {
      bpe_.pre_tokenizers.push_back({flag_at(part, "individual_digits", false, "pre_tokenizer") ? PreTokenizerStep::Kind::each_digit
                                                                                                : PreTokenizerStep::Kind::digits});
    } else if (type == "Metaspace") {
      read_metaspace(part);
    } else {
      refuse("pre_tokenizer \"{}\": not supported; ByteLevel, Split, Digits, Metaspace and Sequence are", type);
    }
  }

  void read_split(const Json& part) {
    const auto [pattern, is_expression] = pattern_of(part, "pre_tokenizer");
    const std::string behavior = text_at(part, "behavior", "pre_tokenizer");
    const bool invert = flag_at(part, "invert", false, "pre_tokenizer");
    static constexpr std::pair<const char*, PreTokenizerStep::Behavior> kBehaviors[] = {
        {"Isolated", PreTokenizerStep::Behavior::isolated},
        {"Removed", PreTokenizerStep::Behavior::removed},
        {"MergedWithPrevious", PreTokenizerStep::Behavior::merged_with_previous},
        {"MergedWithNext", PreTokenizerStep::Behavior::merged_with_next},
        {"Contiguous", PreTokenizerStep::Behavior::contiguous}};
    PreTokenizerStep step{is_expression ? PreTokenizerStep::Kind::expression : PreTokenizerStep::Kind::literal, pattern,
                          PreTokenizerStep::Behavior::isolated, invert};
    bool known = false;
    for (const auto& [name, value] : kBehaviors) {
      if (behavior != name) continue;
      step.behavior = value;
      known = true;
    }
    if (!known) refuse("pre_tokenizer Split behavior \"{}\": not supported", behavior);
    // The known patterns match every character of a text, so nothing lies between matches and the scanners of word_split.h do the same.
    const bool every_match =
        (step.behavior == PreTokenizerStep::Behavior::isolated) || (step.behavior == PreTokenizerStep::Behavior::removed && invert);
    if (const auto pattern_known = known_pattern(pattern); is_expression && every_match && pattern_known) {
      step = {*pattern_known == WordPattern::gpt2     ? PreTokenizerStep::Kind::gpt2
              : *pattern_known == WordPattern::llama3 ? PreTokenizerStep::Kind::llama3
                                                      : PreTokenizerStep::Kind::qwen2};
    }
    bpe_.pre_tokenizers.push_back(step);
  }

  std::string mark_of(const Json& part, const char* what) const {
    const std::string mark = text_at(part, "replacement", what);
    if (mark.empty()) refuse("{} Metaspace with an empty replacement", what);
    if (mark.size() > kMarkBytes) refuse("{} Metaspace with a replacement of {} bytes: it is one character", what, mark.size());
    return mark;
  }

  PreTokenizerStep::Prefix prefix_of(const Json& part, const char* what) const {
    const auto scheme = part.find("prepend_scheme");
    if (scheme == part.end())
      return flag_at(part, "add_prefix_space", true, what) ? PreTokenizerStep::Prefix::always : PreTokenizerStep::Prefix::never;
    if (*scheme == "always") return PreTokenizerStep::Prefix::always;
    if (*scheme == "first") return PreTokenizerStep::Prefix::first;
    if (*scheme == "never") return PreTokenizerStep::Prefix::never;
    refuse("{} Metaspace prepend_scheme {}: must be always, first or never", what, base::shown(*scheme));
  }

  void read_metaspace(const Json& part) {
    const std::string mark = mark_of(part, "pre_tokenizer");
    bpe_.pre_tokenizers.push_back(
        {PreTokenizerStep::Kind::metaspace, mark, PreTokenizerStep::Behavior::isolated, false, prefix_of(part, "pre_tokenizer")});
    if (flag_at(part, "split", true, "pre_tokenizer"))
      bpe_.pre_tokenizers.push_back({PreTokenizerStep::Kind::literal, mark, PreTokenizerStep::Behavior::merged_with_next});
  }

  void read_post_processor(const Json& part) {
    const std::string type = type_of(part, "post_processor");
    if (type == "Sequence") {
      for (const Json& each : list_at(part, "processors", "post_processor")) read_post_processor(each);
    } else if (type == "TemplateProcessing") {
      read_template(part);
    } else if (type != "ByteLevel") {
      refuse("post_processor \"{}\": not supported; ByteLevel, TemplateProcessing and Sequence are", type);
    }
  }

  void read_template(const Json& part) {
    if (!bpe_.begin.empty() || !bpe_.end.empty()) refuse("two post_processor templates: not supported");
    bool seen = false;
    for (const Json& item : list_at(part, "single", "post_processor")) {
      if (item.is_object() && item.contains("Sequence")) {
        if (seen) refuse("the post_processor's template has the text twice");
        seen = true;
      } else if (item.is_object() && item.contains("SpecialToken")) {
        std::vector<int32_t>& into = seen ? bpe_.end : bpe_.begin;
        for (const int32_t id : template_ids(part, text_at(item["SpecialToken"], "id", "post_processor"))) into.push_back(id);
        if (into.size() > kTemplateIds) refuse("the post_processor's template adds more than {} tokens to every text", kTemplateIds);
      } else {
        refuse("post_processor template item {}: not supported", base::shown(item));
      }
    }
    if (!seen) refuse("the post_processor's template does not have the text");
  }

  std::vector<int32_t> template_ids(const Json& part, const std::string& token) const {
    const auto tokens = part.find("special_tokens");
    if (tokens == part.end() || !tokens->is_object() || !tokens->contains(token) || !(*tokens)[token].is_object())
      refuse("the post_processor's template needs \"{}\", which is not among its special_tokens", token);
    std::vector<int32_t> ids;
    for (const Json& id : list_at((*tokens)[token], "ids", "post_processor")) {
      if (!id.is_number_integer() || id < 0 || id > INT32_MAX) refuse("post_processor token \"{}\" has id {}", token, base::shown(id));
      ids.push_back(id.get<int32_t>());
    }
    return ids;
  }

  void read_decoder(const Json& part) {
    const std::string type = type_of(part, "decoder");
    if (bpe_.decoding.replaces.size() >= kStepsMax) refuse("the decoder has more than {} steps", kStepsMax);
    Decoding& decoding = bpe_.decoding;
    if (type == "Sequence") {
      for (const Json& each : list_at(part, "decoders", "decoder")) read_decoder(each);
    } else if (type == "ByteLevel") {
      decoding.byte_level = true;
    } else if (type == "Replace") {
      decoding.replaces.push_back(replace_of(part, "decoder"));
    } else if (type == "ByteFallback") {
      decoding.byte_pieces = true;
    } else if (type == "Fuse") {
      fused_ = true;
    } else if (type == "Metaspace") {
      const std::string mark = mark_of(part, "decoder");
      decoding.replaces.push_back({NormalizerStep::Kind::replace, mark, " "});
      if (prefix_of(part, "decoder") != PreTokenizerStep::Prefix::never) decoding.drop_in_first = mark;
    } else if (type == "Strip") {
      if (!fused_) refuse("decoder Strip before Fuse: not supported");
      read_strip(part);
    } else {
      refuse("decoder \"{}\": not supported; ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace and Sequence are", type);
    }
  }

  void read_strip(const Json& part) {
    bpe_.decoding.strip = text_at(part, "content", "decoder");
    for (const auto& [key, into] : {std::pair("start", &bpe_.decoding.strip_first), std::pair("stop", &bpe_.decoding.strip_last)}) {
      const auto at = part.find(key);
      if (at == part.end() || !at->is_number_integer() || *at < 0 || *at > INT32_MAX) refuse("decoder Strip has no count \"{}\"", key);
      *into = at->get<int64_t>();
    }
  }

  const Json& root_;
  const std::string& name_;
  Bpe& bpe_;
  bool fused_ = false;
};

}  // namespace

void read_tokenizer_parts(const Json& root, const std::string& name, Bpe& into) { PartsReader(root, name, into).read(); }

}  // namespace cairn::data
