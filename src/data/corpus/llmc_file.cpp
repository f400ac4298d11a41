#include "data/corpus/llmc_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/files/mapped_file.h"

namespace cairn::data {
namespace {

constexpr size_t kHeaderBytes = 256 * sizeof(int32_t);

struct LlmcKind {
  int32_t magic;
  int32_t version;
  int64_t token_bytes;
};
constexpr std::array<LlmcKind, 2> kLlmcKinds = {{{20240520, 1, 2}, {20240801, 7, 4}}};

const LlmcKind* kind_by_magic(std::string_view head) {
  int32_t magic = 0;
  if (head.size() < sizeof magic) return nullptr;
  std::memcpy(&magic, head.data(), sizeof magic);
  for (const LlmcKind& kind : kLlmcKinds)
    if (kind.magic == magic) return &kind;
  return nullptr;
}

struct LlmcMemory {
  std::shared_ptr<const base::MappedFile> file;
  std::vector<uint64_t> begins;
};

// Finds the documents, and the largest id.
template <typename T>
uint32_t scan(std::span<const T> ids, int32_t end_of_text, std::vector<uint64_t>& begins) {
  uint32_t largest = 0;
  begins.push_back(0);
  for (size_t i = 0; i < ids.size(); ++i) {
    largest = std::max(largest, static_cast<uint32_t>(ids[i]));
    if (static_cast<int32_t>(ids[i]) == end_of_text && i + 1 < ids.size()) begins.push_back(i + 1);
  }
  return largest;
}

}  // namespace

bool is_llmc_file(std::string_view head) { return kind_by_magic(head) != nullptr; }

TokenShard open_llmc_file(const std::string& path, int64_t vocab, int32_t end_of_text) {
  const auto memory = std::make_shared<LlmcMemory>();
  memory->file = base::MappedFile::open(path, Error::Kind::bad_input);
  const std::span<const std::byte> bytes = memory->file->bytes();
  const LlmcKind* kind = kind_by_magic({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (kind == nullptr) base::fail_input("{}: not a token shard of llm.c: it does not begin with 20240520 or 20240801", path);
  if (bytes.size() < kHeaderBytes) base::fail_input("{}: a damaged token shard: its header is cut short", path);
  std::array<int32_t, 3> header;
  std::memcpy(header.data(), bytes.data(), sizeof header);
  if (header[1] != kind->version)
    base::fail_input("{}: a token shard of llm.c of version {}; with magic {}, version {} is read", path, header[1], kind->magic,
                     kind->version);
  const int64_t count = header[2];
  const auto expected = static_cast<int64_t>(kHeaderBytes) + std::max<int64_t>(count, 0) * kind->token_bytes;
  if (count <= 0 || expected != static_cast<int64_t>(bytes.size()))
    base::fail_input("{}: a damaged token shard: its header speaks of {} tokens, that is {} bytes, and it has {}", path, count, expected,
                     bytes.size());
  TokenShard tokens;
  const std::byte* ids = bytes.data() + kHeaderBytes;
  uint32_t largest = 0;
  if (kind->token_bytes == 2) {
    tokens.narrow = {reinterpret_cast<const uint16_t*>(ids), static_cast<size_t>(count)};
    largest = scan(tokens.narrow, end_of_text, memory->begins);
  } else {
    tokens.wide = {reinterpret_cast<const int32_t*>(ids), static_cast<size_t>(count)};
    largest = scan(tokens.wide, end_of_text, memory->begins);
  }
  if (static_cast<int64_t>(largest) >= vocab)
    base::fail_input("{}: it holds id {}, and the tokenizer has ids 0 to {}; set data.tokenizer_file to the tokenizer it was made with",
                     path, largest, vocab - 1);
  tokens.begins = memory->begins;
  tokens.facts.vocab = vocab;
  tokens.memory = memory;
  return tokens;
}

std::string llmc_bytes(const TokenShard& tokens) {
  const LlmcKind& kind = kLlmcKinds[tokens.narrow.empty() ? 1 : 0];
  std::array<int32_t, 256> header{};
  header[0] = kind.magic;
  header[1] = kind.version;
  header[2] = static_cast<int32_t>(tokens.size());
  std::string bytes(reinterpret_cast<const char*>(header.data()), kHeaderBytes);
  const void* ids = tokens.narrow.empty() ? static_cast<const void*>(tokens.wide.data()) : tokens.narrow.data();
  return bytes.append(static_cast<const char*>(ids), static_cast<size_t>(tokens.size() * kind.token_bytes));
}

}  // namespace cairn::data
