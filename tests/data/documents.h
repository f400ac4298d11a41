// Rows of tokens and texts of files, made in memory for tests.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "data/corpus/chunks.h"
#include "data/corpus/token_file.h"
#include "data/corpus/token_stream.h"
#include "data/corpus/tokenize.h"

namespace cairn::data {

// One document's tokens and which of them are targets (none given: all).
struct TestDocument {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> targets = {};
};

inline TokenShard tokens_in_memory(const std::vector<TestDocument>& documents, int64_t vocab = 1000, const TokenFacts& facts = {}) {
  const auto bytes = std::make_shared<std::vector<std::byte>>();
  TokenWriter writer([&](std::span<const std::byte> more) { bytes->insert(bytes->end(), more.begin(), more.end()); }, vocab);
  for (const TestDocument& document : documents) {
    const std::vector<int64_t> ends = {static_cast<int64_t>(document.tokens.size())};
    writer.add(document.tokens, ends, document.targets);
  }
  writer.finish(facts);
  return read_tokens(*bytes, bytes, "a test");
}

inline std::shared_ptr<const TokenStream> row_of(const std::vector<TestDocument>& documents, int64_t vocab = 1000) {
  return std::make_shared<const TokenStream>(std::vector<TokenShard>{tokens_in_memory(documents, vocab)});
}

inline std::vector<int64_t> ids_of(const TokenStream& row) {
  std::vector<int64_t> ids(static_cast<size_t>(row.size()));
  row.copy(0, row.size(), ids.data());
  return ids;
}

// The documents that a reader gives, with the parts of each joined; pieces of long ones are put together.
inline std::vector<std::string> texts_of(ChunkReader& reader, const DocumentOptions& document_options = {}, BadLines* bad = nullptr) {
  std::vector<std::string> texts;
  BadLines ignored;
  Chunk chunk;
  bool begins = true;
  while (reader.next(chunk)) {
    std::vector<Document> documents;
    documents_of(chunk, document_options, documents, bad == nullptr ? ignored : *bad);
    for (const Document& document : documents) {
      if (begins) texts.emplace_back();
      for (const TextSegment& part : document.parts) texts.back() += part.text;
      begins = document.ends;
    }
  }
  return texts;
}

}  // namespace cairn::data
