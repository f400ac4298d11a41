// GPT-2's two tokenizer files, which many models copied: a vocabulary and a list of merges.
#pragma once
#include <string>
#include <string_view>

#include "data/tokenizer/bpe.h"

namespace cairn::data {

// `vocab` is JSON (vocab.json, encoder.json), `merges` is text with a merge on each line (merges.txt, vocab.bpe). <|endoftext|> is
// special where the vocabulary has it. The names appear in errors.
Bpe read_gpt2_files(std::string_view vocab, const std::string& vocab_name, std::string_view merges, const std::string& merges_name);

}  // namespace cairn::data
