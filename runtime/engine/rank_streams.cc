#include "runtime/engine/rank_streams.h"

#include <string>

#include "absl/memory/memory.h"
#include "absl/strings/string_view.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"

namespace megascale::engine {

absl::StatusOr<std::unique_ptr<RankStreams>> RankStreams::Create(device::Device* device,
                                                                 const plan::RankPlan& plan,
                                                                 bool overlaps_exchanges) {
  MEGASCALE_CHECK(device != nullptr);
  auto made = absl::WrapUnique(new RankStreams());
  for (const plan::StreamKind kind : plan::StreamsOf(plan)) {
    std::unique_ptr<stream::Stream>& own = made->streams_[kind];
    ASSIGN_OR_RETURN(own, device->MakeStream(std::string(plan::Name(kind))));
    made->handovers_[kind] = {.there = own->MakeEvent(), .back = own->MakeEvent()};
  }
  if (overlaps_exchanges) {
    const absl::string_view name = plan::Name(plan::StreamKind::kTensorParallel);
    ASSIGN_OR_RETURN(made->exchanges_, device->MakeStream(std::string(name)));
  }
  return made;
}

stream::Stream* RankStreams::FindOrNull(plan::StreamKind kind) const {
  const auto found = streams_.find(kind);
  return found == streams_.end() ? nullptr : found->second.get();
}

stream::Stream* RankStreams::ExchangeStreamOf(const plan::Instruction& instruction) const {
  // A pass begins its exchanges itself, on a stream beside its own if they overlap.
  if (instruction.stream == plan::StreamKind::kCompute && exchanges_ != nullptr) {
    return exchanges_.get();
  }
  return streams_.at(instruction.stream).get();
}

// OpenMP keeps a pool of threads for each thread that calls operators. A second caller would get a
// second pool, and the rank more threads than cores.
void RankStreams::RunOnComputeThreads(plan::StreamKind from, absl::FunctionRef<void()> work) {
  Handover& handover = handovers_.at(from);
  stream::Stream& caller = Of(from);
  const uint64_t generation = ++handover.generation;
  handover.there->RecordNow(caller, generation);
  compute().RunAndWait([&] {
    handover.there->WaitNow(compute(), generation);
    work();
    handover.back->RecordNow(compute(), generation);
  });
  handover.back->WaitNow(caller, generation);
  caller.TakeErrorOf(compute());
}

void RankStreams::Synchronize() {
  for (const auto& [kind, own] : streams_) (void)own->Synchronize();
  if (exchanges_ != nullptr) (void)exchanges_->Synchronize();
}

}  // namespace megascale::engine
