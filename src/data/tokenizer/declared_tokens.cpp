#include "data/tokenizer/declared_tokens.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/files.h"
#include "base/json.h"

namespace cairn::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kDeclaringBytes = 16 << 20;
constexpr int kDeclaringDepth = 64;

// A JSON file of the folder; null where it is missing or no object: readers of the model report that.
base::Json object_in(const fs::path& folder, const char* name) {
  if (!fs::is_regular_file(folder / name)) return nullptr;
  base::GuardedJson read = base::parse_json_guarded(base::read_file((folder / name).string(), kDeclaringBytes), kDeclaringDepth);
  return read.trouble.empty() && read.value.is_object() ? std::move(read.value) : base::Json(nullptr);
}

std::optional<int32_t> id_in(const base::Json& object, const char* key, int64_t vocab) {
  if (!object.is_object() || !object.contains(key)) return std::nullopt;
  const base::Json& value = object[key];
  for (const base::Json& one : value.is_array() ? value : base::Json::array({value}))
    if (one.is_number_integer() && one >= 0 && one < vocab) return one.get<int32_t>();
  return std::nullopt;
}

std::optional<int32_t> id_in(const Bpe& bpe, const std::optional<std::string>& token) {
  if (!token) return std::nullopt;
  for (const AddedToken& added : bpe.added)
    if (added.text == *token) return added.id;
  const auto found = std::find(bpe.pieces.begin(), bpe.pieces.end(), *token);
  return found == bpe.pieces.end() ? std::nullopt : std::optional(static_cast<int32_t>(found - bpe.pieces.begin()));
}

}  // namespace

std::string tokenizer_folder(const std::string& tokenizer_file) {
  if (tokenizer_file.empty() || fs::is_directory(tokenizer_file)) return tokenizer_file;
  const fs::path path(tokenizer_file);
  static constexpr std::array kNames = {"tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "encoder.json", "vocab.bpe"};
  if (std::find(kNames.begin(), kNames.end(), path.filename()) == kNames.end()) return {};
  return path.has_parent_path() ? path.parent_path().string() : ".";
}

Tokenizer::Declared declared_tokens(const std::string& folder, const TokenizerConfig& config, const Tokenizer& tokenizer) {
  const base::Json model = object_in(folder, "config.json"), generation = object_in(folder, "generation_config.json");
  const auto find = [&](const char* token, const char* id) {
    std::optional<int32_t> found;
    if (const std::optional<std::string> name = config.special_token(token)) found = tokenizer.id_of(*name);
    for (const base::Json* file : {&model, &generation})
      if (!found) found = id_in(*file, id, tokenizer.vocab_size());
    return found;
  };
  return {.begin = find("bos_token", "bos_token_id"), .end = find("eos_token", "eos_token_id")};
}

void apply_added_tokens(const TokenizerConfig& config, Bpe& bpe) {
  if (const std::optional<int32_t> id = id_in(bpe, config.special_token("bos_token")); id && config.add_bos_token) {
    const bool there = !bpe.begin.empty() && bpe.begin.front() == *id;
    if (*config.add_bos_token && !there) bpe.begin.insert(bpe.begin.begin(), *id);
    if (!*config.add_bos_token && there) bpe.begin.erase(bpe.begin.begin());
  }
  if (const std::optional<int32_t> id = id_in(bpe, config.special_token("eos_token")); id && config.add_eos_token) {
    const bool there = !bpe.end.empty() && bpe.end.back() == *id;
    if (*config.add_eos_token && !there) bpe.end.push_back(*id);
    if (!*config.add_eos_token && there) bpe.end.pop_back();
  }
}

void put_file(const std::string& folder, const char* name, std::map<std::string, std::string>& texts) {
  if (folder.empty() || texts.contains(name)) return;
  if (const fs::path file = fs::path(folder) / name; fs::is_regular_file(file))
    texts[name] = base::read_file(file.string(), kDeclaringBytes);
}

void put_tokenizer_files(const std::string& tokenizer_file, std::map<std::string, std::string>& texts) {
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) put_file(tokenizer_folder(tokenizer_file), name, texts);
}

}  // namespace cairn::data
