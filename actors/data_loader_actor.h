// The data loader actor of a host process: the one loader of its machine. Reads the data set
// and fills the batch ring ahead of the workers, asynchronously. It blocks on storage and on the
// ring, so it runs detached.
//   Parent: host. Children: none.
//   Receives: LoadBatches. Sends: BatchesLoaded to its parent's callback when the last step is
//   published or reading failed.
//   Restart: in place, with its process; the ring knows which steps were published.
// Source: MegaScale section 3.4.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "actors/messages.h"
#include "caf/all.hpp"
#include "proto/job.pb.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/data/dataset/dataset.h"

namespace megascale::actors {

using DataLoaderActor = caf::typed_actor<caf::reacts_to<LoadBatches>>;

struct DataLoaderOptions {
  megascale::job::v1::JobSpec spec;
  int64_t sample_offset = 0;  // as in data::LoaderOptions
  std::shared_ptr<const data::Dataset> dataset;
  std::shared_ptr<base::SharedMemory> ring;
  bool evaluates = false;  // also loads the windows of evaluations
  std::function<void(const BatchesLoaded&)> done;
};

struct DataLoaderState {
  DataLoaderOptions options;

  void OnLoadBatches(const LoadBatches& message);
};

DataLoaderActor::behavior_type DataLoader(DataLoaderActor::stateful_pointer<DataLoaderState> self,
                                          DataLoaderOptions options);

}  // namespace megascale::actors
