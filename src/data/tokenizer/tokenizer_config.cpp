#include "data/tokenizer/tokenizer_config.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include <fmt/format.h>

#include "base/check.h"
#include "base/files.h"
#include "data/jinja/budget.h"

namespace cairn::data {
namespace {

using base::Json;

constexpr size_t kConfigBytes = 16 << 20;  // added_tokens_decoder makes some of them long
constexpr int kConfigDepth = 32;
constexpr size_t kTokenBytes = 1024;
constexpr size_t kTemplates = 64;

constexpr std::array kSpecialTokens = {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};

// The value of a name in a list of pairs.
std::optional<std::string> value_of(const std::vector<std::pair<std::string, std::string>>& pairs, std::string_view name) {
  for (const auto& [known, value] : pairs)
    if (known == name) return value;
  return std::nullopt;
}

// Sets it, in the place of what was there.
void put(std::vector<std::pair<std::string, std::string>>& pairs, std::string name, std::string value) {
  for (auto& [known, held] : pairs) {
    if (known != name) continue;
    held = std::move(value);
    return;
  }
  pairs.emplace_back(std::move(name), std::move(value));
}

class ConfigReader {
 public:
  explicit ConfigReader(const std::string& name) : name_(name) {}

  TokenizerConfig read(std::string_view text) {
    const Json root = parse(text);
    if (!root.is_object()) refuse("holds no JSON object: not a tokenizer_config.json");
    for (const char* key : kSpecialTokens) read_token(root, key);
    config_.add_bos_token = flag(root, "add_bos_token");
    config_.add_eos_token = flag(root, "add_eos_token");
    read_length(root);
    read_templates(root);
    return std::move(config_);
  }

  // The special tokens alone.
  TokenizerConfig read_special_tokens(std::string_view text) {
    const Json root = parse(text);
    if (!root.is_object()) refuse("holds no JSON object: not a special_tokens_map.json");
    for (const char* key : kSpecialTokens) read_token(root, key);
    return std::move(config_);
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    base::fail_input("{}: {}", name_, fmt::format(format, std::forward<Args>(args)...));
  }

  Json parse(std::string_view text) const {
    if (text.size() > kConfigBytes) refuse("{} bytes, and a tokenizer_config.json has at most {}", text.size(), kConfigBytes);
    base::GuardedJson read = base::parse_json_guarded(text, kConfigDepth);
    if (read.too_deep) refuse("nested more than {} deep: not a tokenizer_config.json", kConfigDepth);
    if (read.invalid_at) refuse("not valid JSON at byte {}", *read.invalid_at);
    if (!read.trouble.empty()) refuse("{}", read.trouble);
    return std::move(read.value);
  }

  // What is there and not null.
  static const Json* at(const Json& object, const char* key) {
    const auto found = object.find(key);
    return found == object.end() || found->is_null() ? nullptr : &*found;
  }

  static std::string shown(const Json& value) {
    std::string text = base::compact(value);
    return text.size() > 60 ? fmt::format("{}...", std::string_view(text).substr(0, 60)) : text;
  }

  // A string, or an AddedToken object with its "content".
  void read_token(const Json& root, const char* key) {
    const Json* token = at(root, key);
    if (token == nullptr) return;
    const Json* content = token->is_object() ? at(*token, "content") : token;
    if (content == nullptr || !content->is_string())
      refuse("{} is {}: must be a string, or an object with \"content\"", key, shown(*token));
    const std::string text = content->get<std::string>();
    if (text.size() > kTokenBytes) refuse("{} has {} bytes: at most {}", key, text.size(), kTokenBytes);
    config_.special_tokens.emplace_back(key, text);
  }

  std::optional<bool> flag(const Json& root, const char* key) const {
    const Json* value = at(root, key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_boolean()) refuse("{} is {}: must be true or false", key, shown(*value));
    return value->get<bool>();
  }

  // transformers writes 1e30 for "no limit", as a whole number that 64 bits do not hold.
  void read_length(const Json& root) {
    const Json* value = at(root, "model_max_length");
    if (value == nullptr) return;
    if (!value->is_number() || !(value->get<double>() >= 1))
      refuse("model_max_length is {}: must be a number of at least 1", shown(*value));
    if (value->get<double>() < 1e15) config_.model_max_length = static_cast<int64_t>(value->get<double>());
  }

  void read_templates(const Json& root) {
    const Json* value = at(root, "chat_template");
    if (value == nullptr) return;
    if (value->is_string()) return add_template("default", value->get<std::string>());
    if (!value->is_array())
      refuse("chat_template is {}: must be a string, or a list of objects with \"name\" and \"template\"", shown(*value));
    if (value->size() > kTemplates) refuse("chat_template has {} templates: at most {}", value->size(), kTemplates);
    for (const Json& one : *value) {
      const Json* name = one.is_object() ? at(one, "name") : nullptr;
      const Json* text = one.is_object() ? at(one, "template") : nullptr;
      if (name == nullptr || text == nullptr || !name->is_string() || !text->is_string())
        refuse("chat_template holds {}: must be an object with \"name\" and \"template\"", shown(one));
      if (config_.chat_template(name->get<std::string>())) refuse("chat_template holds \"{}\" twice", name->get<std::string>());
      add_template(name->get<std::string>(), text->get<std::string>());
    }
  }

  void add_template(std::string name, std::string text) {
    if (text.size() > static_cast<size_t>(jinja::kTemplateBytes))
      refuse("chat_template has {} bytes: at most {}", text.size(), jinja::kTemplateBytes);
    config_.chat_templates.emplace_back(std::move(name), std::move(text));
  }

  const std::string& name_;
  TokenizerConfig config_;
};

}  // namespace

std::optional<std::string> TokenizerConfig::chat_template(std::string_view name) const { return value_of(chat_templates, name); }
std::optional<std::string> TokenizerConfig::special_token(std::string_view name) const { return value_of(special_tokens, name); }

base::OrderedJson TokenizerConfig::template_variables() const {
  base::OrderedJson variables = base::OrderedJson::object();
  for (const auto& [name, text] : special_tokens) variables[name] = text;
  return variables;
}

TokenizerConfig read_tokenizer_config(std::string_view text, const std::string& name) { return ConfigReader(name).read(text); }

TokenizerConfig open_tokenizer_config(const std::string& folder) {
  namespace fs = std::filesystem;
  const fs::path root(folder);
  TokenizerConfig config;
  if (const fs::path file = root / "tokenizer_config.json"; fs::is_regular_file(file))
    config = read_tokenizer_config(base::read_file(file.string(), static_cast<int64_t>(kConfigBytes)), file.string());
  if (const fs::path file = root / "special_tokens_map.json"; fs::is_regular_file(file)) {
    const std::string name = file.string();
    const TokenizerConfig map = ConfigReader(name).read_special_tokens(base::read_file(name, static_cast<int64_t>(kConfigBytes)));
    for (const auto& [key, token] : map.special_tokens)
      if (!config.special_token(key)) config.special_tokens.emplace_back(key, token);
  }
  const auto add = [&](const std::string& name, const fs::path& file) {
    put(config.chat_templates, name, base::read_file(file.string(), jinja::kTemplateBytes));
  };
  if (const fs::path file = root / "chat_template.jinja"; fs::is_regular_file(file)) add("default", file);
  std::error_code none;
  std::vector<fs::path> more;
  for (const auto& entry : fs::directory_iterator(root / "additional_chat_templates", none))
    if (entry.is_regular_file() && entry.path().extension() == ".jinja") more.push_back(entry.path());
  if (more.size() > kTemplates)
    base::fail_input("{}: {} files of additional_chat_templates, and at most {} are read", folder, more.size(), kTemplates);
  std::sort(more.begin(), more.end());
  for (const fs::path& file : more) add(file.stem().string(), file);
  return config;
}

}  // namespace cairn::data
