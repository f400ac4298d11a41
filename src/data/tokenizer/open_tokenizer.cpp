#include "data/tokenizer/open_tokenizer.h"

#include <filesystem>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "data/tokenizer/bpe_tokenizer.h"
#include "data/tokenizer/declared_tokens.h"
#include "data/tokenizer/gpt2_files.h"
#include "data/tokenizer/llama2c_tokenizer.h"
#include "data/tokenizer/sentencepiece_tokenizer.h"
#include "data/tokenizer/tokenizer_json.h"

namespace cairn::data {
namespace {

constexpr std::pair<std::string_view, std::string_view> kPairs[] = {{"vocab.json", "merges.txt"}, {"encoder.json", "vocab.bpe"}};

std::string bytes_of(const std::string& path) { return base::read_file(path, static_cast<int64_t>(kTokenizerFileBytes)); }

std::unique_ptr<Tokenizer> open_pair(const std::string& vocab, const std::string& merges, const TokenizerConfig& config) {
  Bpe bpe = read_gpt2_files(bytes_of(vocab), vocab, bytes_of(merges), merges);
  apply_added_tokens(config, bpe);
  return make_bpe_tokenizer(std::move(bpe), {}, vocab);
}

// The file in a folder that says what its tokenizer is.
std::string file_in(const std::string& folder) {
  const std::filesystem::path path(folder);
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json", "encoder.json", "tokenizer.bin"})
    if (std::filesystem::is_regular_file(path / name)) return (path / name).string();
  base::fail_input("{}: holds no tokenizer (tokenizer.json, tokenizer.model, vocab.json with merges.txt, encoder.json with vocab.bpe)",
                   folder);
}

std::unique_ptr<Tokenizer> open_file(const std::string& path, const TokenizerConfig& config) {
  for (const auto& [vocab, merges] : kPairs) {
    if (path.ends_with(vocab)) return open_pair(path, path.substr(0, path.size() - vocab.size()) + std::string(merges), config);
    if (path.ends_with(merges)) return open_pair(path.substr(0, path.size() - merges.size()) + std::string(vocab), path, config);
  }
  if (path.ends_with(".model")) return make_sentencepiece_tokenizer(bytes_of(path), path, config.add_bos_token.value_or(true));
  if (path.ends_with(".bin")) return make_bpe_tokenizer(read_llama2c_tokenizer(bytes_of(path), path), {}, path);
  std::string json = bytes_of(path);
  Bpe bpe = read_tokenizer_json(json, path);
  apply_added_tokens(config, bpe);
  return make_bpe_tokenizer(std::move(bpe), std::move(json), path);
}

}  // namespace

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& given) {
  const std::string path = std::filesystem::is_directory(given) ? file_in(given) : given;
  const std::string folder = tokenizer_folder(path);
  const TokenizerConfig config = folder.empty() ? TokenizerConfig() : open_tokenizer_config(folder);
  std::unique_ptr<Tokenizer> tokenizer = open_file(path, config);
  if (!folder.empty()) tokenizer->declare(declared_tokens(folder, config, *tokenizer));
  return tokenizer;
}

}  // namespace cairn::data
