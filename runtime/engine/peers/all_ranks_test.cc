// Ranks of threads in real groups on two machines: each rank is connected with the members of its
// tensor, data and pipeline group alone.
#include "runtime/engine/peers/all_ranks.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/comm/testing/test_world.h"

namespace megascale::engine {
namespace {

constexpr comm::CallInfo kCall = {.instruction_id = 7};

// The ranks of a mesh, counted tensor fastest, then data, then pipeline. Every second one is on the
// second machine.
class AllRanksTest : public ::testing::Test {
 protected:
  struct Sizes {
    int tensor = 1, data = 1, pipeline = 1;
    int world() const { return tensor * data * pipeline; }
  };

  static void Run(const Sizes& sizes, const std::function<void(const AllRanks&)>& body) {
    comm::WorldSpec spec;
    for (int rank = 0; rank < sizes.world(); ++rank) {
      spec.placements.push_back(absl::StrCat("node-", rank % 2));
    }
    const auto add = [&](const char* name, int size, int stride) {
      for (int first = 0; first < sizes.world(); ++first) {
        if (size == 1 || first / stride % size != 0) continue;
        comm::GroupSpec group{absl::StrCat(name, first), {}, 4096};
        for (int i = 0; i < size; ++i) group.ranks.push_back(first + i * stride);
        spec.groups.push_back(group);
      }
    };
    add("tensor", sizes.tensor, 1);
    add("data", sizes.data, sizes.tensor);
    add("pipeline", sizes.pipeline, sizes.tensor * sizes.data);
    comm::ThreadWorld world(spec);
    world.RunConnected([&](int rank, comm::Fabric& fabric) {
      const auto make = [&](const char* name, int size,
                            int stride) -> std::unique_ptr<comm::HostCommunicator> {
        if (size == 1) return nullptr;
        const int index = rank / stride % size;
        return fabric.Make(absl::StrCat(name, rank - index * stride)).value();
      };
      const auto tensor = make("tensor", sizes.tensor, 1);
      const auto data = make("data", sizes.data, sizes.tensor);
      const auto pipeline = make("pipeline", sizes.pipeline, sizes.tensor * sizes.data);
      const AllRanks all({.tensor = tensor.get(), .data = data.get(), .pipeline = pipeline.get()});
      ASSERT_EQ(all.rank(), rank);
      ASSERT_EQ(all.size(), sizes.world());
      body(all);
    });
  }

  static void RunMeshes(const std::function<void(const AllRanks&)>& body) {
    for (const Sizes& sizes : {Sizes{1, 1, 1}, Sizes{2, 1, 1}, Sizes{1, 3, 1}, Sizes{1, 1, 2},
                               Sizes{3, 2, 1}, Sizes{1, 2, 3}, Sizes{2, 1, 2}, Sizes{2, 3, 2}}) {
      Run(sizes, body);
    }
  }
};

TEST_F(AllRanksTest, AGatherHasWhatEachRankContributesInTheOrderOfRanks) {
  RunMeshes([](const AllRanks& all) {
    std::vector<double> gathered(static_cast<size_t>(2 * all.size()), -1);
    std::vector<double> expected;
    for (int rank = 0; rank < all.size(); ++rank) {
      expected.insert(expected.end(), {10.0 * rank, 10.0 * rank + 1});
    }
    gathered[2 * all.rank()] = 10.0 * all.rank();
    gathered[2 * all.rank() + 1] = 10.0 * all.rank() + 1;
    ASSERT_EQ(
        all.AllGather(tensor::HostVector::OfBytes(absl::MakeSpan(gathered), tensor::DType::kF64),
                      kCall),
        absl::OkStatus());
    EXPECT_EQ(gathered, expected);
  });
}

TEST_F(AllRanksTest, ABroadcastHasWhatRank0Has) {
  RunMeshes([](const AllRanks& all) {
    std::vector<double> words = {100.0 + all.rank(), 200.0 + all.rank()};
    ASSERT_EQ(all.Broadcast(tensor::HostVector::OfBytes(absl::MakeSpan(words), tensor::DType::kF64),
                            kCall),
              absl::OkStatus());
    EXPECT_EQ(words, (std::vector<double>{100, 200}));
  });
}

TEST_F(AllRanksTest, TheFirstIsTheLeastAndOfEqualOnesTheLowestRanks) {
  struct Finding {
    double order = 0;
    double rank = 0;
  };
  RunMeshes([](const AllRanks& all) {
    const auto before = [](const Finding& a, const Finding& b) { return a.order < b.order; };
    for (int least = 0; least < all.size(); ++least) {
      // This rank and those above it have equal findings.
      Finding one = {all.rank() < least ? 5.0 : 1.0, 1.0 * all.rank()};
      ASSERT_EQ(all.KeepFirst(&one, before, kCall), absl::OkStatus());
      EXPECT_EQ(one.order, 1);
      EXPECT_EQ(one.rank, least);
    }
  });
}

TEST_F(AllRanksTest, WhatARankHasReachesRank0OverRanksOfCommonGroups) {
  RunMeshes([](const AllRanks& all) {
    for (int from = 0; from < all.size(); ++from) {
      std::string bytes = absl::StrCat("of rank ", all.rank());
      ASSERT_EQ(all.MoveToFirst(from, &bytes, 100, kCall), absl::OkStatus());
      EXPECT_EQ(bytes, absl::StrCat("of rank ", all.rank() == 0 ? from : all.rank()));
      if (all.rank() != from && all.rank() != 0) continue;
      EXPECT_EQ(all.IsOnWay(from), from != 0);
    }
  });
}

TEST_F(AllRanksTest, AMessageThatIsTooLongIsRefusedWithItsRank) {
  Run({.tensor = 1, .data = 2, .pipeline = 1}, [](const AllRanks& all) {
    std::string bytes(101, 'x');
    const absl::Status status = all.MoveToFirst(1, &bytes, 100, kCall);
    if (all.rank() == 1) return;
    EXPECT_EQ(status,
              absl::InternalError("rank 1 sends 101 bytes to rank 0; expected at most 100"));
  });
}

}  // namespace
}  // namespace megascale::engine
