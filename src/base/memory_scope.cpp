#include "base/memory_scope.h"

#include <utility>

namespace cairn::base {
namespace {

thread_local std::string_view phase_now, part_now;

}  // namespace

MemoryScope::MemoryScope(std::string_view phase, std::string_view part)
    : phase_before_(std::exchange(phase_now, phase)), part_before_(std::exchange(part_now, part)) {}

MemoryScope::~MemoryScope() {
  phase_now = phase_before_;
  part_now = part_before_;
}

std::string MemoryScope::now() {
  if (phase_now.empty()) return "other";
  std::string text(phase_now);
  if (!part_now.empty()) text.append(", ").append(part_now);
  return text;
}

}  // namespace cairn::base
