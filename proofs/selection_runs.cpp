#include "proofs/selection_runs.h"

#include <algorithm>
#include <fstream>
#include <string_view>

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
constexpr int64_t kParagraphsMin = 60;

// Where a piece of at most `bytes` bytes from `at` ends: between two characters. The text is well-formed UTF-8.
size_t end_of_piece(std::string_view text, size_t at, size_t bytes) {
  size_t end = std::min(at + bytes, text.size());
  while (end < text.size() && end > at + 1 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return end;
}

std::string cut_to(const std::string& text, int64_t bytes_max) {
  return text.substr(0, end_of_piece(text, 0, static_cast<size_t>(bytes_max)));
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

std::vector<std::string> report_arguments(const ProofOptions& options) {
  return options.pictures.empty() ? std::vector<std::string>() : std::vector<std::string>{"--report", "report"};
}

void keep_picture(const ProofOptions& options, const std::filesystem::path& folder, const std::string& name) {
  if (options.pictures.empty()) return;
  std::filesystem::copy_file(folder / "report" / "scores.svg", std::filesystem::path(options.pictures) / (name + ".svg"),
                             std::filesystem::copy_options::overwrite_existing);
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
  std::string text = base::valid_utf8(base::read_file(file, kTextBytesMax));
  std::erase(text, '\r');
  const auto bytes = static_cast<int64_t>(text.size());
  std::vector<std::string> all;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find("\n\n", at), text.size());
    if (static_cast<int64_t>(end - at) >= bytes_min) all.push_back(cut_to(text.substr(at, end - at), bytes_max));
    at = text.find_first_not_of('\n', end);
  }
  // A text with no blank lines, or with few: pieces of all of it, which have nothing to do with its lines.
  if (static_cast<int64_t>(all.size()) < std::max(kParagraphsMin, count / 4)) {
    all.clear();
    const auto piece = static_cast<size_t>(std::clamp(bytes / count, bytes_min, bytes_max));
    for (size_t at = 0, end = 0; at < text.size(); at = end) {
      end = end_of_piece(text, at, piece);
      if (static_cast<int64_t>(end - at) >= bytes_min - 3) all.push_back(text.substr(at, end - at));  // a character has up to four bytes
    }
  }
  if (static_cast<int64_t>(all.size()) < kParagraphsMin)
    base::fail_input("--data {}: {} bytes of text are too few. Give a text of at least {} bytes.", file, bytes,
                     kParagraphsMin * (bytes_min + 3));
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
