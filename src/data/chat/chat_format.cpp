#include "data/chat/chat_format.h"

#include <algorithm>
#include <filesystem>

#include "base/check.h"
#include "base/files.h"
#include "data/chat/template_date.h"
#include "data/chat/template_renderer.h"
#include "data/options.h"
#include "data/tokenizer.h"
#include "data/tokenizer/tokenizer_config.h"

namespace cairn::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kTemplateBytes = 1 << 20;

std::string folder_of(const std::string& tokenizer_file) {
  if (tokenizer_file.empty()) return {};
  if (fs::is_directory(tokenizer_file)) return tokenizer_file;
  const fs::path parent = fs::path(tokenizer_file).parent_path();
  return parent.empty() ? "." : parent.string();
}

bool has_all(const Tokenizer* tokenizer, const std::vector<std::string>& markers) {
  return tokenizer == nullptr || std::ranges::all_of(markers, [&](const std::string& one) { return tokenizer->id_of(one).has_value(); });
}

// The template `format` from outside, with the variables of tokenizer_config.json and the date of data.template_date.
Renderer foreign_renderer(const ChatFormat& format, const TokenizerConfig& config, const std::string& day) {
  base::OrderedJson variables = config.template_variables();
  if (!variables.contains("eos_token")) variables["eos_token"] = format.end;
  return chat_renderer(ChatTemplate::parse(format.text, format.name), {.variables = std::move(variables)}, day);
}

TokenizerConfig config_in(const std::string& folder) { return folder.empty() ? TokenizerConfig() : open_tokenizer_config(folder); }

std::string read_template(const std::string& file) {
  if (!fs::is_regular_file(file)) base::fail_input("data.template = {}: no such file", file);
  return base::read_file(file, kTemplateBytes);
}

std::string where_it_is(const std::string& folder) {
  const fs::path file = fs::path(folder) / "chat_template.jinja";
  return fs::is_regular_file(file) ? file.string() : (fs::path(folder) / "tokenizer_config.json").string() + ": chat_template";
}

}  // namespace

ChatFormat choose_chat_format(const DataOptions& data, const Tokenizer* tokenizer) {
  const std::string& word = data.chat_template;
  ChatFormat format{.name = word, .text = {}, .folder = folder_of(data.tokenizer_file), .end = {}};
  const TokenizerConfig config = config_in(format.folder);
  format.end = tokenizer == nullptr ? std::string(kEndOfText) : tokenizer->end_of_text_name();
  const std::optional<std::string> own = config.chat_template();
  if (word == "model" && !own)
    base::fail_input(
        "data.template = model: {}; choose auto, chatml, alpaca, plain, or give the template's file",
        format.folder.empty()
            ? "the tokenizer is made here and has no template"
            : fmt::format("{} has no chat template (no chat_template.jinja, no chat_template in tokenizer_config.json)", format.folder));
  if (own && (word == "model" || word == "auto")) {
    format.name = where_it_is(format.folder);
    format.text = *own;
    format.is_own = true;
    format.renderer = foreign_renderer(format, config, data.template_date);
    return format;
  }
  if (word.ends_with(".jinja")) {
    format.text = read_template(word);
    format.renderer = foreign_renderer(format, config, data.template_date);
    return format;
  }
  if (word == "auto") format.name = has_all(tokenizer, built_in_template("chatml").markers) ? "chatml" : "alpaca";
  format.text = built_in_template(format.name).text;
  format.renderer = make_renderer(format.name, format.end);
  return format;
}

bool needs_template_date(const DataOptions& data) {
  if (!data.needs().tokens || !data.template_date.empty()) return false;
  if (data.chat_template.ends_with(".jinja")) return reads_date(read_template(data.chat_template));
  if (data.chat_template != "auto" && data.chat_template != "model") return false;
  return reads_date(config_in(folder_of(data.tokenizer_file)).chat_template().value_or(""));
}

void check_template_keys(const DataOptions& data) {
  const std::string& word = data.chat_template;
  if (word != "auto" && word != "model" && !word.ends_with(".jinja")) built_in_template(word);
  if (!data.template_date.empty()) date_on(data.template_date);
}

void check_markers(const ChatFormat& format, const Tokenizer& tokenizer) {
  for (const std::string& marker : format.renderer.markers)
    if (!tokenizer.id_of(marker))
      base::fail_input(
          "data.template = {}: the tokenizer has no token {}: the template's marks would be ordinary text and an answer would have no end; "
          "choose alpaca or plain, or a tokenizer with these tokens (cairn tokenize train --special)",
          format.name, marker);
}

std::optional<int32_t> end_of_answer(const ChatFormat& format, const Tokenizer& tokenizer) {
  const std::vector<ChatMessage> chat = {{"user", "a"}, {"assistant", "b"}};
  std::vector<TextSegment> parts;
  try {
    parts = format.renderer.render(chat);
  } catch (const Error& error) {  // a template that demands other roles
    if (error.kind() != Error::Kind::bad_input) throw;
  }
  for (const TextSegment& part : parts) {
    if (!part.is_target) continue;
    for (const int32_t id : tokenizer.encode(part.text))
      if (tokenizer.is_special(id)) return id;
  }
  return std::nullopt;
}

}  // namespace cairn::data
