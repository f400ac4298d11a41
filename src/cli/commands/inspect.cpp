// `cairn snapshot inspect` and `cairn snapshot verify`: what a saved model holds, and whether it is whole.
#include "snapshot/inspect.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/progress.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/stderr_terminal.h"
#include "data/tokenizer/open_tokenizer.h"
#include "model/families/config.h"
#include "snapshot/verify.h"

namespace cairn::cli {
namespace {

struct TokenizerFacts {
  std::string file;
  int64_t vocab = 0;
  std::string trouble = {};  // why it cannot be opened
};

std::optional<TokenizerFacts> tokenizer_of(const snapshot::InspectReport& found) {
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json"}) {
    if (std::none_of(found.files.begin(), found.files.end(), [&](const auto& file) { return file.name == name; })) continue;
    TokenizerFacts facts{.file = name};
    try {
      facts.vocab = data::open_tokenizer(found.path)->vocab_size();
    } catch (const Error& error) {
      facts.trouble = error.what();
    }
    return facts;
  }
  return std::nullopt;
}

int64_t elements_of(const snapshot::InspectReport& found) {
  int64_t sum = 0;
  for (const auto& [dtype, elements] : found.parameters) sum += elements;
  return sum;
}

base::OrderedJson json_of(const snapshot::InspectReport& found) {
  base::OrderedJson json;
  json["path"] = found.path;
  if (found.step) json["step"] = *found.step;
  if (!found.version.empty()) json["cairn_version"] = found.version;
  if (found.shape) {
    json["family"] = found.shape->family;
    json["config"] = base::parse_ordered_json(model::format_config(*found.shape));
  }
  json["parameters"] = elements_of(found);
  json["dtypes"] = found.parameters;
  if (const auto tokenizer = tokenizer_of(found)) {
    json["tokenizer"]["file"] = tokenizer->file;
    if (tokenizer->trouble.empty()) json["tokenizer"]["vocab"] = tokenizer->vocab;
  }
  if (const auto state = found.texts.find("training/state.json"); state != found.texts.end())
    json["state"] = base::parse_ordered_json(state->second);
  if (const auto plan = found.texts.find("training/plan.json"); plan != found.texts.end())
    json["plan"] = base::parse_ordered_json(plan->second);
  if (const auto recipe = found.texts.find("training/recipe.toml"); recipe != found.texts.end()) json["recipe"] = recipe->second;
  json["bytes"] = found.bytes();
  json["files"] = base::OrderedJson::array();
  for (const snapshot::SavedFile& file : found.files) json["files"].push_back({{"name", file.name}, {"bytes", file.bytes}});
  json["tensors"] = base::OrderedJson::array();
  for (const snapshot::InspectReport::Tensor& tensor : found.tensors)
    json["tensors"].push_back({{"file", tensor.file},
                               {"name", tensor.entry.name},
                               {"dtype", snapshot::word_of(tensor.entry.dtype)},
                               {"shape", tensor.entry.shape},
                               {"bytes", tensor.entry.end - tensor.entry.begin}});
  return json;
}

// "tokens 2720, seconds 1.5, seed 1": what a run's state says, in its own words.
std::string state_words(const std::string& text) {
  const base::OrderedJson state = base::parse_ordered_json(text);
  if (!state.is_object()) return "training/state.json cannot be read";
  std::string words;
  for (const auto& [key, value] : state.items())
    if (key != "step")
      words += fmt::format("{}{} {}", words.empty() ? "" : ", ", key, value.is_string() ? value.get<std::string>() : base::compact(value));
  return words;
}

// The lines of a resolved recipe that somebody asked for: each says where its value came from.
std::vector<std::string> asked_for(const std::string& recipe) {
  std::vector<std::string> lines;
  std::string section;
  for (size_t at = 0; at < recipe.size();) {
    const size_t end = std::min(recipe.find('\n', at), recipe.size());
    const std::string line = recipe.substr(at, end - at);
    at = end + 1;
    if (line.starts_with("[")) section = line.substr(1, line.find(']') - 1);
    const size_t comment = line.rfind("  # ");
    if (comment == std::string::npos || line.find(" = ") == std::string::npos || line.ends_with("# default")) continue;
    lines.push_back(fmt::format("{}.{}", section, line));
  }
  return lines;
}

void show(const snapshot::InspectReport& found, base::Terminal& terminal) {
  const auto fact = [&](std::string_view name, const std::string& value) {
    terminal.line(base::printable(fmt::format("  {:<12} {}", name, value)));
  };
  terminal.line(base::printable(found.path));
  if (found.step) fact("step", fmt::format("{} (saved by Cairn {})", *found.step, found.version));
  std::vector<std::string> dtypes;
  for (const auto& [dtype, elements] : found.parameters) dtypes.push_back(dtype);
  fact("model", fmt::format("{}, {} parameters, {}", found.shape ? found.shape->family : "no language model",
                            base::human_count(static_cast<double>(elements_of(found))), fmt::join(dtypes, " and ")));
  if (const auto& s = found.shape)
    fact("shape", fmt::format("{} layers, embed {}, {} heads ({} of keys and values), mlp {}, vocab {}, context {}{}", s->layers, s->embed,
                              s->heads, s->kv_heads, s->mlp, s->vocab, s->length, s->tied ? ", tied" : ""));
  if (const auto tokenizer = tokenizer_of(found))
    fact("tokenizer", tokenizer->trouble.empty() ? fmt::format("{}, {} tokens", tokenizer->file, tokenizer->vocab) : tokenizer->trouble);
  if (const auto state = found.texts.find("training/state.json"); state != found.texts.end()) fact("training", state_words(state->second));
  if (const auto recipe = found.texts.find("training/recipe.toml"); recipe != found.texts.end()) {
    const std::vector<std::string> lines = asked_for(recipe->second);
    fact("recipe", lines.empty() ? "every key at its default" : lines[0]);
    for (size_t i = 1; i < lines.size(); ++i) fact("", lines[i]);
  }
  fact("size", fmt::format("{} ({} bytes) in {}", base::human_bytes(found.bytes()), found.bytes(),
                           base::plural(static_cast<int64_t>(found.files.size()), "file")));

  terminal.line(fmt::format("\n{:<44} {:>14}", "file", "bytes"));
  for (const snapshot::SavedFile& file : found.files) terminal.line(base::printable(fmt::format("{:<44} {:>14}", file.name, file.bytes)));
  terminal.line(fmt::format("\n{:<56} {:<5} {:<20} {:>14}  {}", "tensor", "dtype", "shape", "bytes", "file"));
  for (const snapshot::InspectReport::Tensor& tensor : found.tensors)
    terminal.line(base::printable(fmt::format("{:<56} {:<5} {:<20} {:>14}  {}", tensor.entry.name, snapshot::word_of(tensor.entry.dtype),
                                              fmt::format("[{}]", fmt::join(tensor.entry.shape, ", ")),
                                              tensor.entry.end - tensor.entry.begin, tensor.file)));
}

std::string described(const snapshot::Defect& defect) {
  return defect.tensor.empty() ? fmt::format("{}: {}", defect.file, defect.what)
                               : fmt::format("{}: tensor {}: {}", defect.file, defect.tensor, defect.what);
}

base::OrderedJson json_of(const std::string& folder, const snapshot::VerifyReport& result) {
  base::OrderedJson json{{"path", folder},
                         {"whole", result.defects.empty()},
                         {"checksums", result.checksums},
                         {"files", result.files},
                         {"tensors", result.tensors},
                         {"bytes", result.bytes},
                         {"faults", base::OrderedJson::array()}};
  for (const snapshot::Defect& defect : result.defects) {
    base::OrderedJson one{{"file", defect.file}};
    if (!defect.tensor.empty()) one["tensor"] = defect.tensor;
    one["what"] = defect.what;
    json["faults"].push_back(one);
  }
  return json;
}

}  // namespace

int inspect_snapshot(const SnapshotArguments& a) {
  base::Terminal terminal;
  const snapshot::InspectReport found = snapshot::inspect(snapshot::saved_folders(a.source).front());
  if (a.json)
    terminal.line(base::compact(json_of(found)));
  else
    show(found, terminal);
  return 0;
}

int verify_snapshot(const SnapshotArguments& a) {
  base::Terminal terminal;
  const auto side = stderr_terminal();
  const base::RealClock clock;
  base::Progress progress(*side, clock, std::chrono::seconds(5));
  bool whole = true;
  for (const std::string& folder : snapshot::saved_folders(a.source)) {
    const snapshot::VerifyReport result = snapshot::verify(folder, [&](int64_t done, int64_t of) {
      if (side->live() && progress.due())
        progress.update(fmt::format("{}: {} of {}", folder, base::human_bytes(done), base::human_bytes(of)));
    });
    side->end_live();
    whole = whole && result.defects.empty();
    if (a.json) {
      terminal.line(base::compact(json_of(folder, result)));
      continue;
    }
    terminal.line(base::printable(fmt::format("{}: {}: {} in {}, {}{}", folder, result.defects.empty() ? "whole" : "DAMAGED",
                                              base::plural(result.tensors, "tensor"), base::plural(result.files, "file"),
                                              base::human_bytes(result.bytes),
                                              result.checksums ? ", checksums compared" : ", without checksums to compare")));
    for (const snapshot::Defect& defect : result.defects) terminal.line(base::printable("  " + described(defect)));
  }
  return whole ? 0 : 2;
}

}  // namespace cairn::cli
