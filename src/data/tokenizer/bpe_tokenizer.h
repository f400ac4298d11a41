// Byte-pair encoding over bytes, as GPT-2 and its descendants use it, or over characters, as Llama 2 does.
#pragma once
#include <memory>
#include <string>

#include "data/tokenizer.h"
#include "data/tokenizer/bpe.h"

namespace cairn::data {

// `bpe` holds what it needs, as train_bpe and read_tokenizer_json promise: a piece for each of the 256 bytes where `bytes`, and where
// `byte_fallback`. `json` is what json() gives; empty: it is written from `bpe`. `name` stands in errors.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(Bpe bpe, std::string json = {}, const std::string& name = "the tokenizer");

}  // namespace cairn::data
