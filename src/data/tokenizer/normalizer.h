// Unicode normal forms and the other normalizers of a tokenizer.json.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "data/tokenizer/bpe.h"

namespace cairn::data {

// Applies the steps in order. Returns `text` itself where nothing changes, else a view of `scratch`.
// Bytes that are not well-formed UTF-8 stay as they are.
std::string_view apply_normalizers(std::string_view text, std::span<const NormalizerStep> normalizers, std::string& scratch);

// The normal form C of a text.
std::string to_nfc(std::string_view text);

}  // namespace cairn::data
