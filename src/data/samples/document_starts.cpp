#include "data/samples/document_starts.h"

#include <algorithm>
#include <bit>
#include <unordered_set>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

namespace cairn::data {

void add_document_starts(mesh::Batch& batch) {
  const auto found = batch.fields.find("documents");
  if (found == batch.fields.end()) return;
  const at::Tensor& documents = found->second.tensor;
  const int64_t samples = documents.size(0), length = documents.size(1);
  const auto* id = documents.const_data_ptr<int64_t>();
  std::vector<std::vector<int32_t>> starts(static_cast<size_t>(samples));
  size_t most = 1, all = 0;
  bool in_one_piece = true;
  std::unordered_set<int64_t> seen;
  for (std::vector<int32_t>& row : starts) {
    seen.clear();
    for (int64_t i = 0; i < length; ++i) {
      if (i > 0 && id[i] == id[i - 1]) continue;
      in_one_piece = in_one_piece && seen.insert(id[i]).second;  // two parts of one document would be attended to as two documents
      row.push_back(static_cast<int32_t>(i));
    }
    most = std::max(most, row.size());
    all += row.size();
    id += length;
  }
  most = std::bit_ceil(most);  // few distinct shapes: cuDNN plans and CUDA graphs are made for each
  if (!in_one_piece) starts.assign(starts.size(), {}), most = 0;
  const at::Tensor table = at::empty({samples, static_cast<int64_t>(most)}, at::kInt);
  auto* to = table.mutable_data_ptr<int32_t>();
  for (const std::vector<int32_t>& row : starts) {
    std::copy(row.begin(), row.end(), to);
    std::fill(to + row.size(), to + most, static_cast<int32_t>(length));
    to += most;
  }
  batch.fields["documents_counted"] = {at::zeros({static_cast<int64_t>(std::bit_ceil(all))}, at::kByte), mesh::Field::Shape::whole};
  batch.fields["document_starts"] = {table, mesh::Field::Shape::per_sample};
}

}  // namespace cairn::data
