// The list of proofs. A new one is a file beside this and one line here.
#include "study/claims.h"

namespace cairn::study {

void prove_same_answer(const ProofOptions&, Findings&, base::Log&);
void prove_hostile(const ProofOptions&, Findings&, base::Log&);

const std::vector<Proof>& proofs() {
  static const std::vector<Proof> list{
      {"same-answer", "The same losses on any number of ranks, and after any interruption.", prove_same_answer},
      {"hostile", "Bad files are refused with a clear message, within a second, in bounded memory.", prove_hostile}};
  return list;
}

}  // namespace cairn::study
