// The results of an HDEE study, as tables, JSON and HTML.
#pragma once
#include <filesystem>
#include <string>

#include "study/hdee.h"

namespace cairn::study {

// Experts, compute parity, perplexities by domain and mode (lowest marked), and posteriors.
std::string to_tables(const HdeeResult& result);

// The plan alone.
std::string to_tables(const HdeePlan& plan);

// Writes results.json, and report.html with tables and pictures.
void write_report(const HdeeResult& result, const std::filesystem::path& folder);

}  // namespace cairn::study
