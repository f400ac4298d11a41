#include "parallel/generate/travelling_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <variant>

#include <ATen/core/IListRef.h>

#include "base/check.h"
#include "kernels/aten.h"

namespace cairn::parallel {
namespace {

struct RowHeader {
  int32_t number = 0, slot = 0, home = 0, expert = 0;
};
constexpr size_t kChoiceBytes = sizeof(int32_t) + sizeof(float);  // an expert and its weight

const std::byte* bytes_of(const at::Tensor& tensor) { return static_cast<const std::byte*>(tensor.const_data_ptr()); }

void append_bytes(std::vector<std::byte>& to, const void* from, size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(from);
  to.insert(to.end(), begin, begin + bytes);
}

at::Tensor as_tensor(const std::vector<std::byte>& bytes) {
  const at::Tensor tensor = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

std::vector<at::Tensor> as_tensors(const std::vector<std::vector<std::byte>>& parts) {
  std::vector<at::Tensor> tensors;
  for (const std::vector<std::byte>& part : parts) tensors.push_back(as_tensor(part));
  return tensors;
}

at::Tensor row_index(const std::vector<int64_t>& numbers, at::Device device) {
  const at::Tensor index = at::empty({static_cast<int64_t>(numbers.size())}, at::kLong);
  std::copy(numbers.begin(), numbers.end(), index.mutable_data_ptr<int64_t>());
  return index.to(device);
}

// The messages of equal size in what has arrived, in the order of the senders.
std::vector<const std::byte*> messages_in(const std::vector<at::Tensor>& arrived, size_t stride) {
  std::vector<const std::byte*> messages;
  for (const at::Tensor& part : arrived) {
    const auto bytes = static_cast<size_t>(part.numel());
    CAIRN_CHECK(bytes % stride == 0, "{} bytes of rows, {} for each", bytes, stride);
    for (size_t at = 0; at < bytes; at += stride) messages.push_back(bytes_of(part) + at);
  }
  return messages;
}

RowHeader header_of(const std::byte* message) {
  RowHeader header;
  std::memcpy(&header, message, sizeof(header));
  return header;
}

}  // namespace

ExpertRanks expert_ranks(const mesh::Placement& placement, int rank) {
  const mesh::Placement::How how = placement.on("ep");
  const auto* table = std::get_if<mesh::Ragged>(&how);
  CAIRN_CHECK(table, "experts that are not placed along ep");
  ExpertRanks found{.rank = {}, .local = std::vector<int64_t>(table->owners.size(), -1), .here = 0};
  for (const std::vector<int>& owners : table->owners) found.rank.push_back(owners.front());
  for (const int64_t expert : mesh::ids_of(*table, rank)) found.local[static_cast<size_t>(expert)] = found.here++;
  return found;
}

TravellingRows::TravellingRows(int ranks, int64_t top_k, const at::TensorOptions& options, int64_t embed)
    : ranks_(ranks), top_k_(top_k), options_(options), embed_(embed), item_bytes_(options.dtype().itemsize()) {}

int64_t TravellingRows::pack(const Leaving& rows, const ExpertRanks& experts, int stay) {
  const at::Tensor values = rows.values.cpu().contiguous(), normed = rows.normed.cpu().contiguous();
  const at::Tensor ids = rows.ids.cpu().contiguous(), weights = rows.weights.cpu().to(at::kFloat).contiguous();
  std::vector<std::vector<std::byte>> parts(static_cast<size_t>(ranks_));
  int64_t away = 0;
  for (size_t i = 0; i < rows.numbers.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const int64_t* chosen = ids.const_data_ptr<int64_t>() + at * top_k_;
    const int home = stay >= 0 ? stay : experts.rank.at(static_cast<size_t>(chosen[0]));
    const auto write = [&](int to, int32_t slot, const at::Tensor& of) {
      std::vector<std::byte>& part = parts[static_cast<size_t>(to)];
      const RowHeader header{static_cast<int32_t>(rows.numbers[i]), slot, home, slot < 0 ? -1 : static_cast<int32_t>(chosen[slot])};
      append_bytes(part, &header, sizeof(header));
      for (int64_t k = 0; k < top_k_; ++k) {
        const auto expert = static_cast<int32_t>(chosen[k]);
        append_bytes(part, &expert, sizeof(expert));
      }
      append_bytes(part, weights.const_data_ptr<float>() + at * top_k_, static_cast<size_t>(top_k_) * sizeof(float));
      append_bytes(part, bytes_of(of) + at * value_bytes(), static_cast<size_t>(value_bytes()));
    };
    write(home, -1, values);
    bool leaves = stay < 0 && experts.local[static_cast<size_t>(chosen[0])] < 0;
    for (int64_t k = 0; k < top_k_; ++k) {
      const int rank = experts.rank.at(static_cast<size_t>(chosen[k]));
      if (rank == home) continue;
      write(rank, static_cast<int32_t>(k), normed);
      leaves = leaves || stay >= 0;
    }
    away += leaves ? 1 : 0;
  }
  parts_ = as_tensors(parts);
  return away;
}

void TravellingRows::unpack(const std::vector<at::Tensor>& arrived) {
  const size_t before = sizeof(RowHeader) + static_cast<size_t>(top_k_) * kChoiceBytes;
  std::vector<const std::byte*> rows, copies;
  for (const std::byte* message : messages_in(arrived, before + static_cast<size_t>(value_bytes())))
    (header_of(message).slot < 0 ? rows : copies).push_back(message);
  std::sort(rows.begin(), rows.end(), [](const auto* a, const auto* b) { return header_of(a).number < header_of(b).number; });
  const auto values = [&](const std::vector<const std::byte*>& messages) {
    const at::Tensor all = at::empty({static_cast<int64_t>(messages.size()), embed_}, options_.device(at::kCPU));
    auto* to = static_cast<std::byte*>(all.mutable_data_ptr());
    for (size_t i = 0; i < messages.size(); ++i)
      std::memcpy(to + static_cast<int64_t>(i) * value_bytes(), messages[i] + before, static_cast<size_t>(value_bytes()));
    return all.to(options_.device());
  };
  const at::Tensor weights = at::empty({static_cast<int64_t>(rows.size()), top_k_}, at::kFloat);
  const size_t of_ids = static_cast<size_t>(top_k_) * sizeof(int32_t);
  for (size_t i = 0; i < rows.size(); ++i) {
    numbers_.push_back(header_of(rows[i]).number);
    std::vector<int32_t> ids(static_cast<size_t>(top_k_));
    std::memcpy(ids.data(), rows[i] + sizeof(RowHeader), of_ids);
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    std::memcpy(weights.mutable_data_ptr<float>() + static_cast<int64_t>(i) * top_k_, rows[i] + sizeof(RowHeader) + of_ids,
                static_cast<size_t>(top_k_) * sizeof(float));
  }
  weights_ = weights.to(options_.device());
  residents_ = values(rows);
  copied_ = values(copies);
  for (const std::byte* message : copies) {
    const RowHeader header = header_of(message);
    CAIRN_CHECK(header.slot < top_k_ && header.home >= 0 && header.home < ranks_, "a copy for slot {}, home {}", header.slot, header.home);
    copies_.push_back({header.number, header.slot, header.home, header.expert});
  }
}

TravellingRows::ExpertInput TravellingRows::by_expert(const at::Tensor& normed, const ExpertRanks& experts) const {
  struct Slot {
    int64_t expert, row, source;
  };
  std::vector<Slot> slots;
  for (size_t slot = 0; slot < ids_.size(); ++slot)
    if (const int64_t local = experts.local.at(static_cast<size_t>(ids_[slot])); local >= 0)
      slots.push_back({local, static_cast<int64_t>(slot) / top_k_, static_cast<int64_t>(slot)});
  for (size_t i = 0; i < copies_.size(); ++i) {
    const int64_t local = experts.local.at(static_cast<size_t>(copies_[i].expert));
    CAIRN_CHECK(local >= 0, "a row for expert {}, which is on another rank", copies_[i].expert);
    slots.push_back({local, normed.size(0) + static_cast<int64_t>(i), -1 - static_cast<int64_t>(i)});
  }
  std::stable_sort(slots.begin(), slots.end(), [](const Slot& a, const Slot& b) { return a.expert < b.expert; });
  std::vector<int64_t> counts(static_cast<size_t>(experts.here), 0), order;
  ExpertInput input;
  for (const Slot& slot : slots) {
    counts[static_cast<size_t>(slot.expert)] += 1;
    order.push_back(slot.row);
    input.source.push_back(slot.source);
  }
  input.rows = at::cat({normed, copied_}).index_select(0, row_index(order, options_.device()));
  input.groups = kernels::RowGroups(counts);
  return input;
}

at::Tensor TravellingRows::collect(const at::Tensor& results, const ExpertInput& input) {
  const auto n = static_cast<int64_t>(numbers_.size());
  const at::Tensor mine = at::zeros({n, top_k_, embed_}, options_);
  std::vector<int64_t> slots, rows;
  std::vector<std::vector<std::byte>> parts(static_cast<size_t>(ranks_));
  const at::Tensor host = results.cpu().contiguous();
  for (size_t i = 0; i < input.source.size(); ++i) {
    const int64_t source = input.source[i], at = static_cast<int64_t>(i);
    if (source >= 0) {
      slots.push_back(source), rows.push_back(at);
      continue;
    }
    const Copy& copy = copies_[static_cast<size_t>(-1 - source)];
    std::vector<std::byte>& part = parts[static_cast<size_t>(copy.home)];
    const RowHeader header{copy.number, copy.slot, copy.home, copy.expert};
    append_bytes(part, &header, sizeof(header));
    append_bytes(part, bytes_of(host) + at * value_bytes(), static_cast<size_t>(value_bytes()));
  }
  mine.view({-1, embed_}).index_copy_(0, row_index(slots, options_.device()), results.index_select(0, row_index(rows, options_.device())));
  parts_ = as_tensors(parts);
  return mine;
}

void TravellingRows::take_results(const std::vector<at::Tensor>& arrived, const at::Tensor& results) const {
  const std::vector<const std::byte*> messages = messages_in(arrived, sizeof(RowHeader) + static_cast<size_t>(value_bytes()));
  std::vector<int64_t> slots;
  const at::Tensor values = at::empty({static_cast<int64_t>(messages.size()), embed_}, options_.device(at::kCPU));
  for (size_t i = 0; i < messages.size(); ++i) {
    const RowHeader header = header_of(messages[i]);
    const auto row = std::lower_bound(numbers_.begin(), numbers_.end(), header.number);
    CAIRN_CHECK(row != numbers_.end() && *row == header.number && header.slot >= 0 && header.slot < top_k_,
                "the result of an expert for row {}, which is on another rank", header.number);
    slots.push_back((row - numbers_.begin()) * top_k_ + header.slot);
    std::memcpy(static_cast<std::byte*>(values.mutable_data_ptr()) + static_cast<int64_t>(i) * value_bytes(),
                messages[i] + sizeof(RowHeader), static_cast<size_t>(value_bytes()));
  }
  results.view({-1, embed_}).index_copy_(0, row_index(slots, options_.device()), values.to(options_.device()));
}

}  // namespace cairn::parallel
