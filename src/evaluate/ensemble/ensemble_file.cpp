#include "evaluate/ensemble/ensemble_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include <fmt/ranges.h>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "base/files.h"
#include "base/json.h"

namespace cairn::evaluate {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBytesMax = 4 << 20;
constexpr size_t kExpertsMax = 4096;
const std::vector<std::string> kPriors{"uniform", "cached", "simple_average"};

fs::path file_of(const fs::path& path) { return fs::is_directory(path) ? path / kEnsembleFile : path; }

// Reads fields of a JSON object; errors name the field.
class JsonFields {
 public:
  JsonFields(const base::Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json.is_object()) base::fail_input("{}: not an object", where_);
  }

  std::string text(const char* key) const {
    const base::Json& value = at(key);
    if (!value.is_string() || value.get<std::string>().empty()) base::fail_input("{}: \"{}\" must be a text", where_, key);
    return value.get<std::string>();
  }
  int64_t integer(const char* key, int64_t least, int64_t most) const {
    const base::Json& value = at(key);
    if (!value.is_number_integer() || value.get<int64_t>() < least || value.get<int64_t>() > most)
      base::fail_input("{}: \"{}\" must be an integer between {} and {}", where_, key, least, most);
    return value.get<int64_t>();
  }
  const base::Json& at(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) base::fail_input("{}: \"{}\" is missing", where_, key);
    return *found;
  }

 private:
  const base::Json& json_;
  std::string where_;
};

std::vector<double> numbers(const base::Json& json, const std::string& where) {
  std::vector<double> found;
  if (!json.is_array()) base::fail_input("{}: must be a list of numbers", where);
  for (const base::Json& one : json) {
    if (!one.is_number()) base::fail_input("{}: must be a list of numbers", where);
    found.push_back(one.get<double>());
  }
  return found;
}

uint64_t hash_of(const std::string& text, const std::string& where) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size()) base::fail_input("{}: \"tokenizer\" must be a hash, 16 digits", where);
  return value;
}

EnsembleExpert expert_of(const base::Json& json, const fs::path& folder, const std::string& where) {
  const JsonFields fields(json, where);
  EnsembleExpert expert{fields.text("name"), fields.text("path")};
  if (fs::path(expert.path).is_relative()) expert.path = (folder / expert.path).lexically_normal().string();
  if (const auto domains = json.find("domains"); domains != json.end()) {
    if (!domains->is_array()) base::fail_input("{}: \"domains\" must be a list of texts", where);
    for (const base::Json& one : *domains) {
      if (!one.is_string()) base::fail_input("{}: \"domains\" must be a list of texts", where);
      expert.domains.push_back(one.get<std::string>());
    }
  }
  return expert;
}

void check_file(const EnsembleFile& file, const std::string& where) {
  if (file.experts.empty() || file.experts.size() > kExpertsMax)
    base::fail_input("{}: {} experts; between 1 and {} make an ensemble", where, file.experts.size(), kExpertsMax);
  std::set<std::string> names;
  for (const EnsembleExpert& expert : file.experts)
    if (!names.insert(expert.name).second) base::fail_input("{}: two experts are called \"{}\"", where, expert.name);
  if (std::find(kPriors.begin(), kPriors.end(), file.prior) == kPriors.end()) base::fail_unknown("prior", file.prior, kPriors);
  for (const auto& [domain, prior] : file.priors) {
    MixtureOptions options{.prior = prior, .top_k = file.top_k, .refresh = file.refresh};
    try {
      check(options, static_cast<int64_t>(file.experts.size()));
    } catch (const Error& error) {
      base::fail_input("{}: domain \"{}\": {}", where, domain, error.what());
    }
  }
  if (file.top_k > static_cast<int64_t>(file.experts.size()))
    base::fail_input("{}: top_k = {}: there are {} experts", where, file.top_k, file.experts.size());
}

}  // namespace

MixtureOptions EnsembleFile::mix(const std::string& domain) const {
  MixtureOptions options{
      .prior = std::vector<double>(experts.size(), 1.0), .average = prior == "simple_average", .top_k = top_k, .refresh = refresh};
  if (domain.empty()) return options;
  const auto found = priors.find(domain);
  if (found == priors.end()) {
    std::vector<std::string> known;
    for (const auto& [name, _] : priors) known.push_back(name);
    if (known.empty()) base::fail_input("--domain {}: this ensemble has no prior for any domain; leave it out", domain);
    base::fail_unknown("domain", domain, known);
  }
  if (prior == "cached") options.prior = found->second;
  return options;
}

bool is_ensemble(const fs::path& path) {
  std::error_code none;  // an invalid path is no ensemble: whoever opens it as something else reports the error
  if (fs::is_directory(path, none)) return fs::is_regular_file(path / kEnsembleFile, none);
  return path.filename() == kEnsembleFile && fs::is_regular_file(path, none);
}

EnsembleFile read_ensemble(const fs::path& path) {
  const fs::path file = file_of(path);
  const std::string where = file.string();
  const base::GuardedJson parsed = base::parse_json_guarded(base::read_file(file, kBytesMax), 8);
  if (!parsed.trouble.empty()) base::fail_input("{}: {}", where, parsed.trouble);
  const JsonFields fields(parsed.value, where);
  if (fields.text("format") != "cairn ensemble 1")
    base::fail_input("{}: \"format\" is \"{}\", and this Cairn reads \"cairn ensemble 1\"", where, fields.text("format"));
  EnsembleFile found;
  found.prior = fields.text("prior");
  found.top_k = fields.integer("top_k", 0, kExpertsMax);
  found.refresh = fields.integer("refresh", 1, 1 << 30);
  found.tokenizer = hash_of(fields.text("tokenizer"), where);
  const base::Json& experts = fields.at("experts");
  if (!experts.is_array()) base::fail_input("{}: \"experts\" must be a list", where);
  for (size_t i = 0; i < experts.size(); ++i)
    found.experts.push_back(expert_of(experts[i], file.parent_path(), fmt::format("{}: expert {}", where, i)));
  const base::Json& priors = fields.at("priors");
  if (!priors.is_object()) base::fail_input("{}: \"priors\" must be an object", where);
  for (const auto& [domain, prior] : priors.items()) found.priors[domain] = numbers(prior, fmt::format("{}: domain \"{}\"", where, domain));
  check_file(found, where);
  return found;
}

void write_ensemble(const fs::path& folder, const EnsembleFile& file) {
  check_file(file, (folder / kEnsembleFile).string());
  base::make_folder(folder);
  base::OrderedJson experts = base::OrderedJson::array();
  for (const EnsembleExpert& expert : file.experts) {
    const fs::path relative = fs::relative(expert.path, folder);
    experts.push_back({{"name", expert.name}, {"path", relative.empty() ? expert.path : relative.string()}, {"domains", expert.domains}});
  }
  base::OrderedJson priors = base::OrderedJson::object();
  for (const auto& [domain, prior] : file.priors) priors[domain] = prior;
  const base::OrderedJson json{{"format", "cairn ensemble 1"},
                               {"tokenizer", fmt::format("{:016x}", file.tokenizer)},
                               {"experts", experts},
                               {"prior", file.prior},
                               {"priors", priors},
                               {"top_k", file.top_k},
                               {"refresh", file.refresh}};
  base::write_atomically(folder / kEnsembleFile, base::pretty(json) + "\n");
}

void leave_out(EnsembleFile& file, size_t expert) {
  const auto drop = [&](auto& from) { from.erase(from.begin() + static_cast<std::ptrdiff_t>(expert)); };
  drop(file.experts);
  for (auto& [domain, prior] : file.priors) {
    drop(prior);
    // A prior that trusted only the removed expert says nothing about the others: make it uniform.
    if (std::all_of(prior.begin(), prior.end(), [](double one) { return one == 0; })) std::fill(prior.begin(), prior.end(), 1.0);
  }
  file.top_k = std::min(file.top_k, static_cast<int64_t>(file.experts.size()));
}

}  // namespace cairn::evaluate
