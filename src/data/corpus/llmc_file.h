// llm.c's token shards: a header of 256 int32 (magic, version, count), then the ids.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "data/corpus/token_file.h"

namespace cairn::data {

// Whether `head`, the beginning of a file, has the magic of one.
bool is_llmc_file(std::string_view head);

// Magic 20240520, version 1: ids of two bytes (GPT-2's); 20240801, version 7: ids of four (Llama 3's). A document ends after each
// `end_of_text`. The file is mapped. Refused: a size that does not fit the header, an id that is not below `vocab`.
TokenShard open_llmc_file(const std::string& path, int64_t vocab, int32_t end_of_text);

// The same bytes as a string, for tests and for handing data to llm.c.
std::string llmc_bytes(const TokenShard& tokens);

}  // namespace cairn::data
