#include "study/value_options.h"

namespace cairn::study {

base::Schema<ValueOptions> value_schema() {
  using O = ValueOptions;
  return {
      "study",
      "With kind = \"value\" (`cairn study value`): what each training example, or each source, is worth (Data Shapley).",
      {{"kind", &O::kind, "Which study this recipe is for.", base::one_of({"value"})},
       {"method", &O::method,
        "tmc: permutations, cut off where nothing changes any more. g: one step of SGD for each player of a permutation. loo: leave one "
        "out. "
        "exact: all subsets, for at most 20 players.",
        base::one_of({"tmc", "g", "loo", "exact"})},
       {"players", &O::players, "What is valued: example, source (each of data.sources), or a column of a table (of data.ignore)."},
       {"metric", &O::metric, "The score of a model on the validation samples. neg_loss: minus the mean cross entropy.",
        base::one_of({"accuracy", "auc", "f1", "neg_loss"})},
       {"learner", &O::learner,
        "What is trained on each subset: logistic (ridge-logistic regression, fitted to convergence; tables) or recipe (the run that this "
        "recipe describes).",
        base::one_of({"logistic", "recipe"})},
       {"ridge", &O::ridge, "logistic: half of this times the squared weights is added to the summed loss.", base::more_than(0)},
       {"seeds", &O::seeds, "recipe: trainings of each subset, with different train.seed; the score is their mean.", base::at_least(1)},
       {"tolerance", &O::tolerance,
        "tmc: a permutation ends when scores stay within this share of the score of all players; 0: it never ends early.",
        base::at_least(0)},
       {"bootstrap", &O::bootstrap, "tmc: the tolerance is the deviation of the score over 100 resamples of the validation samples."},
       {"patience", &O::patience, "tmc: it ends after more than so many such scores in a row.", base::at_least(0)},
       {"coverage", &O::coverage,
        "required: a subset without some class of the validation samples counts as untrained; train_anyway: it is trained.",
        base::one_of({"required", "train_anyway"})},
       {"error", &O::error, "Ends when the values changed by less than this share over the last 100 permutations.", base::more_than(0)},
       {"max_permutations", &O::max_permutations, "Ends after so many; 0: when converged.", base::at_least(0)},
       {"save_every", &O::save_every, "Permutations between two checks of convergence.", base::at_least(1)},
       {"block", &O::block, "g: permutations that are computed together.", base::between(1, 4096)},
       {"learning_rate", &O::learning_rate, "g: of its steps; 0: the best of 0.1, 0.032, 0.01, ... by ten trials of one epoch each.",
        base::at_least(0)},
       {"validation", &O::validation,
        "Held-out samples that scores are measured on, from the first on; the others are for the curves. 0: half of them.",
        base::at_least(0)},
       {"validation_source", &O::validation_source,
        "Text: a file whose samples scores are measured on. Nothing is trained on them. Empty: the held-out part of data.path.",
        base::path()},
       {"corrupted", &O::corrupted, "Tables: a column (of data.ignore) with 1 where a row is known to be bad, for the detection curve."},
       {"candidates", &O::candidates, "Tables: a file of further rows, which are ranked by the values predicted for them.", base::path()},
       {"curves", &O::curves, "Whether to train on what is left after removing players, for the curves."},
       {"budget_hours", &O::budget_hours, "Refuses to start where the study would take longer.", base::more_than(0)},
       {"device", &O::device, "Where permutations (g) and the runs of recipe are computed; cuda: by one process.",
        base::one_of({"cpu", "cuda"})}}};
}

}  // namespace cairn::study
