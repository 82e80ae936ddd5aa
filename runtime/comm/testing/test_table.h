// Shared by the benchmarks of collectives, ours and those of other libraries: sizes, known values,
// and tables in the format of nccl-tests. `size` is that of the whole buffer; `busbw` is algbw
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

// How often a call is repeated in a round; small sizes several times.
size_t RepetitionsInRound(size_t num_bytes);
// Returns the seconds of the fastest round; each runs from one barrier of all ranks to the next.
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

// Prints the lines above the rows of one call.
void PrintTableHead(Call call, const std::string& way);
void PrintTableRow(const TableRow& row);

// Returns all rows of all tables in the output of a benchmark.
std::vector<TableRow> ReadTables(std::istream& input);

}  // namespace megascale::comm
