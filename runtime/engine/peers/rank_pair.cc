#include "runtime/engine/peers/rank_pair.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"

namespace megascale::engine {
namespace {

// For streams that carry blocks of a megabyte at most.
constexpr size_t kRingBytes = 256 << 10;

}  // namespace

// Keys of a pair's own: a rank's other address is already in the store.
class RankPair::KeyedStore final : public comm::Store {
 public:
  KeyedStore(comm::Store* store, std::string prefix) : store_(*store), prefix_(std::move(prefix)) {}

  absl::Status Set(const std::string& key, const std::string& value) override {
    return store_.Set(prefix_ + key, value);
  }
  absl::StatusOr<std::string> Get(const std::string& key) override {
    return store_.Get(prefix_ + key);
  }
  absl::StatusOr<int64_t> Add(const std::string& key, int64_t amount,
                              const std::string& request_id) override {
    return store_.Add(prefix_ + key, amount, request_id);
  }
  absl::StatusOr<std::string> Wait(const std::string& key, absl::Duration timeout) override {
    return store_.Wait(prefix_ + key, timeout);
  }
  absl::StatusOr<std::vector<std::string>> WaitAll(const std::vector<std::string>& keys,
                                                   absl::Duration timeout) override {
    return store_.WaitAll(Prefixed(keys), timeout);
  }
  absl::StatusOr<std::vector<std::optional<std::string>>> GetAll(
      const std::vector<std::string>& keys) override {
    return store_.GetAll(Prefixed(keys));
  }

 private:
  std::vector<std::string> Prefixed(std::vector<std::string> keys) const {
    for (std::string& key : keys) key.insert(0, prefix_);
    return keys;
  }

  comm::Store& store_;
  const std::string prefix_;
};

absl::StatusOr<std::unique_ptr<RankPair>> RankPair::Connect(comm::FabricOptions fabric, int peer,
                                                            const std::string& name) {
  auto pair = absl::WrapUnique(new RankPair);
  pair->store_ = std::make_unique<KeyedStore>(fabric.store, absl::StrCat(name, "/"));
  const comm::RegionSpec spec = {
      .groups = {{.name = name,
                  .ranks = {std::min(fabric.rank, peer), std::max(fabric.rank, peer)},
                  .ring_bytes = kRingBytes}},
      .placements = fabric.placements,
      .node_id = fabric.placements.at(static_cast<size_t>(fabric.rank)),
      .job_id = fabric.job_id,
      .attempt = fabric.attempt};
  const size_t bytes = comm::RegionBytes(spec.groups, spec.placements, spec.node_id);
  ASSIGN_OR_RETURN(pair->region_, base::SharedMemory::Create("a pair of ranks", bytes));
  RETURN_IF_ERROR(comm::FormatRegion(spec, *pair->region_));
  fabric.region = pair->region_.get();
  fabric.store = pair->store_.get();
  fabric.readable.clear();
  fabric.progress = nullptr;
  ASSIGN_OR_RETURN(pair->fabric_, comm::Fabric::Create(std::move(fabric), spec.groups));
  RETURN_IF_ERROR(pair->fabric_->Connect());
  ASSIGN_OR_RETURN(pair->communicator_, pair->fabric_->Make(name));
  return pair;
}

// The communicator goes before its fabric.
RankPair::~RankPair() { communicator_.reset(); }

}  // namespace megascale::engine
