#include "data/tokenizer_json.h"

#include <array>
#include <optional>
#include <unordered_map>

#include "base/check.h"
#include "base/json.h"
#include "data/byte_letters.h"
#include "data/tokenizer.h"

namespace cairn::data {
namespace {

using base::Json;

constexpr size_t kFileBytes = 64 << 20;
constexpr size_t kPieces = 1 << 20;
constexpr int kDepth = 16;  // of nested lists and objects; the format needs 4

bool is_null_or(const Json& object, const char* key, const Json& value) {
  const auto at = object.find(key);
  return at == object.end() || at->is_null() || *at == value;
}

std::string type_of(const Json& object) {
  const auto at = object.find("type");
  return at != object.end() && at->is_string() ? at->get<std::string>() : "";
}

// Reads one file; every complaint names it.
class Reader {
 public:
  explicit Reader(const std::string& name) : name_(name) {}

  Bpe read(std::string_view text) {
    const Json root = parse(text);
    const Json& model = object_at(root, "model");
    check_kind(root, model);
    read_added(root);
    read_vocab(object_at(model, "vocab"));
    read_merges(model);
    check_bytes();
    return std::move(bpe_);
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    base::fail_input("{}: {}", name_, fmt::format(format, std::forward<Args>(args)...));
  }

  Json parse(std::string_view text) const {
    if (text.size() > kFileBytes) refuse("{} bytes, and a tokenizer.json has at most {}", text.size(), kFileBytes);
    base::GuardedJson read = base::parse_json_guarded(text, kDepth);
    if (read.too_deep) refuse("nested more than {} deep: not a tokenizer.json", kDepth);
    if (read.invalid_at) refuse("not valid JSON at byte {}", *read.invalid_at);
    if (!read.value.is_object()) refuse("holds no JSON object: not a tokenizer.json");
    return std::move(read.value);
  }

  const Json& object_at(const Json& parent, const char* key) const {
    const auto at = parent.find(key);
    if (at == parent.end() || !at->is_object()) refuse("has no \"{}\" object: not a tokenizer.json of a BPE", key);
    return *at;
  }

  // Refuses whatever would give other ids than the plain byte-level form.
  void check_kind(const Json& root, const Json& model) {
    if (const std::string type = type_of(model); !type.empty() && type != "BPE")
      refuse("model type \"{}\": only byte-level BPE can be read", type);
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (!is_null_or(model, key, "")) refuse("model.{} is set: only byte-level BPE can be read", key);
    for (const char* key : {"byte_fallback", "ignore_merges"})
      if (!is_null_or(model, key, false)) refuse("model.{} is set: only plain byte-level BPE can be read", key);
    if (!is_null_or(model, "dropout", 0.0)) refuse("model.dropout is set: ids would be random");
    if (!is_null_or(root, "normalizer", nullptr)) refuse("has a normalizer: only text as it stands can be read");
    for (const char* part : {"pre_tokenizer", "decoder"}) {
      const Json& object = object_at(root, part);
      if (type_of(object) != "ByteLevel") refuse("{} type \"{}\": only ByteLevel can be read", part, type_of(object));
    }
    const Json& words = root["pre_tokenizer"];
    if (!is_null_or(words, "add_prefix_space", false)) refuse("pre_tokenizer.add_prefix_space is set: not supported");
    bpe_.words = is_null_or(words, "use_regex", true);
    const auto post = root.find("post_processor");
    if (post != root.end() && !post->is_null() && (!post->is_object() || type_of(*post) != "ByteLevel"))
      refuse("post_processor type \"{}\": only ByteLevel can be read", post->is_object() ? type_of(*post) : "?");
  }

  void read_added(const Json& root) {
    const auto added = root.find("added_tokens");
    if (added == root.end() || !added->is_array()) refuse("has no \"added_tokens\" list");
    if (added->size() > kPieces) refuse("{} added tokens, and at most {} are read", added->size(), kPieces);
    for (const Json& token : *added) {
      if (!token.is_object() || !token.contains("content") || !token["content"].is_string()) refuse("an added token has no \"content\"");
      const std::string content = token["content"].get<std::string>();
      for (const char* key : {"lstrip", "rstrip", "single_word"})
        if (!is_null_or(token, key, false)) refuse("added token \"{}\" has {} set: not supported", content, key);
      if (content.empty()) refuse("an added token is empty");
      put(token.value("id", Json()), content, content);
      bpe_.specials.push_back({ids_.at(content), content});
    }
  }

  void read_vocab(const Json& vocab) {
    if (vocab.size() > kPieces) refuse("{} pieces, and at most {} are read", vocab.size(), kPieces);
    for (const auto& [written, id] : vocab.items()) {
      const auto known = ids_.find(written);
      if (known != ids_.end() && id == known->second) continue;  // an added token, listed here too
      const std::optional<std::string> piece = from_letters(written);
      if (!piece || piece->empty()) refuse("piece \"{}\" is not written in byte letters", written);
      put(id, written, *piece);
    }
    bpe_.pieces.resize(by_id_.size());
    for (size_t id = 0; id < by_id_.size(); ++id) {
      if (!by_id_[id]) refuse("id {} is missing: ids must run from 0 without a hole", id);
      bpe_.pieces[id] = std::move(*by_id_[id]);
    }
  }

  void put(const Json& id, const std::string& written, std::string piece) {
    if (!id.is_number_integer() || id < 0 || id >= kPieces)
      refuse("\"{}\" has id {}: must be 0 to {}", written, base::compact(id), kPieces - 1);
    const auto place = id.get<size_t>();
    if (place >= by_id_.size()) by_id_.resize(place + 1);
    if (by_id_[place]) refuse("id {} is given twice, the second time to \"{}\"", place, written);
    if (!ids_.emplace(written, static_cast<int32_t>(place)).second) refuse("\"{}\" is listed twice", written);
    by_id_[place] = std::move(piece);
  }

  void read_merges(const Json& model) {
    const auto merges = model.find("merges");
    if (merges == model.end() || !merges->is_array()) refuse("has no \"merges\" list");
    if (merges->size() > kPieces) refuse("{} merges, and at most {} are read", merges->size(), kPieces);
    for (const Json& merge : *merges) {
      const auto [left, right] = sides(merge);
      bpe_.merges.push_back({id_of(left, merge), id_of(right, merge), id_of(left + right, merge)});
    }
  }

  // Either "a b", as always, or ["a", "b"], as newer files have it.
  std::pair<std::string, std::string> sides(const Json& merge) const {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) return {merge[0], merge[1]};
    if (merge.is_string()) {
      const std::string text = merge;
      const size_t space = text.find(' ');
      if (space != std::string::npos && space > 0 && space + 1 < text.size() && text.find(' ', space + 1) == std::string::npos)
        return {text.substr(0, space), text.substr(space + 1)};
    }
    refuse("merge {} is not two pieces", base::compact(merge));
  }

  int32_t id_of(const std::string& written, const Json& merge) const {
    const auto at = ids_.find(written);
    if (at == ids_.end()) refuse("merge {} needs the piece \"{}\", which is not in the vocabulary", base::compact(merge), written);
    return at->second;
  }

  void check_bytes() const {
    std::array<bool, 256> seen{};
    for (const std::string& piece : bpe_.pieces)
      if (piece.size() == 1) seen[static_cast<uint8_t>(piece[0])] = true;
    for (size_t byte = 0; byte < seen.size(); ++byte)
      if (!seen[byte]) refuse("no piece for byte 0x{:02x}: not a byte-level BPE", byte);
    if (!ids_.contains(std::string(kEndOfText))) refuse("has no added token \"{}\"", kEndOfText);
  }

  const std::string& name_;
  Bpe bpe_;
  std::unordered_map<std::string, int32_t> ids_;   // by the piece as written
  std::vector<std::optional<std::string>> by_id_;  // raw bytes
};

}  // namespace

Bpe read_tokenizer_json(std::string_view text, const std::string& name) { return Reader(name).read(text); }

std::string write_tokenizer_json(const Bpe& bpe) {
  const auto quoted = [](const std::string& text) { return base::compact(Json(text)); };
  const auto is_special = [&](size_t id) {
    for (const SpecialToken& token : bpe.specials)
      if (token.id == static_cast<int32_t>(id)) return true;
    return false;
  };
  std::string out = "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [";
  const char* comma = "";
  for (const SpecialToken& token : bpe.specials) {
    out += fmt::format(
        "{}\n    {{\"id\": {}, \"content\": {}, \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
        "\"normalized\": false, \"special\": true}}",
        comma, token.id, quoted(token.text));
    comma = ",";
  }
  const std::string byte_level =
      fmt::format("{{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": {}}}", bpe.words);
  out += fmt::format("\n  ],\n  \"normalizer\": null,\n  \"pre_tokenizer\": {0},\n  \"post_processor\": null,\n  \"decoder\": {0},\n",
                     byte_level);
  out +=
      "  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n"
      "    \"continuing_subword_prefix\": null,\n"
      "    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n    \"byte_fallback\": false,\n    \"ignore_merges\": false,\n"
      "    \"vocab\": {";
  std::vector<std::string> written(bpe.pieces.size());
  comma = "";
  for (size_t id = 0; id < bpe.pieces.size(); ++id) {
    written[id] = is_special(id) ? bpe.pieces[id] : to_letters(bpe.pieces[id]);
    out += fmt::format("{}\n      {}: {}", comma, quoted(written[id]), id);
    comma = ",";
  }
  out += "\n    },\n    \"merges\": [";
  comma = "";
  for (const Merge& merge : bpe.merges) {
    out += fmt::format("{}\n      {}", comma, quoted(written[merge.left] + " " + written[merge.right]));
    comma = ",";
  }
  out += "\n    ]\n  }\n}\n";
  return out;
}

}  // namespace cairn::data
