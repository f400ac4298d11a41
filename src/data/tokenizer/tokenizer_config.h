// What tokenizer_config.json says beside the tokenizer: the chat template, the tokens that begin, end and pad, the longest input.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"

namespace cairn::data {

struct TokenizerConfig {
  std::vector<std::pair<std::string, std::string>> chat_templates;  // name and text; the only or usual one is called "default"
  std::vector<std::pair<std::string, std::string>> special_tokens;  // "bos_token" and its fellows, those that are set
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  std::optional<int64_t> model_max_length;  // none where it is missing, or as large as transformers writes for "no limit"

  // The text of the template called `name`; nothing where there is none of this name.
  std::optional<std::string> chat_template(std::string_view name = "default") const;
  std::optional<std::string> special_token(std::string_view name) const;
  // The special tokens as variables of a chat template, as transformers hands them over.
  base::OrderedJson template_variables() const;
};

// Reads the text of a tokenizer_config.json; `name` is what complaints begin with. Keys that are not named above are left alone.
TokenizerConfig read_tokenizer_config(std::string_view text, const std::string& name);

// Reads tokenizer_config.json in a model's folder, and the files chat_template.jinja and additional_chat_templates/*.jinja beside it, which
// win over what it says. A folder without any of them gives an empty config.
TokenizerConfig open_tokenizer_config(const std::string& folder);

}  // namespace cairn::data
