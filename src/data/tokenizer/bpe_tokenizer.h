// Byte-pair encoding over bytes, as GPT-2 and its descendants use it, or over characters, as Llama 2 does.
#pragma once
#include <memory>
#include <string>

#include "data/tokenizer.h"
#include "data/tokenizer/bpe.h"

namespace cairn::data {

// `bpe` has a piece for each of the 256 bytes where `bytes` or `byte_fallback` is set; train_bpe and read_tokenizer_json guarantee it.
// `json` is the result of json(); empty: it is written from `bpe`. `name` appears in errors.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(Bpe bpe, std::string json = {}, const std::string& name = "the tokenizer");

}  // namespace cairn::data
