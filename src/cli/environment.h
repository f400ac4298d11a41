#pragma once
#include <filesystem>
#include <optional>
#include <string>

namespace cairn::cli {

// What the environment says; the only place that asks it.
std::optional<std::string> variable(const char* name);
void set_variable(const char* name, const std::string& value);  // before there are threads

// Where things are kept between runs: $CAIRN_CACHE, else $XDG_CACHE_HOME/cairn, else ~/.cache/cairn. Empty where none can be had.
std::filesystem::path cache_folder();

// This program's own file.
std::filesystem::path own_program();

// Processors this process may use.
int processors();

}  // namespace cairn::cli
