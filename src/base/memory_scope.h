#pragma once
#include <string>
#include <string_view>

namespace cairn::base {

// RAII: names what this thread allocates for while the object lives, for the memory report (train/report/memory_report.h). Scopes nest; the
// innermost one counts. Costs two assignments.
class MemoryScope {
 public:
  explicit MemoryScope(std::string_view phase, std::string_view part = {});  // both must outlive it
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

  static std::string now();  // "forward, mlp"; "other" outside any scope

 private:
  std::string_view phase_before_, part_before_;
};

}  // namespace cairn::base
