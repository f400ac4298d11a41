#include "kernels/product_choices.h"

#include <cctype>
#include <charconv>
#include <cstdlib>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"

namespace cairn::kernels {
namespace {

constexpr int64_t kFileBytesMost = 16 << 20;

std::string in_words(const ProductChoices::Algorithm& algorithm) {
  std::string text;
  for (const uint64_t word : algorithm) text += fmt::format("{:016x}", word);
  return text;
}

std::optional<ProductChoices::Algorithm> from_words(const std::string& text) {
  ProductChoices::Algorithm algorithm{};
  if (text.size() != 16 * algorithm.size()) return std::nullopt;
  for (size_t i = 0; i < algorithm.size(); ++i) {
    const char *first = text.data() + 16 * i, *last = first + 16;
    if (std::from_chars(first, last, algorithm[i], 16).ptr != last) return std::nullopt;
  }
  return algorithm;
}

}  // namespace

ProductChoices::Choices ProductChoices::read(const std::filesystem::path& file) {
  Choices found;
  std::error_code none;
  if (file.empty() || !std::filesystem::is_regular_file(file, none)) return found;
  try {
    const base::Json all = base::parse_json(base::read_file(file, kFileBytesMost));
    if (!all.is_object()) return found;
    for (const auto& [product, words] : all.items())
      if (words.is_string())
        if (const auto algorithm = from_words(words.get<std::string>())) found[product] = *algorithm;
  } catch (const Error&) {  // as if it were not there
  }
  return found;
}

ProductChoices::ProductChoices(std::filesystem::path file) : file_(std::move(file)), known_(read(file_)) {}

std::optional<ProductChoices::Algorithm> ProductChoices::find(const std::string& product) const {
  const std::lock_guard guard(lock_);
  const auto found = known_.find(product);
  return found == known_.end() ? std::nullopt : std::optional(found->second);
}

void ProductChoices::keep(const std::string& product, const Algorithm& algorithm) {
  const std::lock_guard guard(lock_);
  known_[product] = algorithm;
  if (file_.empty()) return;
  Choices all = read(file_);  // what others have found since
  all[product] = algorithm;
  base::Json json = base::Json::object();
  for (const auto& [name, words] : all) json[name] = in_words(words);
  try {
    base::make_folder(file_.parent_path());
    base::write_atomically(file_, base::compact(json));
  } catch (const Error&) {
  }
}

std::filesystem::path product_choices_file(const std::string& name) {
  const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  std::filesystem::path folder;
  if (cache != nullptr && *cache != '\0')
    folder = cache;
  else if (home != nullptr && *home != '\0')
    folder = std::filesystem::path(home) / ".cache";
  else
    return {};
  std::string plain;
  for (const char c : name) plain += std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' ? c : '-';
  return folder / "cairn" / "products" / (plain + ".json");
}

}  // namespace cairn::kernels
