// What the proofs of document selection share: the program's commands, and trained models to measure with.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/selection/subset_file.h"
#include "study/claims.h"

namespace cairn::study {

// Runs `cairn` in `folder`, with a cache there. Fails the proof unless it ends well. Returns what it printed.
std::string run_select_program(const ProofOptions& options, const std::filesystem::path& folder, const std::vector<std::string>& arguments);

// `cairn select` with these arguments; --out is `out`.
data::DocumentSubset run_selection(const ProofOptions& options, const std::filesystem::path& folder, std::vector<std::string> arguments,
                                   const std::string& out);

// `--report` for such arguments, where pictures are wanted; nothing otherwise. keep_picture() takes scores.svg of that report as NAME.svg.
std::vector<std::string> report_arguments(const ProofOptions& options);
void keep_picture(const ProofOptions& options, const std::filesystem::path& folder, const std::string& name);

// `cairn train` with --set for each of `sets`; the run is FOLDER/OUT.
void train_model(const ProofOptions& options, const std::filesystem::path& folder, const std::string& out,
                 const std::vector<std::string>& sets);

// The mean loss of a model's run on a file, by `cairn eval`.
double held_out_loss(const ProofOptions& options, const std::filesystem::path& folder, const std::string& run, const std::string& file,
                     const std::string& chat_template = "plain");

// The paragraphs of a text file of at least `bytes_min` bytes, at most `count`, evenly spread over the file, each at most `bytes_max` long;
// of a text with fewer than a quarter of `count`, as many pieces that do not overlap. All are well-formed UTF-8. Refuses a text that is
// too short for 60.
std::vector<std::string> paragraphs_of(const std::string& file, int64_t count, int64_t bytes_min, int64_t bytes_max);
// Built-in stories, each at most `bytes_max` long.
std::vector<std::string> built_in_stories(int64_t count, uint64_t seed, int64_t bytes_max);

// {"text": ...} for each, one a line.
void write_texts(const std::filesystem::path& file, const std::vector<std::string>& texts);

}  // namespace cairn::study
