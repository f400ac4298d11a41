#include "optim/active_set.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kernels/aten.h"

namespace cairn::optim {
namespace {

template <typename T>
at::Tensor tensor_of(std::vector<T> values, at::ScalarType dtype) {
  return at::from_blob(values.data(), {std::ssize(values)}, at::TensorOptions().dtype(dtype)).clone();
}
at::Tensor whole_numbers(const std::vector<int64_t>& values) { return tensor_of(values, at::kLong); }

}  // namespace

ActiveSet::ActiveSet(std::vector<Member> members) : members_(std::move(members)) {
  for (size_t i = 0; i < members_.size(); ++i) places_[members_[i].name] = i;
}

size_t ActiveSet::index(std::string_view name) const {
  const auto found = places_.find(name);
  if (found == places_.end()) base::fail_input("{}: is not trained, so it can be neither frozen nor active. See model.train.", name);
  return found->second;
}

ActiveSet::Member& ActiveSet::at(std::string_view name) {
  Member& member = members_[index(name)];
  ++version_;
  return member;
}

bool ActiveSet::trivial() const {
  return std::all_of(members_.begin(), members_.end(), [](const Member& one) {
    return one.active && !one.by_element && one.boxes.empty() && one.learning_rate_factor == 1 && one.missed == 0;
  });
}

void ActiveSet::begin(Member& member, int64_t updates) {
  CAIRN_CHECK(updates >= member.since, "{} changes after update {}, and has changed after {}", member.name, updates, member.since);
  if (!member.active) member.missed += updates - member.since;
  member.since = updates;
}

void ActiveSet::freeze(std::string_view name, int64_t updates) {
  Member& member = at(name);
  begin(member, updates);
  member.active = false;
  member.boxes.clear();
}

void ActiveSet::activate(std::string_view name, int64_t updates) {
  Member& member = at(name);
  begin(member, updates);
  member.active = true;
  member.boxes.clear();
}

void ActiveSet::activate(std::string_view name, std::vector<mesh::Box> boxes, int64_t updates) {
  const mesh::Box all = mesh::whole(members_[index(name)].shape);
  std::erase_if(boxes, [](const mesh::Box& one) { return one.elements() == 0; });
  if (boxes.empty()) return freeze(name, updates);
  for (size_t i = 0; i < boxes.size(); ++i) {
    CAIRN_CHECK(mesh::contains(all, boxes[i]), "{}: {} is not inside {}", name, mesh::to_string(boxes[i]), mesh::to_string(all));
    for (size_t j = 0; j < i; ++j)
      CAIRN_CHECK(!mesh::intersect(boxes[i], boxes[j]), "{}: {} and {} overlap", name, mesh::to_string(boxes[j]),
                  mesh::to_string(boxes[i]));
  }
  if (boxes.size() == 1 && boxes.front() == all) return activate(name, updates);
  Member& member = at(name);
  CAIRN_CHECK(member.by_element, "{}: its elements do not count their updates (ActiveSet::track_elements)", name);
  begin(member, updates);
  member.active = true;
  member.boxes = std::move(boxes);
}

void ActiveSet::restart(std::string_view name, int64_t updates) {
  Member& member = at(name);
  begin(member, updates);
  member.missed = updates;
}

// Boxes are rows of numbers: the member, then begin and end of each dim, and -1 for the dims that it does not have.
mesh::NamedTensors ActiveSet::state() const {
  if (trivial()) return {};
  std::vector<int64_t> active, missed, since, boxes;
  std::vector<double> factors;
  size_t dims = 0;
  for (const Member& one : members_) dims = std::max(dims, one.shape.size());
  for (size_t i = 0; i < members_.size(); ++i) {
    const Member& one = members_[i];
    active.push_back(one.active ? 1 : 0);
    missed.push_back(one.missed);
    since.push_back(one.since);
    factors.push_back(one.learning_rate_factor);
    for (const mesh::Box& box : one.boxes) {
      boxes.push_back(static_cast<int64_t>(i));
      for (size_t d = 0; d < dims; ++d) {
        boxes.push_back(d < box.dims.size() ? box.dims[d].begin : -1);
        boxes.push_back(d < box.dims.size() ? box.dims[d].end : -1);
      }
    }
  }
  return {{"active", whole_numbers(active)},
          {"missed", whole_numbers(missed)},
          {"since", whole_numbers(since)},
          {"learning_rate_factor", tensor_of(factors, at::kDouble)},
          {"boxes", whole_numbers(boxes).view({-1, 1 + 2 * static_cast<int64_t>(dims)})}};
}

void ActiveSet::restore(const mesh::NamedTensors& state) {
  const auto called = [&](std::string_view name) {
    const auto found = std::find_if(state.begin(), state.end(), [&](const mesh::NamedTensor& one) { return one.name == name; });
    if (found == state.end()) base::fail_input("the saved active set has no tensor {}: the snapshot is damaged, use an earlier one", name);
    return found->tensor.to(at::kCPU).contiguous();
  };
  const at::Tensor active = called("active"), missed = called("missed"), since = called("since"), factors = called("learning_rate_factor");
  const auto n = std::ssize(members_);
  for (const at::Tensor& one : {active, missed, since, factors})
    if (one.dim() != 1 || one.size(0) != n)
      base::fail_input("the saved active set is of {} parameters, and {} are trained: resume with the same model.train", one.numel(), n);
  if (active.scalar_type() != at::kLong || missed.scalar_type() != at::kLong || since.scalar_type() != at::kLong ||
      factors.scalar_type() != at::kDouble)
    base::fail_input("the saved active set has numbers of other types: the snapshot is damaged, use an earlier one");
  for (int64_t i = 0; i < n; ++i) {
    Member& one = members_[static_cast<size_t>(i)];
    one.active = active.const_data_ptr<int64_t>()[i] != 0;
    one.missed = missed.const_data_ptr<int64_t>()[i];
    one.since = since.const_data_ptr<int64_t>()[i];
    one.learning_rate_factor = factors.const_data_ptr<double>()[i];
    one.boxes.clear();
  }
  const at::Tensor boxes = called("boxes");
  if (boxes.scalar_type() != at::kLong || boxes.dim() != 2 || (boxes.size(0) > 0 && boxes.size(1) % 2 == 0))
    base::fail_input("the boxes of the saved active set have another form: the snapshot is damaged, use an earlier one");
  for (int64_t b = 0; b < boxes.size(0); ++b) {
    const int64_t* const row = boxes.const_data_ptr<int64_t>() + b * boxes.size(1);
    if (row[0] < 0 || row[0] >= n) base::fail_input("a box of the saved active set is of no parameter: use an earlier snapshot");
    Member& one = members_[static_cast<size_t>(row[0])];
    mesh::Box box;
    for (size_t d = 0; d < one.shape.size() && 2 * static_cast<int64_t>(d) + 2 < boxes.size(1); ++d)
      box.dims.push_back({row[1 + 2 * d], row[2 + 2 * d]});
    if (!one.by_element || !mesh::contains(mesh::whole(one.shape), box))
      base::fail_input("{}: a box of the saved active set does not fit it: resume with the same recipe", one.name);
    one.boxes.push_back(std::move(box));
  }
  ++version_;
}

}  // namespace cairn::optim
