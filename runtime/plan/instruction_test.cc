#include "runtime/plan/instruction.h"

#include <gtest/gtest.h>

#include <set>

namespace megascale::plan {
namespace {

TEST(InstructionId, IsShownByOperationAndPlace) {
  EXPECT_EQ(InstructionId(OpKind::kForward, 0, 3).ToString(), "F.c0.m3");
  EXPECT_EQ(InstructionId(OpKind::kReduceGradients, 1, InstructionId::kNoMicrobatch, 2).ToString(),
            "R.c1.b2");
  EXPECT_EQ(InstructionId(OpKind::kBackward, 0, 3, 1).WithPiece(2).ToString(), "B.c0.m3.b1.p2");
  EXPECT_EQ(InstructionId(OpKind::kForward, 0, 3).WithPiece(2).ToString(), "F.c0.m3.p2");
  EXPECT_EQ(InstructionId(OpKind::kReduceNorm).ToString(), "N");
  EXPECT_EQ(InstructionId().ToString(), "-");
}

TEST(InstructionId, ComesBackFromTextAndBits) {
  std::set<uint64_t> seen;
  for (const Operation& operation : AllOperations()) {
    for (const int chunk : {0, 1, 65534, InstructionId::kNoChunk}) {
      for (const int microbatch : {0, 7, 65534, InstructionId::kNoMicrobatch}) {
        for (const int bucket : {0, 1, InstructionId::kMaxBucket}) {
          for (const int piece : {0, 1, InstructionId::kMaxPiece}) {
            const InstructionId id =
                InstructionId(operation.kind, chunk, microbatch, bucket).WithPiece(piece);
            EXPECT_EQ(id.operation(), operation.kind);
            EXPECT_EQ(id.chunk(), chunk);
            EXPECT_EQ(id.microbatch(), microbatch);
            EXPECT_EQ(id.bucket(), bucket);
            EXPECT_EQ(id.piece(), piece);
            EXPECT_EQ(InstructionId::FromPacked(id.packed()), id);
            EXPECT_EQ(InstructionId::Parse(id.ToString()).value(), id) << id.ToString();
            EXPECT_TRUE(seen.insert(id.packed()).second);
          }
        }
      }
    }
  }
}

TEST(InstructionId, BothEndsOfATransferNameTheSend) {
  const auto message = [](const char* id) {
    return InstructionId::Parse(id).value().MessageId().ToString();
  };
  EXPECT_EQ(message("RA.c1.m3"), "SA.c0.m3");
  EXPECT_EQ(message("SA.c0.m3"), "SA.c0.m3");
  EXPECT_EQ(message("RG.c0.m3"), "SG.c1.m3");
  EXPECT_EQ(message("SG.c1.m3"), "SG.c1.m3");
  EXPECT_EQ(message("R.c1.b2"), "R.c1.b2");
  EXPECT_EQ(message("RE"), "SE");
  EXPECT_EQ(message("RH"), "SH");
  EXPECT_EQ(message("SH"), "SH");
}

TEST(InstructionId, ATransferNamesTheStageAtItsOtherEnd) {
  const auto stage = [](const char* id) {
    return OtherStage(InstructionId::Parse(id).value(), /*num_stages=*/3);
  };
  EXPECT_EQ(stage("SA.c2.m0"), 0);
  EXPECT_EQ(stage("RA.c4.m0"), 0);
  EXPECT_EQ(stage("RA.c0.m0"), -1);
  EXPECT_EQ(stage("SG.c3.m0"), 2);
  EXPECT_EQ(stage("SE"), 2);
  EXPECT_EQ(stage("RE"), 0);
  EXPECT_EQ(stage("SH"), 0);
  EXPECT_EQ(stage("RH"), 2);
}

TEST(InstructionId, APassNeedsPeersInItsExchangesAlone) {
  const auto needs_peers = [](const char* id) {
    return NeedsPeers(InstructionId::Parse(id).value());
  };
  for (const char* id :
       {"F.c0.m3", "B.c0.m3", "B.c0.m3.b1", "W.c0.m3", "L.c0", "U.c0", "O.c0", "A.c0"}) {
    EXPECT_FALSE(needs_peers(id)) << id;
  }
  for (const char* id :
       {"F.c0.m3.p1", "B.c0.m3.p40", "B.c0.m3.b1.p2", "W.c0.m3.p2", "RA.c1.m3", "SA.c0.m3",
        "RG.c0.m3", "SG.c1.m3", "S.c0", "R.c0", "N", "T.c0", "G.c0", "SE", "RH"}) {
    EXPECT_TRUE(needs_peers(id)) << id;
  }
}

TEST(InstructionId, PiecesOfAPassAreItsExchanges) {
  const InstructionId pass(OpKind::kForward, 2, 3);
  EXPECT_EQ(pass.WithPiece(7).ToString(), "F.c2.m3.p7");
  EXPECT_EQ(pass.WithPiece(7).WithPiece(0), pass);
  EXPECT_TRUE(IsExchangeOfPass(pass.WithPiece(1)));
  EXPECT_FALSE(IsExchangeOfPass(pass));
  EXPECT_FALSE(IsExchangeOfPass(InstructionId(OpKind::kReduceGradients, 2).WithPiece(1)));
}

TEST(InstructionId, RefusesOtherText) {
  for (const char* text : {"", "-", "X.c0", "F.", "F.c", "F.c-1", "F.c00", "F.c65535", "F.m1.c0",
                           "F.c0.m1.", "F.c0.m1.p0", "F.c0.m1.p1.p2", "F.c0.m1.b0", "F.c0.m1.b256",
                           "F.c0.m1.p1.b1", "F c0", "F.c0.m65535", "f.c0.m0"}) {
    EXPECT_EQ(InstructionId::Parse(text).status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
}

}  // namespace
}  // namespace megascale::plan
