// The records of ranks as a file: what agents of several machines exchange, and what `cairn diagnose` reads after a run.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "elastic/diagnosis/rank_view.h"

namespace cairn::elastic {

// RUN/diagnosis/
std::filesystem::path diagnosis_folder(const std::filesystem::path& run);

// The newest records of these ranks: all open operations and the last others, the messages of a few windows.
std::string to_json(const std::vector<RankView>& ranks);
// Throws corrupt_file and says what is wrong. `origin` names the file.
std::vector<RankView> views_from_json(std::string_view json, const std::string& origin);

// Writes RUN/diagnosis/machine-N.json, N the first of these ranks, whole or not at all.
void write_views(const std::filesystem::path& run, const std::vector<RankView>& ranks);
std::vector<RankView> read_view_file(const std::filesystem::path& file);
// Of all machines, in rank order. Empty: there are no files.
std::vector<RankView> read_views(const std::filesystem::path& run);

}  // namespace cairn::elastic
