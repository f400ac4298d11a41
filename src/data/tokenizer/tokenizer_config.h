// tokenizer_config.json: the chat template, special tokens (bos, eos, pad, ...) and the longest input.
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
  std::vector<std::pair<std::string, std::string>> chat_templates;  // name and text; the usual one is called "default"
  std::vector<std::pair<std::string, std::string>> special_tokens;  // "bos_token", "eos_token", ...: those that are set
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  std::optional<int64_t> model_max_length;  // none where it is missing or transformers' value for "no limit"

  // The text of the template called `name`, if there is one.
  std::optional<std::string> chat_template(std::string_view name = "default") const;
  std::optional<std::string> special_token(std::string_view name) const;
  // The special tokens as variables of a chat template, as transformers hands them over.
  base::OrderedJson template_variables() const;
};

// Reads the text of a tokenizer_config.json; errors begin with `name`. Other keys are ignored.
TokenizerConfig read_tokenizer_config(std::string_view text, const std::string& name);

// Reads tokenizer_config.json in a model's folder, and chat_template.jinja and additional_chat_templates/*.jinja beside it, which take
// precedence; special_tokens_map.json names the special tokens that it leaves out. A folder without any of them gives an empty config.
TokenizerConfig open_tokenizer_config(const std::string& folder);

}  // namespace cairn::data
