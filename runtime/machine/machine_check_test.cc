#include "runtime/machine/machine_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/device/check/device_check.h"
#include "runtime/device/cpu_device.h"
#include "runtime/machine/core_check.h"
#include "runtime/machine/exchange_check.h"
#include "runtime/machine/memory_check.h"

namespace megascale::machine {
namespace {

using megascale::agent::v1::MachineTest;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Flips bits of one byte, as a broken memory cell does.
Tamper FlipAt(size_t offset, unsigned char bits) {
  return [=](void* data, size_t) { static_cast<unsigned char*>(data)[offset] ^= bits; };
}

std::string MakeFolder() {
  std::string path = absl::StrCat(::testing::TempDir(), "machine-XXXXXX");
  EXPECT_NE(::mkdtemp(path.data()), nullptr);
  return path;
}

TEST(PartTest, APatternHasNoTwoEqualWordsAndDependsOnItsSeed) {
  uint64_t words[4];
  FillPattern(1, words, sizeof(words));
  EXPECT_NE(words[0], words[1]);
  EXPECT_EQ(FindWrongBytes(1, words, sizeof(words)), "");
  EXPECT_NE(FindWrongBytes(2, words, sizeof(words)), "");
}

TEST(PartTest, WrongBytesAreCountedAndTheFirstIsNamed) {
  std::vector<unsigned char> data(21);  // not a multiple of a word
  FillPattern(7, data.data(), data.size());
  data[3] ^= 1;
  data[20] ^= 0x80;
  const std::string wrong = FindWrongBytes(7, data.data(), data.size());
  EXPECT_THAT(wrong, HasSubstr("2 bytes of 21 bytes read back wrong, the first at byte 3: 0x"));
}

TEST(MemoryCheckTest, MemoryThatKeepsItsBitsPassesWithARate) {
  const PartResult result = CheckMemory({1 << 20, absl::ZeroDuration(), {}});
  EXPECT_THAT(result.failure, IsEmpty());
  EXPECT_GT(result.bytes_per_second, 0);
}

TEST(MemoryCheckTest, AFlippedBitIsFoundWithItsPlace) {
  const PartResult result = CheckMemory({1 << 20, absl::ZeroDuration(), FlipAt(4097, 4)});
  EXPECT_THAT(result.failure,
              HasSubstr("1 byte of 1 MiB read back wrong, the first at byte 4097: 0x"));
}

TEST(CoreCheckTest, TheTrainingRunGivesTheKnownDigest) {
  EXPECT_EQ(ReplayTraining(), kTrainingDigest) << std::hex << ReplayTraining();
  EXPECT_THAT(CheckTraining({absl::ZeroDuration()}).failure, IsEmpty());
}

TEST(CoreCheckTest, ACoreThatTrainsToAnotherDigestIsNamed) {
  const PartResult result =
      CheckTraining({absl::ZeroDuration(), [] { return kTrainingDigest ^ 1; }});
  EXPECT_THAT(result.failure, AllOf(HasSubstr("core "), HasSubstr("gave weights with digest")));
}

TEST(CoreCheckTest, ACoreForWhichThereIsNoMemoryIsNotTested) {
  const PartResult result =
      CheckTraining({absl::ZeroDuration(), []() -> uint64_t { throw std::bad_alloc(); }});
  EXPECT_THAT(result.failure, IsEmpty());
  EXPECT_THAT(result.note, HasSubstr("no memory"));
}

TEST(CoreCheckTest, ProductsOfWholeNumbersAreExact) {
  EXPECT_THAT(CheckArithmetic({absl::ZeroDuration(), {}}).failure, IsEmpty());
}

TEST(CoreCheckTest, AProductWithOneWrongBitIsFound) {
  const PartResult result = CheckArithmetic({absl::ZeroDuration(), FlipAt(4 * 1000 + 2, 8)});
  EXPECT_THAT(result.failure,
              AllOf(HasSubstr("a product in fp32 has the element"), HasSubstr("expected")));
}

TEST(LoopbackCheckTest, WhatIsSentArrives) {
  const PartResult result = CheckLoopback({100'000, absl::ZeroDuration(), {}});
  EXPECT_THAT(result.failure, IsEmpty());
  EXPECT_THAT(result.note, IsEmpty());
  EXPECT_GT(result.bytes_per_second, 0);
}

TEST(LoopbackCheckTest, AChangedByteIsFound) {
  const PartResult result = CheckLoopback({100'000, absl::Milliseconds(50), FlipAt(5, 1)});
  EXPECT_THAT(result.failure, HasSubstr("1 byte of 100000 bytes read back wrong"));
}

TEST(LoopbackCheckTest, OneStallIsTriedAgainAndASecondOneFails) {
  int num_sends = 0;
  LoopbackOptions options = {100'000, absl::ZeroDuration(), {}};
  options.fails_to_send = [&num_sends] { return ++num_sends == 1 ? EAGAIN : 0; };
  EXPECT_THAT(CheckLoopback(options).failure, IsEmpty());
  EXPECT_EQ(num_sends, 2);
  options.fails_to_send = [&num_sends] { return ++num_sends, EAGAIN; };
  EXPECT_EQ(CheckLoopback(options).failure, "send on 127.0.0.1: nothing moved for 10 s");
  EXPECT_EQ(num_sends, 4);
}

TEST(DirectoryCheckTest, AFileIsWrittenAndReadBackAndHasNoNameMeanwhile) {
  const std::string path = MakeFolder();
  int num_reads = 0;
  const PartResult result = CheckDirectory({.path = path,
                                            .block_bytes = 10'000,
                                            .budget = absl::ZeroDuration(),
                                            .tamper = [&](void*, size_t) {
                                              ++num_reads;
                                              EXPECT_TRUE(std::filesystem::is_empty(path));
                                            }});
  EXPECT_THAT(result.failure, IsEmpty());
  EXPECT_THAT(result.note, IsEmpty());
  EXPECT_GT(result.bytes_per_second, 0);
  EXPECT_EQ(num_reads, 1);
  EXPECT_TRUE(std::filesystem::is_empty(path));
}

TEST(DirectoryCheckTest, AChangedByteIsFoundWithItsBlock) {
  const PartResult result = CheckDirectory({.path = "/dev/shm",  // surely of this machine
                                            .block_bytes = 10'000,
                                            .budget = absl::ZeroDuration(),
                                            .tamper = FlipAt(77, 1)});
  EXPECT_THAT(result.failure, AllOf(HasSubstr("the first at byte 77"), HasSubstr("of block 0")));
}

// Storage that is wrong for every machine would quarantine them one after the other.
TEST(DirectoryCheckTest, AChangedByteInADirectoryOfJobsIsANote) {
  const PartResult result = CheckDirectory({.path = MakeFolder(),
                                            .block_bytes = 10'000,
                                            .budget = absl::ZeroDuration(),
                                            .is_own = false,
                                            .tamper = FlipAt(77, 1)});
  EXPECT_THAT(result.failure, IsEmpty());
  EXPECT_THAT(result.note, HasSubstr("the first at byte 77"));
}

TEST(DirectoryCheckTest, AFileInMemoryIsAsSmallAsTheMemoryThatMayBeTested) {
  int num_reads = 0;
  const PartResult result = CheckDirectory({.path = "/dev/shm",
                                            .block_bytes = 10'000,
                                            .budget = absl::Hours(1),
                                            .memory_bytes_max = 20'000,
                                            .tamper = [&](void*, size_t) { ++num_reads; }});
  EXPECT_THAT(result.failure, IsEmpty());
  EXPECT_EQ(num_reads, 2);
}

TEST(DirectoryCheckTest, ADirectoryThatIsMissingOrFullIsNoFaultOfTheMachine) {
  const PartResult missing = CheckDirectory({.path = "/no/such/folder"});
  EXPECT_THAT(missing.failure, IsEmpty());
  EXPECT_EQ(missing.note, "make a file in /no/such/folder: No such file or directory");
  const PartResult full = CheckDirectory({.path = "/proc/self"});
  EXPECT_THAT(full.failure, IsEmpty());
  EXPECT_THAT(full.note, HasSubstr("make a file in /proc/self: "));
}

TEST(MachineCheckTest, AQuickCheckRunsEveryPartAndPasses) {
  CheckOptions options;
  options.request.set_id(7);
  options.request.set_kind(megascale::agent::v1::TEST_KIND_QUICK);
  options.request.add_directories("/no/such/folder");
  options.own_directory = MakeFolder();
  std::vector<std::string> announced;
  const MachineTest test = CheckMachine(options, [&](const MachineTest& running) {
    EXPECT_EQ(running.state(), MachineTest::STATE_RUNNING);
    announced.push_back(running.part());
    EXPECT_EQ(running.uses_job_directory(), running.part() == "directory /no/such/folder");
  });
  EXPECT_THAT(announced, ElementsAre("memory", "arithmetic", "training", "loopback", "disk",
                                     "directory /no/such/folder"));
  EXPECT_EQ(test.state(), MachineTest::STATE_PASSED) << test.evidence();
  EXPECT_FALSE(test.uses_job_directory());
  EXPECT_EQ(test.id(), 7);
  ASSERT_EQ(test.results_size(), 6);
  EXPECT_THAT(test.results(5).note(), HasSubstr("No such file"));
}

// Two devices, which are the CPU here, tested with little memory and small products.
class DevicesTest : public ::testing::Test {
 protected:
  DevicesTest() {
    options_.request.set_kind(megascale::agent::v1::TEST_KIND_QUICK);
    options_.own_directory = MakeFolder();
    options_.make_devices = [] {
      std::vector<std::unique_ptr<device::Device>> devices;
      devices.push_back(device::MakeCpuDevice());
      devices.push_back(device::MakeCpuDevice());
      return devices;
    };
    device::check::CheckOptions small;
    small.memory = {.size_bytes = 1 << 20, .piece_bytes = 1 << 18, .budget = {}};
    small.copies = {.size_bytes = 1 << 18, .budget = {}};
    small.products = {.size = 32, .budget = {}};
    options_.device_check = small;
    options_.device_exchange = DeviceExchangeOptions{.elements = 1000, .rounds = 2};
  }
  MachineTest Check() const {
    return CheckMachine(options_, [](const MachineTest& /*running*/) {});
  }

  CheckOptions options_;
};

TEST_F(DevicesTest, EachIsTestedAndItsRatesAreTold) {
  const MachineTest test = Check();
  EXPECT_EQ(test.state(), MachineTest::STATE_PASSED) << test.evidence();
  ASSERT_EQ(test.results_size(), 5 + 2 * 5 + 1);
  const auto& copies = test.results(12);
  EXPECT_THAT(copies.part(), AllOf(HasSubstr("device 1 ("), HasSubstr("), copies to the host")));
  EXPECT_GT(copies.bytes_per_second(), 0);
  EXPECT_GT(test.results(14).flops_per_second(), 0) << test.results(14).part();
  EXPECT_EQ(test.results(15).part(), "all-reduce among 2 devices");
  EXPECT_GT(test.results(15).bytes_per_second(), 0);
}

TEST_F(DevicesTest, AWrongSumOfAllDevicesFailsTheMachineWithItsPlace) {
  options_.device_exchange->tamper = FlipAt(4 * 700 + 3, 8);
  const MachineTest test = Check();
  EXPECT_EQ(test.state(), MachineTest::STATE_FAILED);
  EXPECT_THAT(test.evidence(), HasSubstr("all-reduce among 2 devices: device 0: the sum of element "
                                         "700 is "));
}

TEST_F(DevicesTest, OneDeviceExchangesNothing) {
  options_.make_devices = [] {
    std::vector<std::unique_ptr<device::Device>> devices;
    devices.push_back(device::MakeCpuDevice());
    return devices;
  };
  EXPECT_EQ(Check().results_size(), 5 + 5);
}

TEST_F(DevicesTest, OneThatGivesWrongBytesFailsTheMachineWithItsNumberAndPart) {
  options_.device_check->memory.tamper = FlipAt(77, 1);
  const MachineTest test = Check();
  EXPECT_EQ(test.state(), MachineTest::STATE_FAILED);
  EXPECT_THAT(test.evidence(), AllOf(HasSubstr("device 0 ("), HasSubstr("), memory: "),
                                     HasSubstr("the first at byte 77")));
}

TEST_F(DevicesTest, DevicesThatCannotBeUsedAreANoteAndThoseThatFailAreNot) {
  options_.make_devices = [] { return absl::FailedPreconditionError("no libcudart.so.13"); };
  MachineTest test = Check();
  EXPECT_EQ(test.state(), MachineTest::STATE_PASSED);
  EXPECT_EQ(test.results(5).part(), "devices");
  EXPECT_EQ(test.results(5).note(), "no libcudart.so.13");
  options_.make_devices = [] { return absl::InternalError("the GPU has fallen off the bus"); };
  test = Check();
  EXPECT_EQ(test.state(), MachineTest::STATE_FAILED);
  EXPECT_EQ(test.evidence(), "devices: the GPU has fallen off the bus");
}

}  // namespace
}  // namespace megascale::machine
