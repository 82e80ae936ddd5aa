#include "tests/bench/control/measures.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/clock.h"

namespace megascale::bench {

double Now() { return absl::ToDoubleSeconds(base::RealClock().Monotonic()); }

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(q * static_cast<double>(values.size()));
  return values[static_cast<size_t>(std::max(1.0, rank)) - 1];
}

std::string Quantiles(const std::vector<double>& seconds) {
  return absl::StrFormat("p50 %.2f ms, p99 %.2f ms, worst %.2f ms (%d calls)",
                         1e3 * Quantile(seconds, 0.5), 1e3 * Quantile(seconds, 0.99),
                         1e3 * Quantile(seconds, 1), seconds.size());
}

ProcessUse UseOf(pid_t pid) {
  ProcessUse use;
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::stringstream text;
  text << file.rdbuf();
  // After the name in parentheses: 11 fields, utime, stime, 8 fields, pages.
  std::istringstream fields(text.str().substr(text.str().rfind(')') + 1));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  int64_t user = 0;
  int64_t system = 0;
  fields >> user >> system;
  for (int i = 0; i < 8; ++i) fields >> skipped;
  int64_t pages = 0;
  fields >> pages;
  use.cpu = absl::Seconds(1) * (user + system) / ::sysconf(_SC_CLK_TCK);
  use.memory_bytes = pages * ::sysconf(_SC_PAGESIZE);
  return use;
}

int64_t BytesBelow(const std::string& directory) {
  int64_t bytes = 0;
  std::error_code error;
  for (auto it = std::filesystem::recursive_directory_iterator(directory, error);
       !error && it != std::filesystem::recursive_directory_iterator(); it.increment(error)) {
    std::error_code gone;
    if (!it->is_regular_file(gone)) continue;
    const uintmax_t size = it->file_size(gone);
    if (!gone) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

void AllowManyFiles() {
  struct rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace megascale::bench
