#include "data/corpus/inspect.h"

#include "data/corpus/llmc_file.h"
#include "data/corpus/token_file.h"

namespace cairn::data {
namespace {

constexpr int32_t kGpt2End = 50256;
constexpr int32_t kLlama3End = 128001;
constexpr size_t kShownBytes = 4096;

void keep_beginning(const Document& document, Document& first) {
  size_t bytes = 0;
  for (const TextSegment& part : document.parts) {
    if (bytes >= kShownBytes) return;
    first.parts.push_back({part.text.substr(0, kShownBytes - bytes), part.is_target});
    bytes += first.parts.back().text.size();
  }
}

Inspection inspect_tokens(const SourceFile& file) {
  const int64_t any = int64_t{1} << 31;
  TokenShard tokens = file.format == Format::cairn ? open_token_file(file.path) : open_llmc_file(file.path, any, kGpt2End);
  if (file.format == Format::llmc && tokens.narrow.empty()) tokens = open_llmc_file(file.path, any, kLlama3End);
  return {.documents = tokens.documents(), .text_bytes = tokens.facts.text_bytes, .tokens = tokens.size(), .bad = {}, .first = {}};
}

}  // namespace

Inspection inspect(const SourceFile& file, DocumentOptions document_options, const ChunkOptions& options) {
  if (file.holds_tokens()) return inspect_tokens(file);
  document_options.skip_bad = true;
  const std::unique_ptr<ChunkReader> reader = make_chunk_reader({file}, options);
  Inspection found;
  Chunk chunk;
  std::vector<Document> documents;
  while (reader->next(chunk)) {
    documents.clear();
    documents_of(chunk, document_options, documents, found.bad);
    for (const Document& document : documents) {
      if (found.first.parts.empty()) keep_beginning(document, found.first);
      found.documents += document.ends ? 1 : 0;
      for (const TextSegment& part : document.parts) {
        found.text_bytes += static_cast<int64_t>(part.text.size());
        if (part.is_target) found.target_bytes += static_cast<int64_t>(part.text.size());
      }
    }
  }
  return found;
}

}  // namespace cairn::data
