#include "task/predictor.h"

#include <algorithm>

#include <ATen/core/IListRef.h>

#include "base/check.h"
#include "comm/group.h"
#include "kernels/aten.h"
#include "task/calls.h"

namespace cairn::task {
namespace {

constexpr int64_t kFiller = -1;

// Gathers the rows of all ranks as bytes, whatever their dtype.
at::Tensor gathered(comm::Group& replicas, const at::Tensor& rows, const std::string& name) {
  const at::Tensor mine = rows.contiguous();
  std::vector<int64_t> shape = mine.sizes().vec();
  shape[0] *= replicas.size();
  const at::Tensor all = at::empty(shape, mine.options());
  replicas
      .all_gather(comm::Span{all.mutable_data_ptr(), static_cast<int64_t>(all.nbytes()), comm::Dtype::u8},
                  comm::Span{mine.mutable_data_ptr(), static_cast<int64_t>(mine.nbytes()), comm::Dtype::u8}, {comm::Purpose::data, name})
      .wait_host();
  return all;
}

void check_alike(const Outputs& first, const Outputs& now) {
  for (const auto& [name, tensor] : now) {
    const auto found = first.find(name);
    if (first.size() == now.size() && found != first.end() && found->second.sizes() == tensor.sizes() &&
        found->second.dtype() == tensor.dtype())
      continue;
    base::fail_input("predict's output \"{}\" differs in shape or dtype from batch to batch: cut or pad it to one", name);
  }
}

}  // namespace

Outputs predict_all(const Deployer& deployer, const TaskFunctions& functions, const Params& params, const Examples& examples,
                    int64_t batch) {
  if (batch < 1) base::fail_input("a predictor's batch is {}: must be at least 1", batch);
  if (examples.count == 0) return {};
  const int64_t batches = (examples.count + batch - 1) / batch, dp = deployer.dp();
  const base::Random random = deployer.random("task.predict");
  const Params here = params.map([&](const at::Tensor& tensor) { return tensor.detach().to(deployer.device()); });
  std::map<std::string, std::vector<at::Tensor>> parts;
  Outputs first;
  // Ranks with fewer micro-batches repeat the last one as padding, so that every rank knows the shapes of the outputs.
  for (int64_t round = 0; round < (batches + dp - 1) / dp; ++round) {
    const int64_t mine = round * dp + deployer.replica(), index = std::min(mine, batches - 1);
    std::vector<int64_t> run, places;
    for (int64_t i = index * batch; i < (index + 1) * batch; ++i) {
      run.push_back(std::min(i, examples.count - 1));
      places.push_back(mine < batches && i < examples.count ? i : kFiller);
    }
    Outputs outputs =
        outputs_of(functions, random.for_index(static_cast<uint64_t>(index)), here, collated(examples, run, deployer.device()));
    if (first.empty()) first = outputs;
    check_alike(first, outputs);
    for (const auto& [name, tensor] : outputs) parts[name].push_back(tensor.cpu());
    parts[""].push_back(at::tensor(places, at::kLong));
  }
  Outputs all;
  for (const auto& [name, tensors] : parts) all[name] = gathered(deployer.replicas(), at::cat(tensors), name.empty() ? "places" : name);
  const at::Tensor places = std::get<0>(all.at("").sort()), order = std::get<1>(all.at("").sort());
  const at::Tensor wanted = order.narrow(0, places.size(0) - examples.count, examples.count);  // padding comes first
  all.erase("");
  for (auto& [name, tensor] : all) tensor = tensor.index_select(0, wanted);
  return all;
}

std::vector<std::string> texts_of(const TaskFunctions& functions, const Outputs& outputs, int64_t examples) {
  if (!functions.postprocess) base::fail_input("the task has no postprocess: give it one, or take the outputs themselves");
  std::vector<std::string> texts = examples == 0 ? std::vector<std::string>{} : functions.postprocess(outputs);
  if (static_cast<int64_t>(texts.size()) != examples)
    base::fail_input("postprocess made {} texts from the outputs of {} examples: one for each", texts.size(), examples);
  return texts;
}

}  // namespace cairn::task
