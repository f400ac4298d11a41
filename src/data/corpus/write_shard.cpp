#include "data/corpus/write_shard.h"

#include <algorithm>

#include "base/files.h"

namespace cairn::data {
namespace {

constexpr int64_t kBlock = 1 << 20;

// Tokens first .. first + count - 1 of a stream, with whole or partial documents.
void append_block(const TokenStream& row, int64_t first, int64_t count, TokenWriter& writer) {
  std::vector<int64_t> ids(static_cast<size_t>(count));
  row.copy(first, count, ids.data());
  const std::vector<int32_t> tokens(ids.begin(), ids.end());
  std::vector<int64_t> ends;
  for (int64_t document = row.document_of(first); document < row.documents(); ++document) {
    const int64_t end = row.document_begin(document + 1) - first;
    if (end > count) break;
    ends.push_back(end);
  }
  std::vector<uint8_t> targets;
  if (row.targets_in(first, count) < count) {
    std::fill(ids.begin(), ids.end(), 1);
    row.mask_non_targets(first, count, ids.data());
    for (const int64_t one : ids) targets.push_back(one == 1);
  }
  writer.add(tokens, ends, targets);
}

}  // namespace

WrittenShard write_shard(const DataOptions& data, const CorpusOptions& options, const std::string& path, base::Log& log) {
  Corpus corpus = open_token_streams(data, options, log);
  base::FileWriter file(path);
  TokenWriter writer([&](std::span<const std::byte> bytes) { file.write(bytes); }, corpus.tokenizer->vocab_size());
  TokenFacts facts{.tokenizer = hash(*corpus.tokenizer), .text_bytes = corpus.text_bytes};
  for (const auto& row : corpus.token_streams) {
    for (int64_t first = 0; first < row->size(); first += kBlock) append_block(*row, first, std::min(kBlock, row->size() - first), writer);
    for (const TokenShard& tokens : row->files()) facts.bad_lines += tokens.facts.bad_lines;
  }
  writer.finish(facts);
  file.commit();
  return {
      .tokenizer = std::move(corpus.tokenizer), .tokens = writer.tokens(), .documents = writer.documents(), .bytes = file.bytes_written()};
}

}  // namespace cairn::data
