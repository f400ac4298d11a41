#include "sync/options.h"

#include "sync/sync.h"

namespace cairn::sync {

base::Schema<SyncOptions> sync_schema() {
  using O = SyncOptions;
  return {"sync.dp",
          "How the replicas of the dp axis come to agree.",
          {{"kind", &O::kind, "The rule.", base::one_of(rule_names())},
           {"bucket_mib", &O::bucket_mib, "Gradients are reduced in runs of about this size, each as soon as backward has completed it.",
            base::more_than(0)}}};
}

}  // namespace cairn::sync
