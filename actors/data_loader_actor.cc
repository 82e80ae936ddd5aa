#include "actors/data_loader_actor.h"

#include <atomic>
#include <utility>

#include "actors/actor_process.h"
#include "runtime/data/batches/loader.h"
#include "runtime/job/evaluation.h"

namespace megascale::actors {
namespace {

absl::Status Load(const DataLoaderOptions& options) {
  auto loader = data::BatchLoader::Create(
      options.spec, &options.dataset->samples(), options.ring.get(),
      {.end_token = options.dataset->end_token(), .sample_offset = options.sample_offset});
  if (!loader.ok()) return loader.status();
  if (options.evaluates) {
    (*loader)->PublishEvaluations(&options.dataset->held_out(),
                                  job::EvaluationInterval(options.spec),
                                  job::EvaluationBatches(options.spec));
  }
  const std::atomic<bool> never = false;  // it ends with its process
  return (*loader)->RunUntil(never, options.spec.train().steps());
}

}  // namespace

void DataLoaderState::OnLoadBatches(const LoadBatches& message) {
  options.done(BatchesLoaded{message.attempt, Outcome::Of(Load(options))});
}

DataLoaderActor::behavior_type DataLoader(DataLoaderActor::stateful_pointer<DataLoaderState> self,
                                          DataLoaderOptions options) {
  EndProcessOnException(self);
  self->state.options = std::move(options);
  return {[=](const LoadBatches& message) { self->state.OnLoadBatches(message); }};
}

}  // namespace megascale::actors
