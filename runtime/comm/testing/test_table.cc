#include "runtime/comm/testing/test_table.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <istream>
#include <limits>
#include <sstream>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace megascale::comm {
namespace {

constexpr size_t kBytesPerRound = 32 << 20;
constexpr size_t kRepetitionsMax = 200;
constexpr Call kCalls[] = {Call::kAllReduce, Call::kReduceScatter, Call::kAllGather,
                           Call::kAllToAll,  Call::kBroadcast,     Call::kSend};

double BusFactor(Call call) {
  constexpr double kShare = static_cast<double>(kTableRanks - 1) / kTableRanks;
  if (call == Call::kAllReduce) return 2 * kShare;
  return call == Call::kBroadcast || call == Call::kSend ? 1.0 : kShare;
}

}  // namespace

const char* Name(Call call) {
  constexpr const char* kNames[] = {"all-reduce", "reduce-scatter", "all-gather",
                                    "all-to-all", "broadcast",      "send"};
  return kNames[static_cast<int>(call)];
}

const std::vector<size_t>& TableSizes() {
  static const std::vector<size_t> sizes = {8,         64,      512,      4 << 10,       32 << 10,
                                            256 << 10, 2 << 20, 16 << 20, kTableBytesMax};
  return sizes;
}

absl::StatusOr<double> BestRound(const std::function<absl::Status()>& barrier,
                                 const std::function<absl::Status()>& round) {
  constexpr int kRounds = 5;
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kRounds; ++i) {
    RETURN_IF_ERROR(barrier());
    const absl::Duration start = base::RealClock().Monotonic();
    RETURN_IF_ERROR(round());
    RETURN_IF_ERROR(barrier());
    best = std::min(best, absl::ToDoubleSeconds(base::RealClock().Monotonic() - start));
  }
  return best;
}

size_t RepetitionsInRound(size_t num_bytes) {
  return std::clamp<size_t>(kBytesPerRound / std::max<size_t>(1, num_bytes), 1, kRepetitionsMax);
}

float KnownValue(int rank, int64_t k) { return static_cast<float>((rank * 5 + k) % 17); }

float KnownSum(int64_t k) {
  float sum = 0;
  for (int rank = 0; rank < kTableRanks; ++rank) sum += KnownValue(rank, k);
  return sum;
}

void PrintTableHead(Call call, const std::string& way) {
  std::printf("\n# %s, %d ranks, %s\n", Name(call), kTableRanks, way.c_str());
  std::printf("#%11s %13s %9s %6s %6s %10s %7s %7s %6s\n", "size", "count", "type", "redop", "root",
              "time", "algbw", "busbw", "#wrong");
  std::printf("#%11s %13s %9s %6s %6s %10s %7s %7s\n", "(B)", "(elements)", "", "", "", "(us)",
              "(GB/s)", "(GB/s)");
}

void PrintTableRow(const TableRow& row) {
  const double bandwidth = static_cast<double>(row.num_bytes) / row.seconds / 1e9;
  const bool sums = row.call == Call::kAllReduce || row.call == Call::kReduceScatter;
  std::printf("%12zu %13zu %9s %6s %6d %10.2f %7.2f %7.2f %6lld\n", row.num_bytes,
              row.num_bytes / sizeof(float), "float", sums ? "sum" : "none",
              row.call == Call::kBroadcast ? 0 : -1, row.seconds * 1e6, bandwidth,
              bandwidth * BusFactor(row.call), static_cast<long long>(row.num_wrong));
  std::fflush(stdout);
}

std::vector<TableRow> ReadTables(std::istream& input) {
  std::vector<TableRow> rows;
  TableRow row;
  std::string line;
  while (std::getline(input, line)) {
    for (const Call call : kCalls) {
      const std::string start = std::string("# ") + Name(call) + ", ";
      if (line.rfind(start, 0) != 0) continue;
      row.call = call;
      row.way = line.substr(line.find(", ", start.size()) + 2);
    }
    std::istringstream words(line);
    std::string skipped;
    double microseconds = 0;
    if (words >> row.num_bytes >> skipped >> skipped >> skipped >> skipped >> microseconds >>
        skipped >> skipped >> row.num_wrong) {
      row.seconds = microseconds / 1e6;
      rows.push_back(row);
    }
  }
  return rows;
}

}  // namespace megascale::comm
