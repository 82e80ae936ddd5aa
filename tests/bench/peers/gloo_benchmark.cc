// Collectives of Gloo among four processes over its TCP transport on loopback: the same tables as
// those of //runtime/comm:comm_benchmark, and those beside ours.
//   gloo_benchmark [FILE]     FILE: what comm_benchmark printed
// All-reduce is the better of Gloo's ring and halving-doubling for each size; it has one
// reduce-scatter (halving-doubling) and one all-gather (ring).
#if !__has_include(<gloo/context.h>)
#error "Gloo is not installed: tools/install.sh --bench installs it (libgloo-dev)"
#endif

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/comm/testing/test_table.h"
#include "runtime/tensor/arena.h"

namespace megascale::comm {
namespace {

using Context = std::shared_ptr<gloo::Context>;
using Reduction = void (*)(void*, const void*, const void*, size_t);

// One of Gloo's algorithms on one rank's buffer: made before it is measured, run many times.
struct Algorithm {
  std::string name;
  std::function<void()> run;
};

class Bench {
 public:
  Bench(Context context, size_t num_bytes)
      : context_(std::move(context)),
        num_elements_(num_bytes / sizeof(float)),
        arena_(tensor::Arena::Create(2 * num_bytes + 2 * tensor::Arena::kAlignment).value()),
        data_(Allocate()),
        gathered_(Allocate()) {
    Fill();
  }

  size_t block() const { return num_elements_ / kTableRanks; }

  std::vector<Algorithm> AlgorithmsOf(Call call) {
    if (call == Call::kAllReduce) return {Ring(), HalvingDoubling()};
    return {call == Call::kReduceScatter ? ReduceScatter() : AllGather()};
  }

  // Seconds of the best round, for one repetition.
  double Measure(const Algorithm& algorithm) {
    const size_t num_repetitions = RepetitionsInRound(num_elements_ * sizeof(float));
    const auto round = [&] {
      for (size_t i = 0; i < num_repetitions; ++i) algorithm.run();
      return absl::OkStatus();
    };
    const absl::StatusOr<double> seconds = BestRound([&] { return Barrier(); }, round);
    return seconds.value() / static_cast<double>(num_repetitions);
  }

  // Runs it once more, on known values. The sum over all ranks.
  int64_t CountWrong(Call call, const Algorithm& algorithm) {
    Fill();
    algorithm.run();
    int64_t wrong = 0;
    const auto rank = static_cast<size_t>(context_->rank);
    const size_t count = call == Call::kReduceScatter ? block() : num_elements_;
    for (size_t k = 0; k < count; ++k) {
      const auto index = static_cast<int64_t>(k);
      const int owner = block() == 0 ? 0 : static_cast<int>(k / block());
      // The block of a reduce-scatter lands at the front.
      const auto summed = static_cast<int64_t>(rank * block() + k);
      if (call == Call::kAllReduce) wrong += data_[k] != KnownSum(index);
      if (call == Call::kReduceScatter) wrong += data_[k] != KnownSum(summed);
      if (call == Call::kAllGather) wrong += gathered_[k] != KnownValue(owner, index);
    }
    gloo::AllreduceOptions options(context_);
    options.setOutput(&wrong, 1);
    options.setReduceFunction(static_cast<Reduction>(&gloo::sum<int64_t>));
    gloo::allreduce(options);
    return wrong;
  }

 private:
  float* Allocate() {
    return arena_.Allocate(tensor::DType::kF32, static_cast<int64_t>(num_elements_)).as<float>();
  }
  void Fill() {
    for (size_t k = 0; k < num_elements_; ++k) {
      data_[k] = KnownValue(context_->rank, static_cast<int64_t>(k));
      gathered_[k] = 0;
    }
  }
  absl::Status Barrier() {
    gloo::BarrierOptions options(context_);
    gloo::barrier(options);
    return absl::OkStatus();
  }

  Algorithm Ring() {
    auto options = std::make_shared<gloo::AllreduceOptions>(context_);
    options->setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    options->setOutput(data_, num_elements_);
    options->setReduceFunction(static_cast<Reduction>(&gloo::sum<float>));
    return {"ring", [options] { gloo::allreduce(*options); }};
  }
  Algorithm HalvingDoubling() {
    auto algorithm = std::make_shared<gloo::AllreduceHalvingDoubling<float>>(
        context_, std::vector<float*>{data_}, static_cast<int>(num_elements_));
    return {"halving-doubling", [algorithm] { algorithm->run(); }};
  }
  Algorithm ReduceScatter() {
    auto algorithm = std::make_shared<gloo::ReduceScatterHalvingDoubling<float>>(
        context_, std::vector<float*>{data_}, static_cast<int>(num_elements_),
        std::vector<int>(kTableRanks, static_cast<int>(block())));
    return {"halving-doubling", [algorithm] { algorithm->run(); }};
  }
  Algorithm AllGather() {
    auto options = std::make_shared<gloo::AllgatherOptions>(context_);
    options->setInput(data_ + context_->rank * block(), block());
    options->setOutput(gathered_, num_elements_);
    return {"ring", [options] { gloo::allgather(*options); }};
  }

  const Context context_;
  const size_t num_elements_;
  tensor::Arena arena_;
  float* const data_;
  float* const gathered_;
};

// Ours over each distance, of the rows that comm_benchmark printed.
std::string Ours(const std::vector<TableRow>& rows, const TableRow& gloo) {
  std::string text;
  for (const char* way : {"shared memory", "Unix sockets"}) {
    for (const TableRow& row : rows) {
      if (row.call != gloo.call || row.num_bytes != gloo.num_bytes || row.way != way) continue;
      char cell[64] = "";
      std::snprintf(cell, sizeof(cell), " %14.2f %6.2fx", row.seconds * 1e6,
                    gloo.seconds / row.seconds);
      text += cell;
    }
  }
  return text;
}

void PrintBeside(const std::vector<TableRow>& gloo, const std::vector<std::string>& algorithms,
                 const std::vector<TableRow>& ours) {
  std::printf("\n# %d ranks, Gloo over TCP on loopback beside ours, times in us\n", kTableRanks);
  std::printf("#%-15s %10s %10s %-17s %14s %7s %14s %7s\n", "", "size", "Gloo", "", "shared memory",
              "", "Unix sockets", "");
  for (size_t i = 0; i < gloo.size(); ++i) {
    std::printf("%-16s %10zu %10.2f %-17s%s\n", Name(gloo[i].call), gloo[i].num_bytes,
                gloo[i].seconds * 1e6, algorithms[i].c_str(), Ours(ours, gloo[i]).c_str());
  }
}

void RunRank(int rank, const std::string& directory, const std::vector<TableRow>& ours) {
  gloo::rendezvous::FileStore store(directory);
  gloo::transport::tcp::attr attributes("127.0.0.1");
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, kTableRanks);
  context->connectFullMesh(store, device);
  std::vector<TableRow> rows;
  std::vector<std::string> algorithms;
  for (const Call call : {Call::kAllReduce, Call::kReduceScatter, Call::kAllGather}) {
    const std::string way = "Gloo over TCP on loopback";
    if (rank == 0) PrintTableHead(call, way);
    for (const size_t num_bytes : TableSizes()) {
      Bench bench(context, num_bytes);
      // Less than an element for each rank is nothing to scatter or gather.
      if (call != Call::kAllReduce && bench.block() == 0) continue;
      TableRow best = {call, way, num_bytes, 1e9, 0};
      std::string name;
      for (const Algorithm& algorithm : bench.AlgorithmsOf(call)) {
        const double seconds = bench.Measure(algorithm);
        best.num_wrong += bench.CountWrong(call, algorithm);
        if (seconds < best.seconds) name = algorithm.name;
        best.seconds = std::min(best.seconds, seconds);
      }
      if (rank != 0) continue;
      PrintTableRow(best);
      rows.push_back(best);
      algorithms.push_back(name);
    }
  }
  if (rank == 0) PrintBeside(rows, algorithms, ours);
}

int Main(int argc, char** argv) {
  std::vector<TableRow> ours;
  if (argc > 1) {
    std::ifstream file(argv[1]);
    ours = ReadTables(file);
  }
  char directory[] = "/tmp/gloo-benchmark-XXXXXX";
  MEGASCALE_CHECK(::mkdtemp(directory) != nullptr);
  for (int rank = 0; rank < kTableRanks; ++rank) {
    const pid_t process = ::fork();
    MEGASCALE_CHECK(process >= 0);
    if (process != 0) continue;
    RunRank(rank, directory, ours);
    std::fflush(stdout);
    ::_exit(0);
  }
  int num_failed = 0;
  for (int rank = 0; rank < kTableRanks; ++rank) {
    int status = 0;
    ::wait(&status);
    num_failed += status != 0;
  }
  std::filesystem::remove_all(directory);
  return num_failed;
}

}  // namespace
}  // namespace megascale::comm

int main(int argc, char** argv) { return megascale::comm::Main(argc, argv); }
