// What came of a study of domain experts, for people and for other programs.
#pragma once
#include <filesystem>
#include <string>

#include "study/hdee.h"

namespace cairn::study {

// Experts, parity, perplexities by domain and mode with the lowest marked, and who was trusted on what.
std::string to_tables(const HdeeResult& result);

// The plan alone, before anything is trained.
std::string to_tables(const HdeePlan& plan);

// results.json, and report.html with the tables and the drawings.
void write_report(const HdeeResult& result, const std::filesystem::path& folder);

}  // namespace cairn::study
