// What a model's directory says of conversations, so that transformers and `cairn chat` write them as they were trained on and stop where
// an answer ends.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "data/chat/chat_format.h"

namespace cairn::data {

// The ids that the model's config.json names.
struct SpecialTokenIds {
  std::optional<int64_t> bos = {}, pad = {};
  std::vector<int64_t> eos = {};
};

// Puts tokenizer_config.json with the template and generation_config.json with the token that ends an answer among `texts`, which are files
// by name as they came with the model. What they say already stays as it is; a chat_template.jinja that says otherwise goes.
void put_chat_files(const ChatFormat& format, const Tokenizer& tokenizer, const SpecialTokenIds& ends,
                    std::map<std::string, std::string>& texts);

}  // namespace cairn::data
