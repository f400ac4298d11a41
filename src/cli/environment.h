#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace cairn::cli {

// Environment variables. Only this file reads them. An empty variable counts as unset.
std::optional<std::string> variable(const char* name);
void set_variable(const char* name, const std::string& value);  // before there are threads

// The cache folder: $CAIRN_CACHE, else $XDG_CACHE_HOME/cairn, else ~/.cache/cairn. Empty if none of these is set.
std::filesystem::path cache_folder();

// The file of the running program.
std::filesystem::path own_program();

// Processors this process may use: its affinity mask, limited by the container's CPU quota.
int processors();

// Compute threads of each of so many ranks that share these processors; OMP_NUM_THREADS, where it is set, whatever they share. Refuses
// what is not a number above 0.
int threads_among(int ranks);

// The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them. Does not start CUDA.
std::vector<std::string> visible_gpus();

// Makes one GPU visible to this process: local rank modulo the number of GPUs. Call it before CUDA starts.
void select_gpu(int local_rank);

}  // namespace cairn::cli
