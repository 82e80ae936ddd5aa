#include "runtime/plan/operation.h"

#include <gtest/gtest.h>

#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/string_view.h"
#include "runtime/plan/instruction.h"

namespace megascale::plan {
namespace {

// True if OpKind has an enumerator of this value: compilers then print its name, else a cast.
template <OpKind kKind>
constexpr bool HasName() {
  constexpr std::string_view kText = __PRETTY_FUNCTION__;
  return kText.find("= megascale::plan::OpKind::k") != std::string_view::npos ||
         kText.find("= OpKind::k") != std::string_view::npos;
}

template <size_t... kValues>
std::set<int> Named(std::index_sequence<kValues...>) {
  std::set<int> named;
  ((HasName<static_cast<OpKind>(kValues)>() ? void(named.insert(int{kValues})) : void()), ...);
  return named;
}

TEST(Operation, EveryValueOfOpKindHasARow) {
  std::set<int> rows;
  for (const Operation& operation : AllOperations()) rows.insert(static_cast<int>(operation.kind));
  EXPECT_EQ(Named(std::make_index_sequence<256>()), rows);
}

TEST(Operation, EveryRowSaysWhatReadersAsk) {
  std::set<absl::string_view> letters;
  for (const Operation& operation : AllOperations()) {
    EXPECT_EQ(&OperationOf(operation.kind), &operation);
    EXPECT_TRUE(letters.insert(operation.letters).second) << operation.letters;
    EXPECT_NE(operation.letters, "?");
    EXPECT_FALSE(operation.name.empty()) << operation.letters;
    EXPECT_NE(operation.op_class, OpClass::kUnknown) << operation.letters;
    const bool communicates = operation.meeting.group != GroupKind::kNone;
    EXPECT_EQ(communicates, !operation.meeting.channel.empty()) << operation.letters;
    EXPECT_EQ(communicates, IsPass(operation.kind) || IsTransfer(operation.kind) ||
                                operation.op_class == OpClass::kCollective)
        << operation.letters;
    EXPECT_EQ(IsPass(operation.kind), operation.stream == StreamKind::kCompute)
        << operation.letters;
  }
}

TEST(Operation, TheEndsOfATransferNameEachOther) {
  for (const Operation& operation : AllOperations()) {
    EXPECT_EQ(IsTransfer(operation.kind), operation.other_chunk != 0) << operation.letters;
    if (!IsTransfer(operation.kind)) continue;
    const Operation& other = OperationOf(operation.other_end);
    EXPECT_EQ(other.other_end, operation.kind);
    EXPECT_EQ(other.other_chunk, -operation.other_chunk);
    EXPECT_NE(other.op_class, operation.op_class);
    EXPECT_NE(other.stream, operation.stream);
    EXPECT_EQ(other.meeting.channel, operation.meeting.channel);
    EXPECT_EQ(other.goes_back, operation.goes_back);
  }
}

TEST(Operation, AStreamBelongsToOneOwner) {
  for (const Operation& operation : AllOperations()) {
    for (const Operation& other : AllOperations()) {
      if (operation.stream != other.stream) continue;
      EXPECT_EQ(operation.owner, other.owner) << operation.letters << " and " << other.letters;
    }
  }
}

TEST(Operation, NobodyMeetsInGroupsThatAMeshLacks) {
  const Mesh narrow = Mesh::Create({.data = 2}).value();
  const Mesh wide = Mesh::Create({.data = 2, .tensor = 2}).value();
  EXPECT_EQ(MeetingIn(narrow, OpKind::kForward).group, GroupKind::kNone);
  EXPECT_EQ(MeetingIn(wide, OpKind::kForward).group, GroupKind::kTensor);
  EXPECT_EQ(MeetingIn(narrow, OpKind::kGatherTensorTrustSums).group, GroupKind::kNone);
  EXPECT_EQ(MeetingIn(wide, OpKind::kGatherTensorTrustSums).group, GroupKind::kTensor);
  EXPECT_EQ(MeetingIn(wide, OpKind::kOptimizerStep).group, GroupKind::kNone);
}

TEST(Operation, AValueWithoutARowIsUnknownToAllReaders) {
  const auto unknown = static_cast<OpKind>(AllOperations().size() + 1);
  EXPECT_EQ(OperationOf(unknown).op_class, OpClass::kUnknown);
  EXPECT_EQ(Letters(unknown), "?");
  EXPECT_FALSE(IsTransfer(unknown));
  EXPECT_FALSE(IsPass(unknown));
  EXPECT_FALSE(NeedsPeers(InstructionId(unknown, 0)));
  EXPECT_FALSE(InstructionId::Parse("?.c0").ok());
}

}  // namespace
}  // namespace megascale::plan
