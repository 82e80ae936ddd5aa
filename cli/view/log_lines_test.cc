#include "cli/view/log_lines.h"

#include "gtest/gtest.h"

namespace megascale::cli {
namespace {

control::v1::StreamLogsResponse PieceOf(int rank, const std::string& data) {
  control::v1::StreamLogsResponse piece;
  piece.set_rank(rank);
  piece.set_node_id("n0");
  piece.set_data(data);
  return piece;
}

TEST(LogLinesTest, LinesOfSeveralRanksAreInTheOrderOfTheirTimes) {
  LogLines lines;
  lines.Add(PieceOf(0, "2026-11-22T22:21:51.100Z I a\n2026-11-22T22:21:53.000Z I d\n"));
  lines.Add(PieceOf(1, "2026-11-22T22:21:51.200Z I b\n  without a time\n\n"));
  lines.Add(PieceOf(-1, "before all\n2026-11-22T22:21:52.999Z I c\n"));
  lines.Add(PieceOf(1, "2026-11-22T22:21:51.000Z I its clock was set back\n"));
  EXPECT_GT(lines.size_bytes(), 200u);
  EXPECT_EQ(lines.Take(),
            "[host n0] before all\n"
            "[rank 0] 2026-11-22T22:21:51.100Z I a\n"
            "[rank 1] 2026-11-22T22:21:51.200Z I b\n"
            "[rank 1]   without a time\n"
            "[rank 1] 2026-11-22T22:21:51.000Z I its clock was set back\n"
            "[host n0] 2026-11-22T22:21:52.999Z I c\n"
            "[rank 0] 2026-11-22T22:21:53.000Z I d\n");
  EXPECT_EQ(lines.Take(), "");
  EXPECT_EQ(lines.size_bytes(), 0u);
  lines.Add(PieceOf(0, "no time, but later\n"));
  lines.Add(PieceOf(2, "2026-11-22T22:21:52.000Z I first\n"));
  EXPECT_EQ(lines.Take(),
            "[rank 2] 2026-11-22T22:21:52.000Z I first\n[rank 0] no time, but later\n");
}

}  // namespace
}  // namespace megascale::cli
