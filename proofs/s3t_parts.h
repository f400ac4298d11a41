// The parts of the proof of S3T.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/random.h"
#include "proofs/s3t_stores.h"
#include "unlearn/live.h"
#include "unlearn/partition.h"

namespace cairn::study {

class Findings;
struct ProofOptions;

// The names of artifacts that are live, and of those that are served.
std::vector<std::string> live_names(const unlearn::Store& store);
std::vector<std::string> served_names(const unlearn::Store& store);
// Of these artifacts of a store, those that another store has not, or with other bytes.
int64_t differing(const unlearn::Store& a, const unlearn::Store& b, const std::vector<std::string>& names);

// The chains that a store serves when its slices have lost so many records, with only so many of its orders.
std::vector<std::vector<unlearn::Artifact>> chains_after(const unlearn::Store& store,
                                                         const std::map<std::string, unlearn::Artifact>& artifacts,
                                                         const unlearn::DeletedCounts& hits, int64_t budget);
bool anyone_answers(const std::vector<std::vector<unlearn::Artifact>>& chains);

// A random stream of deletions of records, as counts by slice.
class DeletionStream {
 public:
  DeletionStream(const unlearn::Store& store, const base::Random& random);
  const unlearn::DeletedCounts& hits() const { return hits_; }
  void take();

 private:
  unlearn::Partition partition_;
  base::Random random_;
  uint64_t drawn_ = 0;
  unlearn::DeletedCounts hits_;
};

void prove_s3t_retention(const ProofOptions& options, const S3tStores& stores, const unlearn::Store& s3t, const unlearn::Store& sisa,
                         Findings& findings, base::Log& log);
void prove_s3t_downtime(const ProofOptions& options, const S3tStores& stores, const unlearn::Store& s3t, const unlearn::Store& sisa,
                        Findings& findings, base::Log& log);
void prove_s3t_cache(const ProofOptions& options, const S3tStores& stores, Findings& findings);
void prove_s3t_crashes(const ProofOptions& options, const S3tStores& stores, const unlearn::Store& whole, int64_t record,
                       Findings& findings);
void prove_s3t_layouts(const ProofOptions& options, const S3tStores& stores, Findings& findings, base::Log& log);

}  // namespace cairn::study
