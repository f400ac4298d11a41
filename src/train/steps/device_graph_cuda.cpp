#include "train/steps/device_graph.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

namespace cairn::train {
namespace {

class CudaGraph final : public DeviceGraph {
 public:
  void capture(const std::function<void()>& work) override {
    c10::cuda::device_synchronize();
    c10::cuda::CUDACachingAllocator::emptyCache();  // a recording has memory of its own, and takes the place of what passes had before
    const c10::cuda::CUDAStreamGuard apart(c10::cuda::getStreamFromPool());  // the default stream cannot be recorded
    graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      try {
        graph_.capture_end();            // the stream must not stay as it is
      } catch (const std::exception&) {  // what went wrong first is told
      }
      throw;
    }
    graph_.capture_end();
  }

  void replay() override { graph_.replay(); }

 private:
  at::cuda::CUDAGraph graph_;
};

}  // namespace

std::unique_ptr<DeviceGraph> make_cuda_graph() { return std::make_unique<CudaGraph>(); }

}  // namespace cairn::train
