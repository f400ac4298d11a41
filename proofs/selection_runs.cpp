#include "proofs/selection_runs.h"

#include <algorithm>
#include <fstream>

#include <fmt/format.h>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "base/text.h"
#include "data/corpus/source.h"
#include "study/process.h"

namespace cairn::study {
namespace {

constexpr double kSelectSecondsMax = 280;
constexpr int64_t kTextBytesMax = int64_t{1} << 30;

std::string cut_to(std::string text, int64_t bytes_max) {
  if (static_cast<int64_t>(text.size()) > bytes_max) text.resize(static_cast<size_t>(bytes_max));
  return base::valid_utf8(text);
}

}  // namespace

std::string run_select_program(const ProofOptions& options, const std::filesystem::path& folder,
                               const std::vector<std::string>& arguments) {
  std::vector<std::string> command{"env", "-C", folder.string(), "CAIRN_CACHE=" + (folder / "cache").string(), options.program};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const ProcessResult ended = run_program_for(std::chrono::duration<double>(kSelectSecondsMax), command, (folder / "program.log").string());
  if (ended.exit_code != 0)
    throw Error(Error::Kind::broken_invariant,
                fmt::format("cairn {} ended with exit code {}: {}", arguments[0], ended.exit_code, ended.output));
  return ended.output;
}

data::DocumentSubset run_selection(const ProofOptions& options, const std::filesystem::path& folder, std::vector<std::string> arguments,
                                   const std::string& out) {
  arguments.insert(arguments.begin(), "select");
  arguments.insert(arguments.end(), {"--out", out});
  run_select_program(options, folder, arguments);
  return data::read_subset((folder / out).string());
}

void train_model(const ProofOptions& options, const std::filesystem::path& folder, const std::string& out,
                 const std::vector<std::string>& sets) {
  std::vector<std::string> command{"train", "--out", out, "--seed", std::to_string(options.seed)};
  for (const std::string& set : sets) command.insert(command.end(), {"--set", set});
  for (const char* set : {"log.samples=0", "log.tensorboard=false", "log.trace=false"}) command.insert(command.end(), {"--set", set});
  run_select_program(options, folder, command);
}

double held_out_loss(const ProofOptions& options, const std::filesystem::path& folder, const std::string& run, const std::string& file,
                     const std::string& chat_template) {
  const std::string said = run_select_program(
      options, folder, {"eval", run, "--data", file, "--json", "--batch", "64", "--set", "data.template=" + chat_template});
  const size_t begin = said.find('{');
  const base::Json result = base::parse_json(said.substr(begin == std::string::npos ? 0 : begin));
  CAIRN_CHECK(result.is_object(), "cairn eval printed {}", said);
  return result["results"][0]["loss"].get<double>();
}

std::vector<std::string> paragraphs_of(const std::string& file, int64_t count, int64_t bytes_min, int64_t bytes_max) {
  std::string text = base::read_file(file, kTextBytesMax);
  std::erase(text, '\r');
  std::vector<std::string> all;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find("\n\n", at), text.size());
    if (static_cast<int64_t>(end - at) >= bytes_min) all.push_back(cut_to(text.substr(at, end - at), bytes_max));
    at = text.find_first_not_of('\n', end);
  }
  // A text with one paragraph to a line, or short ones: lines together.
  for (size_t at = 0; static_cast<int64_t>(all.size()) < count / 4 && at < text.size(); at += static_cast<size_t>(bytes_max))
    all.push_back(cut_to(text.substr(at), bytes_max));
  if (all.size() < 60) base::fail_input("--data {}: has {} paragraphs; give a text with at least 60", file, all.size());
  std::vector<std::string> some;
  const auto wanted = std::min<size_t>(all.size(), static_cast<size_t>(count));
  for (size_t i = 0; i < wanted; ++i) some.push_back(all[i * all.size() / wanted]);
  return some;
}

std::vector<std::string> built_in_stories(int64_t count, uint64_t seed, int64_t bytes_max) {
  const data::Documents stories = data::generate_stories(seed, count * 2000);
  std::vector<std::string> texts;
  for (int64_t i = 0; i < std::min(count, stories.size()); ++i) texts.push_back(cut_to(std::string(stories[i]), bytes_max));
  CAIRN_CHECK(static_cast<int64_t>(texts.size()) == count, "{} stories of {}", texts.size(), count);
  return texts;
}

void write_texts(const std::filesystem::path& file, const std::vector<std::string>& texts) {
  std::string lines;
  for (const std::string& text : texts) lines += base::compact(base::OrderedJson{{"text", text}}) + "\n";
  base::write_atomically(file, lines);
}

}  // namespace cairn::study
