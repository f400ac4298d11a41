// A file of numbered results that grows while a study runs, and survives its end at any moment.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <vector>

namespace cairn::study {

// Rows of numbers, each with its unit and a checksum. `identity`: of everything that the results depend on.
class ResultRows {
 public:
  // Opens or creates. Rows of a file with another identity are refused, naming the file; an incomplete end is dropped.
  ResultRows(std::filesystem::path path, uint64_t identity);
  ~ResultRows();
  ResultRows(const ResultRows&) = delete;
  ResultRows& operator=(const ResultRows&) = delete;

  std::map<int64_t, std::vector<double>> take() { return std::move(found_); }  // what the file held
  void add(int64_t unit, const std::vector<double>& result);

 private:
  int64_t read(uint64_t identity);

  std::filesystem::path path_;
  int file_ = -1;
  std::map<int64_t, std::vector<double>> found_;
};

}  // namespace cairn::study
