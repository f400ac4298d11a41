#pragma once
#include <string>
#include <string_view>

namespace cairn::base {

// Says what this thread allocates for while one lives, for whoever counts it (train/report/memory_report.h). The innermost one holds. Costs
// two assignments.
class MemoryScope {
 public:
  explicit MemoryScope(std::string_view phase, std::string_view part = {});  // both must outlive it
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

  static std::string now();  // "forward, mlp"; "other" where nothing is said

 private:
  std::string_view phase_before_, part_before_;
};

}  // namespace cairn::base
