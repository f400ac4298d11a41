// Says that tensors are about to change, to whoever still reads them: a snapshot that is copied while training goes on
// (train/state/lazy_copier.h). The name is that of garbage collectors: code that runs just before a mutation.
//
// Everything that changes a tensor which snapshots hold calls before_write first: optimizers by piece, sync rules before an outer step,
// steps with an update rule of their own. A method states that it does (announces_writes in its needs); the trainer waits for every copy
// before one that does not.
#pragma once
#include <ATen/core/Tensor.h>

namespace cairn::mesh {

class WriteBarrier {
 public:
  virtual ~WriteBarrier() = default;
  // Waits until nobody reads this tensor's memory any more: on an accelerator the current stream waits, and the host only where a copy has
  // not begun. Kernels enqueued afterwards may write.
  virtual void before_write(const at::Tensor& tensor) = 0;
  virtual void before_writing_all() = 0;
  // Whether before_write would hold up the host now. A caller may do other work first.
  virtual bool would_wait(const at::Tensor& tensor) const = 0;
  // False: the calls above do nothing now, and may be left out.
  virtual bool active() const = 0;
};

// For those who may have none.
inline void before_write(WriteBarrier* barrier, const at::Tensor& tensor) {
  if (barrier != nullptr && barrier->active() && tensor.defined()) barrier->before_write(tensor);
}
inline void before_writing_all(WriteBarrier* barrier) {
  if (barrier != nullptr && barrier->active()) barrier->before_writing_all();
}

}  // namespace cairn::mesh
