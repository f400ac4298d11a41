#include "data/tokenizer/tokenizer_json.h"

#include <array>
#include <optional>
#include <unordered_map>

#include "base/check.h"
#include "base/json.h"
#include "data/tokenizer/byte_to_unicode.h"
#include "data/tokenizer/piece_text.h"
#include "data/tokenizer/tokenizer_json_parts.h"

namespace cairn::data {
namespace {

using base::Json;

constexpr size_t kPieces = 1 << 20;
constexpr int kDepth = 16;  // of nested lists and objects; the format needs 4
constexpr base::JsonLimits kLimits{.depth = kDepth, .tree_bytes = 176 << 20, .string_bytes = 1 << 20};  // Gemma 3's takes 140 MB

bool is_null_or(const Json& object, const char* key, const Json& value) {
  const auto at = object.find(key);
  return at == object.end() || at->is_null() || *at == value;
}

std::string type_of(const Json& object) {
  const auto at = object.find("type");
  return at != object.end() && at->is_string() ? at->get<std::string>() : "";
}

// Reads one file. Every error names it.
class Reader {
 public:
  explicit Reader(const std::string& name) : name_(name) {}

  Bpe read(const Json& root) {
    if (!root.is_object()) refuse("holds no JSON object: not a tokenizer.json");
    const Json& model = object_at(root, "model");
    read_model_options(model);
    read_tokenizer_parts(root, name_, bpe_);
    read_added(root);
    read_vocab(object_at(model, "vocab"));
    read_merges(model);
    check_pieces(model);
    return std::move(bpe_);
  }

  Json parse(std::string_view text) const {
    if (text.size() > kTokenizerFileBytes) refuse("{} bytes, and a tokenizer.json has at most {}", text.size(), kTokenizerFileBytes);
    base::GuardedJson read = base::parse_json_guarded(text, kLimits);
    if (read.too_deep) refuse("nested more than {} deep: not a tokenizer.json", kDepth);
    if (read.invalid_at) refuse("not valid JSON at byte {}", *read.invalid_at);
    if (!read.trouble.empty()) refuse("{}", read.trouble);
    return std::move(read.value);
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    base::fail_input("{}: {}", name_, fmt::format(format, std::forward<Args>(args)...));
  }

  const Json& object_at(const Json& parent, const char* key) const {
    const auto at = parent.find(key);
    if (at == parent.end() || !at->is_object()) refuse("has no \"{}\" object: not a tokenizer.json of a BPE", key);
    return *at;
  }

  // Refuses whatever would give other ids than the merges as they stand.
  void read_model_options(const Json& model) {
    if (const std::string type = type_of(model); !type.empty() && type != "BPE")
      refuse("model type \"{}\": only BPE can be read{}", type,
             type == "Unigram" ? " (a SentencePiece tokenizer.model of this kind can)" : "");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (!is_null_or(model, key, "")) refuse("model.{} is set: not supported", key);
    if (!is_null_or(model, "dropout", 0.0)) refuse("model.dropout is set: ids would be random");
    for (const auto& [key, into] : {std::pair("byte_fallback", &bpe_.byte_fallback), std::pair("fuse_unk", &bpe_.fuse_unknown),
                                    std::pair("ignore_merges", &bpe_.whole_words)}) {
      const auto at = model.find(key);
      if (at == model.end() || at->is_null()) continue;
      if (!at->is_boolean()) refuse("model.{} is {}: must be true or false", key, base::shown(*at));
      *into = at->get<bool>();
    }
  }

  void read_added(const Json& root) {
    const auto added = root.find("added_tokens");
    if (added == root.end() || added->is_null()) return;
    if (!added->is_array()) refuse("\"added_tokens\" is no list");
    if (added->size() > kPieces) refuse("{} added tokens, and at most {} are read", added->size(), kPieces);
    for (const Json& token : *added) {
      if (!token.is_object() || !token.contains("content") || !token["content"].is_string()) refuse("an added token has no \"content\"");
      AddedToken read{.id = 0, .text = token["content"].get<std::string>(), .in_vocab = false};
      if (read.text.empty()) refuse("an added token is empty");
      for (const auto& [key, into] :
           {std::pair("special", &read.special), std::pair("normalized", &read.normalized), std::pair("lstrip", &read.left_strip),
            std::pair("rstrip", &read.right_strip), std::pair("single_word", &read.single_word)})
        *into = flag_of(token, key, read.text);
      put(token.value("id", Json()), read.text, read.text);
      read.id = ids_.at(read.text);
      bpe_.added.push_back(std::move(read));
    }
  }

  bool flag_of(const Json& token, const char* key, const std::string& text) const {
    const auto at = token.find(key);
    if (at == token.end() || at->is_null()) return false;
    if (!at->is_boolean()) refuse("added token \"{}\" has {} {}: must be true or false", text, key, base::shown(*at));
    return at->get<bool>();
  }

  void read_vocab(const Json& vocab) {
    if (vocab.size() > kPieces) refuse("{} pieces, and at most {} are read", vocab.size(), kPieces);
    std::unordered_map<std::string_view, AddedToken*> added;
    for (AddedToken& token : bpe_.added) added.emplace(token.text, &token);
    for (const auto& [written, id] : vocab.items()) {
      if (const auto known = added.find(written); known != added.end()) {
        if (id != known->second->id)
          refuse("\"{}\" has id {} in the vocabulary and {} among the added tokens", written, base::shown(id), known->second->id);
        known->second->in_vocab = true;
        continue;
      }
      if (written.empty()) refuse("a piece is empty");
      // A piece with characters outside the byte-to-unicode table cannot be made of bytes; it stands for itself.
      put(id, written, bpe_.bytes ? unicode_to_bytes(written).value_or(written) : written);
    }
    bpe_.pieces.resize(by_id_.size());
    for (size_t id = 0; id < by_id_.size(); ++id) {
      if (!by_id_[id]) refuse("id {} is missing: ids must run from 0 without a hole", id);
      bpe_.pieces[id] = std::move(*by_id_[id]);
    }
  }

  void put(const Json& id, const std::string& written, std::string piece) {
    if (!id.is_number_integer() || id < 0 || id >= kPieces)
      refuse("\"{}\" has id {}: must be 0 to {}", written, base::shown(id), kPieces - 1);
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
    refuse("merge {} is not two pieces", base::shown(merge));
  }

  int32_t id_of(const std::string& written, const Json& merge) const {
    const auto at = ids_.find(written);
    if (at == ids_.end()) refuse("merge {} needs the piece \"{}\", which is not in the vocabulary", base::shown(merge), written);
    return at->second;
  }

  void check_pieces(const Json& model) {
    if (bpe_.bytes) {
      std::array<bool, 256> seen{};
      for (const std::string& piece : bpe_.pieces)
        if (piece.size() == 1) seen[static_cast<uint8_t>(piece[0])] = true;
      for (size_t byte = 0; byte < seen.size(); ++byte)
        if (!seen[byte]) refuse("no piece for byte 0x{:02x}: not a byte-level BPE", byte);
    } else if (bpe_.byte_fallback) {
      for (int byte = 0; byte < 256; ++byte)
        if (!ids_.contains(byte_piece(byte))) refuse("model.byte_fallback is set, and there is no piece {}", byte_piece(byte));
    }
    for (const std::vector<int32_t>* ids : {&bpe_.begin, &bpe_.end})
      for (const int32_t id : *ids)
        if (id >= static_cast<int64_t>(bpe_.pieces.size())) refuse("the post_processor adds id {}, which no token has", id);
    const auto unknown = model.find("unk_token");
    if (bpe_.bytes || unknown == model.end() || unknown->is_null()) return;
    const auto found = unknown->is_string() ? ids_.find(unknown->get<std::string>()) : ids_.end();
    if (found == ids_.end()) refuse("model.unk_token {} is not in the vocabulary", base::shown(*unknown));
    bpe_.unknown = found->second;
  }

  const std::string& name_;
  Bpe bpe_;
  std::unordered_map<std::string, int32_t> ids_;   // by the piece as the file spells it
  std::vector<std::optional<std::string>> by_id_;  // raw bytes
};

}  // namespace

Bpe read_tokenizer_json(std::string_view json, const std::string& name) {
  Reader reader(name);
  return reader.read(reader.parse(json));
}

Bpe bpe_of_json(const Json& root, const std::string& name) { return Reader(name).read(root); }

}  // namespace cairn::data
