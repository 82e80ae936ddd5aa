// What the benchmarks of collectives share, ours and those of libraries beside it: sizes, known
// values, and tables as nccl-tests prints them. `size` is of the whole buffer; `busbw` is algbw
// times 2(n-1)/n for all-reduce, 1 for broadcast and send, (n-1)/n for the others; `#wrong` counts
// elements over all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace megascale::comm {

enum class Call { kAllReduce, kReduceScatter, kAllGather, kAllToAll, kBroadcast, kSend };
const char* Name(Call call);

constexpr int kTableRanks = 4;
constexpr size_t kTableBytesMax = 64 << 20;
const std::vector<size_t>& TableSizes();

// Small sizes are repeated in a round.
size_t RepetitionsInRound(size_t num_bytes);
// Seconds of the best round, each from one barrier of all ranks to the next.
absl::StatusOr<double> BestRound(const std::function<absl::Status()>& barrier,
                                 const std::function<absl::Status()>& round);

// Element k on a rank: small whole numbers, so that sums are exact in any order.
float KnownValue(int rank, int64_t k);
float KnownSum(int64_t k);

struct TableRow {
  Call call = Call::kAllReduce;
  std::string way;  // "shared memory"
  size_t num_bytes = 0;
  double seconds = 0;
  int64_t num_wrong = 0;
};

// The lines above the rows of one call.
void PrintTableHead(Call call, const std::string& way);
void PrintTableRow(const TableRow& row);

// All rows of all tables in what a benchmark printed.
std::vector<TableRow> ReadTables(std::istream& input);

}  // namespace megascale::comm
